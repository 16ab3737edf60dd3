"""Counts beside samples: they add up over tensors, ticks and processes, also if some are longer."""

import copy
import pickle

import numpy as np
import pytest
import torch

from monitorch.engine.ranks import merged
from monitorch.numerical.waiting import HostCopy
from monitorch.preprocessor.counting import CountingStatistics


@pytest.fixture
def counting():
    found = CountingStatistics(inplace=True)
    found._count("a", torch.tensor([1, 2]))
    found._count("a", torch.tensor([1, 0, 5]))
    found._count(("b", 1), torch.tensor([0, 2**52 + 1]))
    found._count("nothing", torch.tensor([0, 0]))
    return found


def plain(counting):
    return {key: counts.tolist() for key, counts in counting.counts().items()}


EXPECTED = {"a": [2, 2, 5], ("b", 1): [0, 2**52 + 1]}


def test_counts_of_a_key_add_up_and_are_whole_numbers(counting):
    assert plain(counting) == plain(counting) == EXPECTED
    assert all(counts.dtype == np.int64 for counts in counting.counts().values())


def test_rows_of_many_keys_add_up_and_new_keys_may_come():
    counting = CountingStatistics(inplace=True)
    counting._counts.add(["a", "b"], torch.tensor([[1, 2], [3, 4]]))
    counting._counts.add(["b", "c", "b"], torch.tensor([[10, 0], [7, 7], [100, 0]]))
    counting._count("b", torch.tensor([0, 0, 1]))
    assert plain(counting) == {"a": [1, 2], "b": [113, 4, 1], "c": [7, 7]}


def test_a_tensor_that_was_counted_is_not_changed(counting):
    counts = torch.tensor([1, 1])
    for _ in range(2):
        counting._count("c", counts)
    assert (counts.tolist(), plain(counting)["c"]) == ([1, 1], [2, 2])


def test_copies_have_the_counts(counting):
    loaded = CountingStatistics(inplace=True)
    loaded._count("before", torch.tensor([1]))
    loaded.load_state_dict(counting.state_dict())
    for copied in (copy.deepcopy(counting), pickle.loads(pickle.dumps(counting)), loaded):
        assert plain(copied) == EXPECTED
        copied._count("a", torch.tensor([1]))
        assert plain(copied)["a"] == [3, 2, 5]
    assert plain(counting) == EXPECTED


def test_a_tick_takes_its_counts_away(counting):
    kept = counting.release()
    copying = HostCopy(counting.pending(kept))
    counting._count("a", torch.tensor([7]))
    copying.deliver()
    with counting.showing(kept):
        counting.finish()
        assert plain(counting) == EXPECTED
    assert plain(counting) == {"a": [7]}
    counting.reset()
    assert plain(counting) == {}


def test_processes_add_up(counting):
    other = CountingStatistics(inplace=True)
    other._count("a", torch.tensor([0, 0, 0, 1]))
    counting.merge_ranks(merged({0: counting.payload(), 1: other.payload()}))
    assert plain(counting) == {**EXPECTED, "a": [2, 2, 5, 1]}
