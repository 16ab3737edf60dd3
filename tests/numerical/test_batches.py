"""Tensors that wait for others of the same shape: what comes together, when, and what waits at most."""

import numpy as np
import pytest
import torch

from monitorch.numerical import batches
from monitorch.numerical.batches import MANY, Batches, numbers_on


@pytest.fixture
def handed():
    return []


@pytest.fixture
def waiting(handed):
    return Batches(lambda keys, columns, *common: handed.append((keys, *columns, *common)))


def test_what_is_alike_comes_as_one_and_in_order(waiting, handed):
    for number in range(5):
        waiting.add(f"long {number}", torch.full((4,), float(number)))
        waiting.add(f"short {number}", torch.full((2,), float(number)), torch.tensor(number))
    assert not handed
    waiting.flush()
    (long_keys, long), (short_keys, short, numbers) = handed
    assert (long_keys, short_keys) == tuple(tuple(f"{kind} {n}" for n in range(5)) for kind in ("long", "short"))
    assert np.array_equal(long, np.repeat(np.arange(5.0)[:, None], 4, 1))
    assert np.array_equal(short, np.repeat(np.arange(5.0)[:, None], 2, 1))
    assert numbers.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "other",
    [
        (torch.zeros(3, 1),),
        (torch.zeros(3, dtype=torch.float64),),
        (torch.zeros(3, device="meta"),),
        (torch.zeros(3), torch.zeros(3)),
    ],
)
def test_another_shape_dtype_device_or_number_of_tensors_is_not_alike(other, waiting, handed):
    waiting.add("a", torch.zeros(3))
    waiting.add("b", *other)
    waiting.flush()
    assert [keys for keys, *_ in handed] == [("a",), ("b",)]


def test_what_some_have_in_common_keeps_them_apart_from_others(waiting, handed):
    for number in range(4):
        waiting.add(number, torch.tensor(number), common=("even", 2) if number % 2 == 0 else ("odd", 1))
    waiting.flush()
    assert [(keys, *common) for keys, _, *common in handed] == [((0, 2), "even", 2), ((1, 3), "odd", 1)]


def test_a_key_may_come_again(waiting, handed):
    for number in range(3):
        waiting.add("a", torch.tensor(number))
    waiting.flush()
    ((keys, numbers),) = handed
    assert (keys, numbers.tolist()) == (("a",) * 3, [0, 1, 2])


def test_nothing_comes_twice(waiting, handed):
    waiting.add("a", torch.zeros(1))
    waiting.flush()
    waiting.flush()
    assert len(handed) == 1


def test_small_tensors_do_not_pile_up(waiting, handed):
    for _ in range(3 * MANY + 1):
        waiting.add("a", torch.zeros(()))
    assert [len(keys) for keys, _ in handed] == [MANY] * 3


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_largest_part_goes_when_there_is_too_much(device, waiting, handed):
    most = batches.AT_ONCE.get(device, batches.MOST_AT_ONCE)
    waiting.add("small", torch.zeros(5, device=device))
    for number in range(9):
        waiting.add(number, torch.zeros(most // 16, device=device))  # a quarter each
    assert [keys for keys, _ in handed] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    waiting.flush()
    assert [keys for keys, _ in handed[2:]] == [("small",), (8,)]


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_handed_over_has_no_graph_and_one_alone_is_not_copied(count, waiting, handed):
    weight = torch.ones(2, requires_grad=True)
    for _ in range(count):
        waiting.add("a", weight)
    waiting.flush()
    ((_, found),) = handed
    assert (found.requires_grad, found.tolist()) == (False, [[1.0, 1.0]] * count)
    assert (found.data_ptr() == weight.data_ptr()) == (count == 1)


def test_more_may_wait_on_a_device_on_request(handed):
    waiting = Batches(lambda keys, columns: handed.append(keys), most_at_once=4000)
    for number in range(5):
        waiting.add(number, torch.zeros(500, device="meta"))
    assert handed == [(0, 1), (2, 3)]


def test_an_error_leaves_nothing_behind(handed):
    def fail(keys, columns):
        handed.append(keys)
        raise ValueError("no")

    waiting = Batches(fail)
    waiting.add("a", torch.zeros(2))
    with pytest.raises(ValueError, match="no"):
        waiting.flush()
    waiting.flush()
    assert handed == [("a",)]


@pytest.mark.parametrize("numbers", [[], [3], [2, 0, 2]])
def test_whole_numbers_arrive_on_a_device(numbers):
    found = numbers_on(torch.device("cpu"), numbers)
    assert (found.tolist(), found.dtype, found.shape) == (numbers, torch.int64, (len(numbers),))
