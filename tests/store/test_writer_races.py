"""Several processes that want the same run at the same moment: nobody loses anything."""

import subprocess
import sys

import pytest

from monitorch.store import list_runs, open_run
from tests.marks import slow

PROCESSES, TICKS = 5, 7
ROUNDS = 3, slow(20)

# each waits for the others before every round, so that all of them are at the same place at the same moment
CHILD = """
import sys, time, warnings
from pathlib import Path
from monitorch.errors import StoreError
from monitorch.store import Writer
from monitorch.visualizer import Record, StoreVisualizer

warnings.simplefilter("ignore")
folder, number, processes, rounds, ticks = Path(sys.argv[1]), *map(int, sys.argv[2:6])

def records(step):
    return [Record(step, step, float(step), 0, "L", "fc", "Norm", "mean", 1000.0 * number + step)]

for round_ in range(rounds):
    (folder / f"ready{round_}.{number}").touch()
    while len(list(folder.glob(f"ready{round_}.*"))) < processes:
        time.sleep(0.001)
"""

STORE = """
    with StoreVisualizer(folder / "runs", f"run{round_}", __OPTION__) as store:
        for step in range(ticks):
            store.write(records(step))
"""

WRITER = """
    try:
        writer = Writer(folder / "runs" / f"run{round_}")
    except StoreError:
        continue
    with writer:
        for step in range(ticks):
            writer.put("L", step, [[1000.0 * number + step]], layers=["fc"], statistics=["Norm/mean"])
"""


def run_processes(folder, body, rounds):
    command = [sys.executable, "-c", CHILD + body, folder]
    numbers = [[str(number), str(PROCESSES), str(rounds), str(TICKS)] for number in range(PROCESSES)]
    children = [subprocess.Popen([*command, *number], stderr=subprocess.PIPE, text=True) for number in numbers]
    for child in children:
        _, said = child.communicate(timeout=240)
        assert child.returncode == 0, said


def stored_numbers(folder):
    """The numbers of each run in a folder."""
    found = {}
    for info in list_runs(folder):
        assert (info.problem, info.dropped, info.status) == (None, 0, "finished"), info
        with open_run(info.path) as run:
            found[info.name] = run.series("L", "Norm/mean", "fc").values.tolist()
    return found


def of_process(number):
    return [1000.0 * number + step for step in range(TICKS)]


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("option", ["numbered=True", "shared=True", "resume=True"])
def test_no_process_loses_anything_to_another_that_wants_the_same_name(tmp_path, option, rounds):
    run_processes(tmp_path, STORE.replace("__OPTION__", option), rounds)
    found = stored_numbers(tmp_path / "runs")
    for round_ in range(rounds):
        runs = [values for name, values in found.items() if name.partition("_")[0] == f"run{round_}"]
        # one that resumes may come when another has finished, and continues its run then
        parts = [values[start : start + TICKS] for values in runs for start in range(0, len(values), TICKS)]
        assert sorted(parts) == [of_process(number) for number in range(PROCESSES)]
        assert len(runs) == PROCESSES or option == "resume=True"


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("rounds", ROUNDS)
def test_of_several_writers_one_gets_the_folder_and_the_others_are_told(tmp_path, rounds):
    run_processes(tmp_path, WRITER, rounds)
    found = stored_numbers(tmp_path / "runs")
    assert len(found) == rounds
    for values in found.values():
        assert values in [of_process(number) for number in range(PROCESSES)]
