"""What data look like, compared with NumPy."""

import math

import numpy as np
import pytest
import torch

from monitorch.preprocessor.data import DataStatistics, described, described_features

stream = np.random.default_rng(3)
SCALES = np.array([1.0, 30.0, 0.2, 5.0])


def as_columns(array):
    """Features as columns: the last dimension, or the second one of images."""
    if array.ndim >= 4:
        array = np.moveaxis(array, 1, -1)
    return array.reshape(-1, array.shape[-1])


def expected_of(array):
    found = {"mean": array.mean(), "std": array.std(), "range": [array.min(), array.max()], "nonfinite": 0}
    if array.ndim > 1:
        columns = as_columns(array)
        stds = columns.std(axis=0)[np.ptp(columns, axis=0) > 0]
        found["feature spread"] = stds.max() / stds.min() if len(stds) else 1.0
        found["constant features"] = columns.shape[1] - len(stds)
    return found


def numbers_of(tensor):
    found = {}
    for statistic, samples in (*described(tensor[None]), *described_features(tensor[None])):
        found.setdefault(statistic, []).append(samples.item())
    return {statistic: samples if statistic == "range" else samples[0] for statistic, samples in found.items()}


ARRAYS = {
    "vector": stream.normal(2, 3, 7),
    "one number": np.array(2.5),
    "table": stream.normal(1, 1, (16, 4)) * SCALES,
    "sequences": stream.normal(size=(3, 5, 4)) * SCALES + 100,
    "images": stream.normal(size=(3, 4, 5, 6)) * SCALES[:, None, None],
    "films": stream.normal(size=(2, 4, 3, 2, 2)) * SCALES[:, None, None, None],
    "constant features": stream.normal(size=(16, 4)) * [0, 1, 0, 7] + 0.1,
    "all constant": np.full((5, 3), 0.1),
    "batch of one": stream.normal(size=(1, 4)),
    "one feature": stream.normal(size=(9, 1)),
    "far from zero": stream.normal(size=(50, 4)) + 1e4,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_stacked_tensors_have_the_numbers_of_each(name):
    tensors = torch.tensor(ARRAYS[name]), torch.tensor(ARRAYS[name]) * 3 - 1
    together = torch.stack(tensors)
    for number, tensor in enumerate(tensors):
        for describe in (described, described_features):
            pairs = zip(describe(together), describe(tensor[None]), strict=True)
            assert all(all_of[number] == alone[0] for (_, all_of), (_, alone) in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ARRAYS)
def test_numbers_are_those_of_numpy(name, dtype):
    tensor = torch.tensor(ARRAYS[name], dtype=dtype)
    expected = expected_of(tensor.double().numpy())
    found = numbers_of(tensor)
    assert set(found) == set(expected)
    for statistic, number in expected.items():
        assert found[statistic] == pytest.approx(number, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_floats_lose_nothing_more_than_they_have_lost(dtype):
    tensor = torch.tensor(ARRAYS["table"] * 1000, dtype=dtype)  # squares would overflow
    expected = expected_of(tensor.double().numpy())
    assert numbers_of(tensor) == {statistic: pytest.approx(number, rel=1e-5) for statistic, number in expected.items()}


@pytest.mark.parametrize(
    ("dtype", "factor", "shift"),
    [
        *[(torch.float32, factor, 0) for factor in (1e30, 1e-30)],
        *[(torch.float64, factor, 0) for factor in (1e200, 1e-200)],
        (torch.float64, 1, 1e9),
    ],
)
def test_numbers_of_any_scale_and_far_from_zero(dtype, factor, shift):
    array = ARRAYS["table"]
    expected = expected_of(array)
    tensor = torch.tensor(array * factor + shift, dtype=dtype)
    found = numbers_of(tensor)
    assert found["std"] / factor == pytest.approx(expected["std"], rel=1e-6)
    assert found["feature spread"] == pytest.approx(expected["feature spread"], rel=1e-6)
    assert found["constant features"] == 0


@pytest.mark.parametrize("form", [lambda x: x.t(), lambda x: x[::2], lambda x: x.expand(3, 16, 4)])
def test_memory_of_any_form(form):
    tensor = form(torch.tensor(ARRAYS["table"]))
    expected = expected_of(tensor.numpy())
    assert numbers_of(tensor) == {statistic: pytest.approx(number, rel=1e-9) for statistic, number in expected.items()}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_of_integers_there_is_the_range_only(dtype):
    assert numbers_of(torch.tensor([[7, 3], [250, 9]], dtype=dtype)) == {"range": [3, 250]}


@pytest.mark.parametrize(("broken", "count"), [([math.nan], 1), ([math.inf, -math.inf, math.nan], 3), ([math.inf], 1)])
def test_numbers_that_are_not_finite_are_counted_and_break_the_others(broken, count):
    tensor = torch.ones(4, 3)
    tensor[0, 0], tensor[1, 0] = 2.0, 5.0
    tensor.view(-1)[: len(broken)] = torch.tensor(broken)
    found = numbers_of(tensor)
    assert found["nonfinite"] == count
    assert not math.isfinite(found["mean"])
    assert not math.isfinite(found["feature spread"])
    assert not all(map(math.isfinite, found["range"]))


def test_samples_of_several_passes_are_kept_by_name():
    data = DataStatistics()
    for factor in (1, 3):
        data.process_tensor("input.x", factor * torch.tensor([[-1.0, 1.0], [-2.0, 2.0]], requires_grad=True))
        data.process_tensor("input.ids", torch.tensor([factor, 5]))
    assert list(data.value) == ["input.x", "input.ids"]
    assert list(data.value["input.ids"]) == ["range"]
    accumulators = data.value["input.x"]
    assert (accumulators["range"].min_, accumulators["range"].max_) == (-6, 6)
    assert accumulators["std"].mean == pytest.approx(2 * math.sqrt(2.5))
    assert data.value["input.ids"]["range"].min_ == 1


def test_nothing_waits_for_the_device(host_syncs):
    data = DataStatistics()
    with host_syncs() as counter:
        data.process_tensor("input", torch.randn(3, 4, 5, 5))
        data.process_tensor("ids", torch.arange(4))
    assert counter.operators
    assert counter.waits == 0


def test_the_tensor_and_its_graph_stay_as_they_are():
    x = torch.randn(3, 4, requires_grad=True)
    before = x.detach().clone()
    DataStatistics().process_tensor("input", x)
    assert torch.equal(x, before)
    assert x.is_leaf
    assert x.grad is None
