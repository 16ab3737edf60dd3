"""What a user pays is measured from end to end on miniatures; the figures themselves are not asserted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import __main__ as program
from bench import report, user, workers
from bench.measure import Effort
from bench.models import workload
from bench.user import UserCase, measure, plan
from bench.windows import Turns
from monitorch.store import list_runs
from tests.marks import slow

QUICK = Effort("cpu", quick=True)


@pytest.mark.slow
def test_from_end_to_end(tmp_path, capsys):
    file = tmp_path / "deep" / "user.json"
    program.main(["--user", "--quick", "--only", "mlp:default,mlp:budget", "--json", str(file)])
    run = json.loads(file.read_text())
    assert run["sections"] == ["user"]
    assert [(row["model"], row["setting"], row["problem"]) for row in run["user"]] == [
        ("mlp", "default", None),
        ("mlp", "budget", None),
    ]
    for row in run["user"]:
        assert len(row["watched_s"]) == len(row["bare_s"]) - 1 == row["first_windows"] + row["windows"]
        assert (len(row["bare_cpu_s"]), len(row["watched_cpu_s"])) == (len(row["bare_s"]), len(row["watched_s"]))
        assert min(row["ratio"], row["cpu_ratio"]) > 0
        assert row["seen"] > 0
        assert isinstance(row["memory_gib"], float)
    printed = capsys.readouterr().out
    assert "[  1/2] mlp, default" in printed
    assert "half of all windows" in printed
    assert report.document([run]).index("## What a user pays") < report.document([run]).index("## Targets")


@pytest.mark.parametrize(
    "setting", [setting if setting in ("default", "every1", "all") else slow(setting) for setting in user.SETTINGS]
)
def test_every_setting_is_measured(setting):
    row = measure(UserCase("mlp=2x32", setting), QUICK)
    assert row["problem"] is None
    assert row["quartiles"][0] <= row["median"] <= row["quartiles"][1]
    assert row["steps"] >= user.FEWEST
    assert row["said_is_bound"] is True or setting != "every1"
    assert set(row["whole_runs"]) == ({"0.02", "0.1"} if setting == "default" else set())


@pytest.mark.parametrize("model", ["cnn", slow("gpt2"), slow("gpt2-xl")])
def test_every_model_is_measured(model):
    assert measure(UserCase(model), QUICK)["problem"] is None


def test_default_trains_as_long_as_its_whole_run():
    row = measure(UserCase("mlp=2x32", seconds=0.1), QUICK)
    assert sum(row["bare_s"]) >= 0.1
    assert row["whole_runs"]["0.1"] > 0


@pytest.mark.parametrize(
    ("setting", "seconds", "steps", "windows"),
    [
        ("default", (1.0, 1.5), 500, 5),  # two seconds and three percent more
        ("default", (1.0, 1.05), 500, 10),  # not in ten seconds
        ("budget", (1.0, 1.0), 500, 1),
        ("budget", (1.0, 1.0), 30, 4),
        ("every10", (0.25, 0.25), 500, 4),
        ("every1", (1.0, 1.0), 1, 10),
    ],
)
def test_first_stretch(setting, seconds, steps, windows):
    bare, watched = seconds
    turns = Turns(lambda steps: bare, lambda steps: watched, steps)
    how = user.Pace(window=1.0, first=10.0, later=1, recent=0.0, precise=0.0, alone=0.0)
    assert user._first_stretch(turns, UserCase("mlp", setting), how) == windows == len(turns.watched)


@pytest.mark.parametrize(
    ("steps", "overhead"),
    [
        (10, 0.1),  # all after the first stretch
        (200, 0.1),
        (250, (3 * 1 + 1.1 * 4) / 5 - 1),
        (300, (3 * 2 + 1.1 * 4) / 6 - 1),
        (999, (3 * 3 + 1.1 * 4) / 7 - 1),
    ],
)
def test_shown_overhead_is_compared_with_the_steps_that_it_is_about(steps, overhead):
    windows = [3.0] * 3 + [1.1] * 4
    watched = iter(windows)
    turns = Turns(lambda steps: 1.0, lambda steps: next(watched), 50)
    for _ in windows:
        turns.take()
    assert user._recent_overhead(turns, 3, steps)[0] == pytest.approx(overhead)


@pytest.mark.parametrize(("spread", "is_vague"), [(0.0, False), (0.01, False), (0.05, True)])
def test_windows_go_on_until_the_overhead_is_known(spread, is_vague):
    watched = iter([1.1 - spread, 1.1 + spread] * 4)
    turns = Turns(lambda steps: 1.0, lambda steps: next(watched), 50)
    for _ in range(8):
        turns.take()
    assert user._is_vague(turns, 0, 100) is is_vague


@pytest.mark.parametrize(("fit", "steps"), [(2, 8), (25.4, 25), (300, 300), (900, 300), (6000, 2000)])
def test_steps_of_a_window(fit, steps):
    assert user.steps_of_window(fit) == steps


def test_run_is_stored_with_ticks_and_removed(monkeypatch, tmp_path):
    runs = []
    close = user.Watched.close

    def look(self):
        seconds = close(self)
        runs.extend(list_runs(next(tmp_path.iterdir())))
        return seconds

    monkeypatch.setattr(user.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(user.Watched, "close", look)
    assert measure(UserCase("mlp"), QUICK)["problem"] is None
    (run,) = runs
    assert run.status == "finished"
    assert run.ticks > 0
    assert not list(tmp_path.iterdir())


def test_watch_is_paused_while_the_other_model_trains(tmp_path):
    paused = []

    class Trial:
        device, watcher = "cpu", None

        def train(self):
            paused.append(watcher.watch.inspector.state.paused)

    _, watcher = user._watched(UserCase("mlp"), QUICK, tmp_path)
    user._pausing(watcher, Trial(), 2)
    assert paused == [True, True]
    assert not watcher.watch.inspector.state.paused
    watcher.close()


def test_case_that_fails_is_told(monkeypatch):
    monkeypatch.setitem(user.SETTINGS, "budget", {"budget": 7})
    row = measure(UserCase("mlp", "budget"), QUICK)
    assert row["problem"].startswith("failed: OptionError: budget=7")
    assert "bare_ms" not in row


def test_no_case_begins_when_the_time_is_up():
    cases = [UserCase("gpt2"), UserCase("gpt2", "budget"), UserCase("mlp")]
    rows = [row for _, row in workers.run_user(cases, Effort("cuda", quick=True), seconds=-1.0)]
    assert [row["problem"] for row in rows] == ["left out: the time was up"] * 3


def test_bare_process_does_not_import_monitorch():
    code = (
        "import sys; from bench import user; from bench.measure import Effort\n"
        "assert user.footprint(user.UserCase('mlp'), False, Effort('cpu', quick=True)) > 2**20\n"
        "assert 'monitorch' not in sys.modules\n"
        "user.footprint(user.UserCase('mlp'), True, Effort('cpu', quick=True))\n"
        "assert 'monitorch' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(program.__file__).parents[1], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_cases_of_a_cpu():
    found = plan("cpu")
    assert [(case.name, case.setting) for case in found] == [
        *((model, setting) for model in user.SMALL for setting in user.USUAL),
        ("mlp", "all"),
        (user.SIGNALS[0], "all10"),
    ]
    assert {case.seconds for case in found if case.setting == "default"} == {60.0}
    assert {case.seconds for case in found if case.setting != "default"} == {0.0}


def test_cases_of_a_gpu():
    found = plan("cuda")
    assert [case.name for case in found if case.setting == "all10"] == list(user.SIGNALS)
    defaults = {case.name for case in found if case.setting == "default"}
    assert defaults == {*user.SMALL, "gpt2", "gpt2-compiled", "gpt2-xl", "gpt2-xl-compiled"}
    assert len(set(found)) == len(found)
    assert max(case.seconds for case in found) < 60
    minutes = {case.name for case in plan("cuda", long=True) if case.seconds == 60}
    assert minutes == {*user.SMALL, "gpt2"}


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("cnn", [("cnn", setting) for setting in user.USUAL]),
        ("mlp:every1,cnn:default", [("mlp", "every1"), ("cnn", "default")]),
        ("mlp:every1,mlp:every1", [("mlp", "every1")]),
    ],
)
def test_only_some_cases(only, expected):
    assert [(case.name, case.setting) for case in plan("cpu", only)] == expected


@pytest.mark.parametrize("only", ["gpt2", "small", "mlp:often", "mlp,", ""])
def test_unknown_cases_are_refused(only, capsys):
    with pytest.raises(SystemExit):
        program.parse(["--user", "--only", only])
    assert "no case is called" in capsys.readouterr().err


def test_the_watch_is_named_by_its_options():
    labels = [UserCase("mlp", setting).label for setting in user.SETTINGS]
    assert labels == ["default", "budget=0.02", "every=10", "every=1", "lenses=all", "lenses=all, every=10"]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (UserCase("mlp"), True),
        (UserCase("mlp", "budget"), True),
        (UserCase("mlp", "every1"), False),
        (UserCase("mlp", "every10"), False),
        (UserCase("mlp", "all10"), False),
        (UserCase("mlp", compiled=True), False),
    ],
)
def test_kernels_are_compiled_before_the_first_window(case, expected):
    assert case.compiles_at_once is expected


def test_size_of_a_stack():
    layers = [module for module in workload("mlp=20x64", "cpu").model() if hasattr(module, "weight")]
    assert [tuple(layer.weight.shape) for layer in layers] == [(64, 64)] * 19 + [(10, 64)]
