import gc
import weakref

import numpy as np
import pytest
import torch

from monitorch.numerical import RunningMeanVar
from monitorch.numerical.series import SampleList
from monitorch.numerical.waiting import PACK_AT, settle

SIZES = [1, PACK_AT - 1, PACK_AT, PACK_AT + 1, 1000]


@pytest.fixture(params=[RunningMeanVar, SampleList])
def accumulator(request):
    return request.param()


def push(accumulator, samples):
    for sample in samples:
        accumulator.append(torch.tensor(sample))


@pytest.mark.parametrize("size", SIZES)
def test_packing_changes_no_moment(size, assert_moments):
    samples = np.random.default_rng(size).standard_normal(size).tolist()
    samples[size // 2] = float("inf")
    waiting = RunningMeanVar()
    for sample in samples:
        waiting.append(torch.tensor(sample, dtype=torch.float64))
    assert_moments(waiting, samples)


@pytest.mark.parametrize("scale", [1e300, 1e-300, 5e-324])
def test_packing_survives_extreme_numbers(scale, assert_moments):
    samples = [scale, -scale, 0.0] * PACK_AT
    waiting = RunningMeanVar()
    for sample in samples:
        waiting.append(torch.tensor(sample, dtype=torch.float64))
    assert_moments(waiting, samples)


@pytest.mark.parametrize("size", SIZES)
def test_packing_keeps_the_order(size):
    samples = SampleList()
    push(samples, map(float, range(size)))
    samples.append(-1.0)
    assert samples == [*map(float, range(size)), -1.0]


def test_ten_thousand_samples_do_not_pile_up():
    waiting = RunningMeanVar()
    for _ in range(10_000):
        waiting.append(torch.ones(()))
        assert len(waiting._waiting) + len(waiting._packed) <= PACK_AT + 1
    assert waiting.count == 10_000


def test_in_memory_growth_is_plain_numbers():
    samples = SampleList()
    weight = torch.ones(1000, requires_grad=True)
    for _ in range(1000):
        samples.append((weight * 2).sum())
    tensors = samples._waiting + samples._packed
    assert len(tensors) < PACK_AT + 1000 / PACK_AT
    assert sum(t.untyped_storage().nbytes() for t in tensors) == 8 * 1000
    assert not any(t.requires_grad for t in tensors)
    assert samples == [2000.0] * 1000


def test_appending_tensors_reads_nothing_and_reading_does(accumulator, host_reads):
    with host_reads() as reads:
        push(accumulator, [1.0] * 3 * PACK_AT)
        assert not reads.calls.total()
        assert len(accumulator) == 3 * PACK_AT
    assert reads.calls["cpu"] == 1


def test_a_device_that_cannot_be_read_can_be_appended(accumulator):
    for _ in range(3 * PACK_AT):
        accumulator.append(torch.ones((), device="meta"))
    with pytest.raises(NotImplementedError, match="meta"):
        len(accumulator)


def test_another_device_waits_behind_the_first(accumulator):
    accumulator.append(torch.tensor(1.0))
    accumulator.append(torch.ones((), device="meta"))
    assert [t.device.type for t in accumulator._take()] == ["cpu", "meta"]


def test_many_accumulators_settle_with_one_copy(host_reads):
    accumulators = [kind() for kind in (RunningMeanVar, SampleList) * 20]
    for index, each in enumerate(accumulators):
        push(each, [float(index)] * (1 + 20 * index))
    with host_reads() as reads:
        settle(accumulators)
    assert reads.calls["cpu"] == 1
    for index, each in enumerate(accumulators):
        assert len(each) == 1 + 20 * index
        assert (each.mean if isinstance(each, RunningMeanVar) else each[-1]) == index


def test_settling_nothing_copies_nothing(accumulator, host_reads):
    with host_reads() as reads:
        settle([accumulator, accumulator])
        accumulator.settle()
    assert not reads.calls.total()


def test_the_sample_is_a_copy(accumulator):
    number = torch.tensor(1.0, dtype=torch.float64)
    accumulator.append(number)
    number.fill_(7.0)
    accumulator.append(number)
    accumulator.settle()
    assert getattr(accumulator, "mean", 4.0) == 4.0
    assert max(accumulator) == 7.0 if isinstance(accumulator, list) else accumulator.max_ == 7.0


def test_the_graph_of_a_sample_is_released(accumulator):
    hidden = torch.ones(3, requires_grad=True) * 2
    graph = weakref.ref(hidden)
    loss = hidden.sum()
    accumulator.append(loss)
    del hidden, loss
    gc.collect()
    assert graph() is None


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool]
)
def test_samples_of_any_real_dtype(accumulator, dtype):
    accumulator.append(torch.tensor([1], dtype=dtype))
    accumulator.settle()
    assert list(accumulator) == [1.0] if isinstance(accumulator, list) else accumulator.mean == 1.0


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_appending_never_waits_for_the_gpu(accumulator):
    number = torch.ones((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3 * PACK_AT):
            accumulator.append(number)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(accumulator) == 3 * PACK_AT
