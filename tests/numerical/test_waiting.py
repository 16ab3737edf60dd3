import gc
import multiprocessing
import sys
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch

from monitorch.numerical import RunningMeanVar
from monitorch.numerical.series import sample_list
from monitorch.numerical.waiting import PACK_AT, UNKNOWN, HostCopy, ReentrantLock, Waiting

SIZES = [1, PACK_AT - 1, PACK_AT, PACK_AT + 1, 1000]


@pytest.fixture(params=[RunningMeanVar, sample_list])
def accumulator(request):
    return request.param()


def push(accumulator, samples):
    for sample in samples:
        accumulator.append(torch.tensor(sample))


@pytest.mark.xdist_group("processes")
@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_process_waits_for_no_thread_of_its_parent():
    lock, is_held, is_over = ReentrantLock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            is_held.set()
            is_over.wait(60)

    def child():
        with lock, lock:
            pass

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(60)
    process = multiprocessing.get_context("fork").Process(target=child)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks in a process with threads
        process.start()
    process.join(30)
    process.kill()
    is_over.set()
    thread.join()
    assert process.exitcode == 0


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
    samples = sample_list()
    push(samples, map(float, range(size)))
    samples.append(-1.0)
    assert samples == [*map(float, range(size)), -1.0]


def test_ten_thousand_samples_do_not_pile_up():
    waiting, weight = Waiting(), torch.ones(1000, requires_grad=True)
    for _ in range(10_000):
        waiting.add(0, (weight * 2).detach().sum())
        (queue,) = waiting._queues.values()
        assert len(queue.samples) + len(queue.packed) <= PACK_AT + 10_000 / PACK_AT
    ((_, whole),) = waiting.take()
    assert whole.untyped_storage().nbytes() == 4 * 10_000


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


def test_each_device_has_one_copy_and_the_order_is_kept():
    waiting = Waiting()
    for place, sample in enumerate([torch.tensor(1.0), 2.0, torch.ones((), device="meta"), torch.tensor(4.0)]):
        waiting.add(place, sample)
    pending = waiting.take()
    assert [(tensor.device.type, len(tensor)) for _, tensor in pending] == [("cpu", 2), ("meta", 1)]
    pending[1] = pending[1][0], torch.tensor([3.0])
    HostCopy(pending).deliver()
    places, numbers, _ = waiting.arrived()
    assert (places.tolist(), numbers.tolist()) == ([0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0])
    assert not waiting


def test_many_at_once_come_between_single_ones_in_the_given_order():
    waiting, one = Waiting(), torch.tensor(1.0)
    waiting.add(0, one)
    waiting.add_all([2, 1], torch.tensor([2.0, 3.0]), [7, 8])
    waiting.add(3, 4.0, step=9)
    waiting.add(0, one * 5)
    waiting.add_all([], torch.zeros(0))
    waiting.add_all([2], torch.tensor([6.0]))
    HostCopy(waiting.take()).deliver()
    places, numbers, steps = waiting.arrived()
    assert (places.tolist(), numbers.tolist()) == ([0, 2, 1, 3, 0, 2], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert steps.tolist() == [UNKNOWN, 7, 8, 9, UNKNOWN, UNKNOWN]


def test_many_at_once_do_not_pile_up():
    waiting = Waiting()
    for number in range(3 * PACK_AT):
        waiting.add_all([0, 1], torch.full((2,), float(number)))
        (queue,) = waiting._queues.values()
        assert len(queue.packed) < PACK_AT
    HostCopy(waiting.take()).deliver()
    assert np.array_equal(waiting.arrived().numbers, np.repeat(np.arange(3.0 * PACK_AT), 2))


def test_settling_nothing_copies_nothing(accumulator, host_reads):
    with host_reads() as reads:
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


def test_each_receiver_gets_its_tensor_in_order():
    received = []
    tensors = [torch.arange(6.0).reshape(2, 3), torch.tensor(7.0), torch.zeros(0), torch.ones(1, 1)]
    HostCopy([(received.append, tensor) for tensor in tensors]).deliver()
    assert len(received) == len(tensors)
    for found, sent in zip(received, tensors, strict=True):
        np.testing.assert_array_equal(found, sent.numpy())


def test_what_is_changed_after_the_start_arrives_as_it_was():
    received, tensor = [], torch.ones(3)
    copy = HostCopy([(received.append, tensor), (received.append, torch.ones(1))])
    tensor.zero_()
    copy.deliver()
    assert received[0].tolist() == [1.0, 1.0, 1.0]


def test_numbers_of_every_dtype_arrive_as_float64():
    received = []
    tensors = [torch.ones(2, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    HostCopy([(received.append, tensor) for tensor in tensors]).deliver()
    assert [numbers.dtype for numbers in received] == [np.float64] * 2


@pytest.mark.parametrize("times", [1, 2])
def test_delivering_again_does_nothing(times):
    received = []
    copy = HostCopy([(received.append, torch.ones(1))])
    for _ in range(times):
        copy.deliver()
    assert len(received) == 1


def test_nothing_to_bring_is_fine():
    HostCopy([]).deliver()
