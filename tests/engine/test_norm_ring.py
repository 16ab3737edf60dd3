"""Norms that stay on their device: those of the last steps, in order, and a flag that nobody waits for."""

import math

import numpy as np
import pytest
import torch

from monitorch.engine.norm_ring import STEPS, UNMEASURED, DeviceFlag, NormRing
from monitorch.numerical.precision import HOST

ALL = np.arange(3)


def write(ring, step, norms, places=ALL, has_ended=False):
    ring.write(step, has_ended, places, torch.from_numpy(places), torch.tensor(norms, dtype=torch.float64))


def read(ring):
    entries, numbers = ring.reader()(ring.numbers.numpy().copy())
    return {entry.step: lines.tolist() for entry, lines in zip(entries, numbers, strict=True)}


@pytest.mark.parametrize("steps", [0, 1, STEPS - 1, STEPS, STEPS + 1, 3 * STEPS + 7])
def test_the_last_steps_are_there_in_their_order(steps):
    ring = NormRing(HOST, 3)
    for step in range(steps):
        write(ring, 10 * step, [[step, 1, 2], [3, 4, -step]])
    found = read(ring)
    last = range(max(0, steps - STEPS), steps)
    assert list(found) == [10 * step for step in last]
    assert found == {10 * step: [[step, 1, 2], [3, 4, -step]] for step in last}
    assert ring.numbers.shape == (STEPS, 2, 3)  # no more memory than at the beginning


def test_parts_of_a_step_come_together_and_what_nobody_wrote_is_unmeasured():
    ring = NormRing(HOST, 3)
    for step in range(STEPS + 2):  # the second time around there is something below
        write(ring, step, [[1, 2, 3], [4, 5, 6]])
    write(ring, 100, [[7], [8]], np.array([2]))
    write(ring, 100, [[9], [10]], np.array([0]), has_ended=True)
    write(ring, 101, [[11], [12]], np.array([1]))
    found = read(ring)
    assert found[100] == [[9, UNMEASURED, 7], [10, UNMEASURED, 8]]
    assert found[101] == [[UNMEASURED, 11, UNMEASURED], [UNMEASURED, 12, UNMEASURED]]
    assert found[99 - 35] == [[1, 2, 3], [4, 5, 6]]
    entries = {entry.step: entry for entry in ring.reader().entries}
    assert entries[100].places.tolist() == [0, 2]
    assert len(found) == STEPS


def test_a_copy_that_has_begun_does_not_see_later_steps():
    ring = NormRing(HOST, 3)
    write(ring, 1, [[1, 1, 1], [1, 1, 1]])
    reader, numbers = ring.reader(), ring.numbers.numpy().copy()
    write(ring, 2, [[2, 2, 2], [2, 2, 2]])
    entries, found = reader(numbers)
    assert [entry.step for entry in entries] == [1]
    assert found.tolist() == [[[1, 1, 1], [1, 1, 1]]]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_flag_stays_set_until_it_is_cleared(broken):
    flag = DeviceFlag(HOST)
    flag.check(torch.tensor([1e300, -1e300, 0.0], dtype=torch.float64))
    assert not flag.is_set()
    flag.check(torch.tensor([1.0, broken]))
    flag.check(torch.ones(2))
    assert flag.is_set()
    assert flag.is_set()
    flag.clear()
    assert not flag.is_set()


@pytest.mark.parametrize("works", [0.0, 1.0])
def test_steps_that_are_skipped_do_not_set_it(works):
    flag = DeviceFlag(HOST)
    flag.check(torch.tensor([math.inf]), torch.tensor(works))
    assert flag.is_set() is bool(works)
    flag.check(torch.tensor([math.nan]))
    assert flag.is_set()


class SlowEvent:
    """An event of a device that has work left."""

    def __init__(self):
        self.has_passed, self.records = False, 0

    def record(self, *_):
        self.records += 1

    def query(self):
        return self.has_passed

    def synchronize(self):
        raise AssertionError("nobody waits")


def test_what_has_not_arrived_is_not_waited_for_and_asked_for_once():
    flag = DeviceFlag(HOST)
    flag._arrived = event = SlowEvent()
    flag.check(torch.tensor([math.nan]))
    for _ in range(5):
        assert not flag.is_set()
    assert event.records == 1
    event.has_passed = True
    assert flag.is_set()
    assert event.records == 2


def test_on_a_device_where_a_copy_would_wait_nobody_looks():
    flag = DeviceFlag(torch.device("meta"))
    flag.check(torch.zeros(2, device="meta"))
    assert not flag.is_set()
