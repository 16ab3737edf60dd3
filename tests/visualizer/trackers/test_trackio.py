"""Trackio as a tracker: what its own storage finds. It reads its folder when it is imported, so in new processes."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from monitorch.errors import OptionError
from monitorch.visualizer.trackers import TrackioTracker

ROOT = Path(__file__).parents[3]

BEGIN = """
import json
import math
import threading
from pathlib import Path
import numpy as np
import trackio
from trackio.sqlite_storage import SQLiteStorage
from monitorch.visualizer.trackers import TrackioTracker
from monitorch.visualizer.trackers.tracker import Histogram, TrackedRun

RUN = TrackedRun("first", {"lr": 0.1})
"""

OWN = """
def write():
    tracker.note({"run": "/runs/first"})
    tracker.scalars(3, {"monitorch/loss": 0.5, "monitorch/norm": 2.0})
    tracker.scalars(5, {"monitorch/loss": math.nan, "monitorch/norm": math.inf})
    tracker.histograms(5, {"monitorch/gradient/fc": Histogram(np.arange(4.0), np.array([0, 3, 5]))})
    tracker.alert(4, "dead units in fc1", "No unit is active.", "error")
    tracker.artifact(Path("report.html"))

Path("report.html").write_text("page", encoding="utf-8")
tracker = TrackioTracker(project="gpt", auto_log_cpu=False, embed=False)
tracker.start(RUN)
thread = threading.Thread(target=write)
thread.start()
thread.join()
tracker.close("finished")
project = "gpt"
"""

USERS = """
run = trackio.init(project="mine", name="first", auto_log_cpu=False, embed=False)
tracker = TrackioTracker()
tracker.start(RUN)
tracker.scalars(3, {"monitorch/loss": 0.5})
tracker.close("finished")
trackio.log({"own": 1.0}, step=4)
trackio.finish()
project = "mine"
"""

END = """
alerts = [(a["step"], a["level"], a["title"], a["text"]) for a in SQLiteStorage.get_alerts(project)]
blobs = [path.read_text() for path in Path("store/artifacts").rglob("*") if path.is_file()]
config = SQLiteStorage.get_run_config(project, "first")
logs = SQLiteStorage.get_logs(project, "first")
print("FOUND" + json.dumps({"logs": logs, "alerts": alerts, "blobs": blobs, "config": config}))
"""


def found(folder, script):
    settings = os.environ | {
        "TRACKIO_DIR": str(folder / "store"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = [sys.executable, "-c", BEGIN + script + END]
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Run finished") == 1
    return json.loads(done.stdout.partition("FOUND")[2].splitlines()[0])


def series(logs, name):
    return [(row["step"], row[name]) for row in logs if name in row]


def test_a_run_of_its_own_has_numbers_alerts_facts_histograms_and_the_report(tmp_path):
    kept = found(tmp_path, OWN)
    logs = kept["logs"]
    assert series(logs, "monitorch/norm") == [(3, 2.0), (5, math.inf)]
    (first, (step, number)) = series(logs, "monitorch/loss")
    assert (first, step) == ((3, 0.5), 5)
    assert math.isnan(number)
    [(step, histogram)] = series(logs, "monitorch/gradient/fc")
    assert (step, histogram["bins"][0], histogram["bins"][-1], sum(histogram["values"])) == (5, 1, 3, 8)
    [(_, text)] = series(logs, "monitorch/run")
    assert text["_value"] == "/runs/first"
    assert kept["alerts"] == [[4, "error", "dead units in fc1", "No unit is active."]]
    assert kept["blobs"] == ["page"]
    assert kept["config"]["lr"] == 0.1


@pytest.mark.slow
def test_the_run_of_the_user_is_used_and_stays_open(tmp_path):
    logs = found(tmp_path, USERS)["logs"]
    assert series(logs, "monitorch/loss") == [(3, 0.5)]
    assert series(logs, "own") == [(4, 1.0)]


def test_options_that_trackio_does_not_have_are_refused():
    with pytest.raises(OptionError, match="projekt"):
        TrackioTracker(projekt="gpt")
