"""BatchNormStatistics: which layers it watches, and whether a wrong momentum is seen."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import MonitorchWarning
from monitorch.errors import OptionError
from monitorch.lens import BatchNormStatistics

SHIFT, RATIO = "BatchNorm Mean Shift", "BatchNorm Variance Ratio"


class Shifted(nn.Module):
    """Normalises data of another mean and variance than running statistics begin with."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.last = norm, nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.norm(x).flatten(2).mean(2) if x.dim() > 2 else self.norm(x))


def batch(*shape, seed=0):
    return torch.randn(32, 4, *shape, generator=torch.Generator().manual_seed(seed)) * 3 + 5


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (lambda: nn.BatchNorm1d(4), ()),
        (lambda: nn.BatchNorm1d(4), (5,)),
        (lambda: nn.BatchNorm2d(4), (2, 3)),
        (lambda: nn.BatchNorm3d(4), (2, 2, 2)),
        (nn.LazyBatchNorm2d, (2, 3)),
    ],
)
def test_all_kinds_of_layers(norm, shape, watch, shown):
    model = Shifted(norm())
    inspector = watch(model, BatchNormStatistics())
    model(batch(*shape)).sum().backward()
    inspector.tick_epoch()
    rows = np.moveaxis(batch(*shape).double().numpy(), 1, 0).reshape(4, -1)
    ratio = (rows.var(1, ddof=1) + 1e-5) / (1 + 1e-5)
    shift = np.max(np.abs(rows.mean(1)) / np.sqrt(1 + 1e-5))
    assert shown.values(SHIFT)["norm"]["mean"] == pytest.approx(shift, rel=1e-5)
    assert shown.values(RATIO)["norm"]["mean"] == pytest.approx(ratio[np.argmax(np.abs(np.log(ratio)))], rel=1e-5)


@pytest.mark.parametrize(("momentum", "follows"), [(0.1, True), (None, True), (1e-4, False)])
def test_statistics_that_do_not_follow_are_seen(momentum, follows, watch, shown):
    model = Shifted(nn.BatchNorm1d(4, momentum=momentum))
    inspector = watch(model, BatchNormStatistics())
    for seed in range(60):
        model(batch(seed=seed)).sum().backward()
        inspector.tick_epoch()
    assert (shown.values(SHIFT)["norm"]["mean"] < 1) == follows
    assert (0.25 < shown.values(RATIO)["norm"]["mean"] < 4) == follows


def test_layers_in_eval_mode_show_nothing(watch, shown):
    model = Shifted(nn.BatchNorm1d(4).eval())
    inspector = watch(model, BatchNormStatistics())
    model(batch()).sum().backward()
    inspector.tick_epoch()
    assert shown.values(SHIFT) == shown.values(RATIO) == {}


def test_a_momentum_of_0_is_told(watch, shown):
    model = Shifted(nn.BatchNorm1d(4, momentum=0.0))
    inspector = watch(model, BatchNormStatistics(), on_error="warn")
    with pytest.warns(MonitorchWarning, match=r"leaves out a sample of layer 'norm'.*momentum is 0"):
        model(batch()).sum().backward()
    inspector.tick_epoch()
    assert shown.values(SHIFT) == {}


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4, track_running_stats=False), nn.LayerNorm(4), nn.Identity()])
def test_a_model_without_running_statistics_is_told(norm, watch):
    with pytest.warns(MonitorchWarning, match="no BatchNorm layers that keep running statistics"):
        watch(Shifted(norm), BatchNormStatistics())


class ActivatedNorm(nn.BatchNorm1d):
    """A layer that other libraries have: a normalization with an activation inside."""

    def __init__(self, features):
        super().__init__(features)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(super().forward(x))


def test_a_normalization_with_parts_is_watched(watch, shown):
    model = Shifted(ActivatedNorm(4))
    inspector = watch(model, BatchNormStatistics())
    model(batch()).sum().backward()
    inspector.tick_epoch()
    assert shown.values(SHIFT)["norm"]["mean"] > 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"line_aggregation": "average"}, "line_aggregation"),
        ({"line_aggregation": "median"}, "inplace=False"),
        ({"range_aggregation": "all"}, "range_aggregation"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(OptionError, match=text):
        BatchNormStatistics(**options)


def test_tags(tags_of):
    assert tags_of(BatchNormStatistics()) == [
        (SHIFT, False, False, True, "NUMERICAL", None),
        (RATIO, True, False, True, "NUMERICAL", None),
    ]
