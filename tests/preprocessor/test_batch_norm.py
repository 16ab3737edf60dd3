"""How far running statistics are from a batch, also from how they change, against NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.preprocessor.batch_norm import BatchNormShifts, ChannelMoments, batch_norm_shift


def shift(batch, mean, variance, eps):
    ratio = (batch.var(0, ddof=1) + eps) / (variance + eps)
    return (
        np.max(np.abs(batch.mean(0) - mean) / np.sqrt(variance + eps)),
        ratio[np.argmax(np.abs(np.log(ratio)))],
    )


def kept(norm):
    return ChannelMoments(norm.running_mean.clone(), norm.running_var.clone())


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("offset", [0.0, 5.0])
@pytest.mark.parametrize(("momentum", "error"), [(1.0, 1e-5), (0.1, 1e-5), (0.01, 1e-4), (1e-4, 1e-2), (None, 1e-5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_a_batch_was_follows_from_what_has_changed(scale, offset, momentum, error, dtype):
    torch.manual_seed(0)
    norm, shifts, wanted = nn.BatchNorm1d(3, momentum=momentum, dtype=dtype), BatchNormShifts(inplace=False), []
    norm.running_mean.fill_(offset)
    norm.running_var.fill_(scale**2)
    for _ in range(4):
        batch = torch.randn(16, 3, dtype=dtype) * scale + offset
        before = kept(norm)
        wanted.append(shift(batch.double().numpy(), *(x.double().numpy() for x in before), norm.eps))
        norm(batch)
        share = 1 / norm.num_batches_tracked.to(dtype) if momentum is None else momentum
        shifts.process_statistics("norm", before, kept(norm), share, norm.eps)
    if dtype == torch.float64:
        error = 1e-8
    found = np.array(shifts.value["norm"]).T
    # rounding of the running statistics, over the momentum, in running deviations
    np.testing.assert_allclose(found, wanted, rtol=error, atol=error * (1 + offset / scale))


def test_statistics_that_are_not_finite_are_counted():
    shifts = BatchNormShifts(inplace=True)
    before, after = torch.zeros(2), torch.tensor([0.0, torch.nan])
    shifts.process_statistics("norm", ChannelMoments(before, before + 1), ChannelMoments(after, after), 0.1, 1e-5)
    assert [(one.count, one.nonfinite) for one in shifts.value["norm"]] == [(0, 1)] * 2


def test_rounding_makes_no_variance_negative():
    shifts = BatchNormShifts(inplace=True)
    running = torch.tensor([1.0])
    after = ChannelMoments(running, torch.tensor([0.8999999]))  # a constant channel gives 0.9
    shifts.process_statistics("norm", ChannelMoments(running, running), after, 0.1, 1e-5)
    assert shifts.value["norm"][1].mean == pytest.approx(1e-5, rel=1e-4)


def test_the_ratio_is_that_of_the_channel_farthest_from_1():
    running = ChannelMoments(torch.zeros(3), torch.ones(3))
    for ratios, farthest in (([0.5, 1.9, 1.0], 0.5), ([0.5, 2.5, 1.0], 2.5), ([1.0, 1.0, 1.0], 1.0)):
        batch = ChannelMoments(torch.zeros(3), torch.tensor(ratios))
        assert batch_norm_shift(batch, running, 0.0)[1].item() == pytest.approx(farthest)
