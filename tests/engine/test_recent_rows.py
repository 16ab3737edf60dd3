"""The rows of the last observed steps."""

import numpy as np
import pytest

from monitorch.engine.buffers import METER, STEP, Info
from monitorch.engine.columns import WIDTH
from monitorch.engine.recent_rows import RecentRows

# the steps of the rows of each tick
TICKS = {
    "nothing": [],
    "a tick without rows": [[]],
    "fewer steps than are kept": [[1, 1, 2]],
    "one tick with many steps": [[1, 1, 2, 3, 3, 4, 5, 6]],
    "one step per tick": [[1], [2], [3], [4], [5]],
    "steps that are far apart": [[1, 1], [100], [], [205, 206], [300]],
    "a step in two ticks": [[1, 2], [2, 3], [3, 3, 4]],
    "some that come late": [[1, 2, 6], [5, 7], [6, 6, 8]],
    "random": [np.sort(np.random.default_rng(seed).integers(9 * seed, 9 * seed + 9, 20)).tolist() for seed in range(9)],
}


@pytest.mark.parametrize("kept", [1, 3, 100])
@pytest.mark.parametrize("ticks", TICKS.values(), ids=TICKS)
def test_those_of_the_last_steps_are_kept_in_their_order(ticks, kept):
    recent, everything = RecentRows(kept), []
    for steps in ticks:
        numbers = np.random.default_rng(len(everything)).normal(size=(len(steps), WIDTH))
        infos = np.array([Info(meter, step) for meter, step in enumerate(steps)], np.int64).reshape(
            -1, len(Info._fields)
        )
        recent.keep(infos, numbers)
        everything += [
            (step, meter, row.tolist()) for meter, (step, row) in enumerate(zip(steps, numbers, strict=True))
        ]
        last = sorted({step for step, _, _ in everything})[-kept:]
        infos, rows = recent.read()
        found = list(zip(infos[:, STEP].tolist(), infos[:, METER].tolist(), rows.tolist(), strict=True))
        assert found == sorted((row for row in everything if row[0] in last), key=lambda row: row[0])


def test_those_before_a_step_are_there_though_it_was_long_before_the_tick():
    recent = RecentRows(3)
    recent.keep(np.array([Info(0, step) for step in range(5)]), np.ones((5, WIDTH)))
    recent.keep(np.array([Info(0, step) for step in range(5, 100)]), np.ones((95, WIDTH)))
    assert recent.read(until=40)[0][:, STEP].tolist() == [38, 39, 40]
    assert recent.read(until=6)[0][:, STEP].tolist() == [4, 5, 6]
    assert recent.read(until=1)[0][:, STEP].tolist() == []  # long ago
    recent.keep(np.array([Info(0, 100)]), np.ones((1, WIDTH)))
    assert recent.read(until=40)[0][:, STEP].tolist() == []
    assert recent.read()[0][:, STEP].tolist() == [98, 99, 100]


def test_memory_is_bounded():
    recent = RecentRows(3)
    for step in range(1000):
        recent.keep(np.array([Info(0, step)]), np.ones((1, WIDTH)))
        assert len(recent._parts) <= 5
