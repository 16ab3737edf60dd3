"""A writer that is killed at any moment loses nothing that it said is stored, and leaves a file that opens."""

import random
import subprocess
import sys
import time

import numpy as np
import pytest

from monitorch.store import open_run
from monitorch.store.journal import JOURNALS

VICTIM = """
import sys
from monitorch.store import Writer
writer = Writer(sys.argv[1], resume=True, journal=sys.argv[2])
step = -1 if writer.resumed_step is None else writer.resumed_step
layers = [str(number) for number in range(20)]
while True:
    step += 1
    writer.put("Norm", step, [[step + layer for layer in range(20)]], layers=layers, statistics=["mean"])
    if step % 8 == 0:
        writer.flush()
        print(step, flush=True)
"""


def kill_and_check(folder, journal, moment):
    """Let a writer go on with the run for a moment after its first commit; returns the last step."""
    command = [sys.executable, "-c", VICTIM, folder, journal]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        said = [victim.stdout.readline()]
        time.sleep(moment)  # the moment is what is being tested
        victim.kill()
        said += victim.stdout.readlines()
    promised = [int(line) for line in said if line.endswith("\n")]
    with open_run(folder) as run:
        axis, values = run.series("Norm", "mean", "7")
        assert run.status == "crashed"
        assert run.frame_at(axis.step[-1])["Norm"].values[0, 19] == axis.step[-1] + 19
    assert axis.step.tolist() == list(range(len(axis.step)))
    np.testing.assert_array_equal(values, axis.step + 7)
    assert axis.step[-1] >= promised[-1]
    return len(axis.step)


def kill_many(folder, journal, kills):
    chance = random.Random(journal)
    lengths = [kill_and_check(folder, journal, chance.random() * 0.2) for _ in range(kills)]
    assert lengths == sorted(set(lengths))


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(("journal", "kills"), [("wal", 4), ("truncate", 3), ("log", 2)])
def test_killed_writer_loses_nothing(tmp_path, journal, kills):
    kill_many(tmp_path / "run", journal, kills)


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("journal", JOURNALS)
def test_killed_writer_loses_nothing_in_many_trials(tmp_path, journal):
    kill_many(tmp_path / "run", journal, 50)
