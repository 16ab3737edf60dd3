"""From programs to tables."""

import json
from types import SimpleNamespace

import pytest

from bench.diagnosis import __main__ as program
from bench.diagnosis import report, runs
from bench.diagnosis.cases import CASES, HEALTHY
from bench.diagnosis.runs import CADENCES, Task, agree, do, plain, plan, try_remedy

pytestmark = pytest.mark.filterwarnings("ignore")  # faulty programs warn


def said(symptom="dead_units", severity="error", layer="2", **more):
    remedy = SimpleNamespace(action=None, arguments={}, text="")
    names = {"step": 1, "detected_at": 2, "caused_by": None, "confidence": 1.0, "resolved_at": None}
    more = names | {"explanation": "", "remedy": remedy} | more
    return plain(SimpleNamespace(symptom=symptom, severity=severity, layer=layer, **more))


@pytest.mark.parametrize(
    ("live", "stored", "agrees"),
    [
        ([], [], True),
        ([said()], [said(detected_at=9)], True),
        ([said()], [said(layer="4")], False),
        ([said()], [], False),
        ([said(), said("no_progress", "info")], [said()], True),
        ([said("no_progress", "info")], [], False),
        ([said(), said("no_progress")], [said("no_progress"), said()], False),
    ],
)
def test_agreement_is_about_the_first_and_all_alarms(live, stored, agrees):
    assert agree(live, stored) is agrees


def test_plan_has_twins_of_faults_and_tries_remedies_once():
    tasks = plan(["dead", "healthy-sgd"], 2, CADENCES)
    assert len(tasks) == 2 * (2 + 1) * 4
    assert {(task.kind, task.cadence) for task in tasks if task.tries_remedy} == {("fault", "every step")}
    assert {task.kind for task in tasks if task.case == "healthy-sgd"} == {"healthy"}
    assert not any(task.tries_remedy for task in plan(["dead"], 1, CADENCES, remedies=False))
    assert all(task.cadence for task in plan(["dead"], 1, CADENCES, rules=False))


@pytest.mark.parametrize(
    ("action", "arguments", "is_healed"),
    [("zero_grad", {}, True), ("add_to_optimizer", {"parameters": ["nowhere"]}, False), (None, {}, False)],
)
def test_first_remedy_with_an_action_is_tried(action, arguments, is_healed):
    found = [said(), said(remedy=SimpleNamespace(action=action, arguments=arguments))]
    tried = try_remedy(Task("no-zero-grad", 0, "fault", "every step", True), found)
    assert (tried["treated"] is not None and tried["treated"] > 0.9) is is_healed


def test_a_program_that_fails_is_told(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(runs, "record", fail)
    failed = do(Task("dead", 0, "fault", None))
    assert {run["by"] for run in failed} == set(runs.RULES)
    assert {run["problem"] for run in failed} == {"RuntimeError: no such luck"}


def test_from_end_to_end(tmp_path, monkeypatch, capsys):
    file = tmp_path / "deep" / "figures.json"
    monkeypatch.setattr(program, "run_all", lambda tasks, jobs: ((task, do(task)) for task in tasks))
    monkeypatch.setattr(report, "RESULTS", tmp_path / "RESULTS.md")
    chosen = ["--only", "raw-inputs-regression,healthy-l1", "--cadence", "every-10th", "--no-rules"]
    program.main([*chosen, "--json", str(file), "--write"])
    figures = json.loads(file.read_text())
    (ours,) = figures["scores"]
    assert (ours["faults"], ours["twins"], ours["healthy"], ours["left_out"]) == (1, 1, 1, [])
    assert ours["recall1"][0] == 1
    assert (ours["alarmed"], ours["twins_alarmed"]) == (0, 0)
    assert "monitorch, every 10th" in capsys.readouterr().out
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.startswith("# How well problems of training are named")
    assert "| input_scale | 4 | 1 of 1 |" in text


@pytest.mark.slow
def test_stored_runs_say_the_same_and_remedies_are_tried_in_processes(tmp_path):
    file = tmp_path / "figures.json"
    program.main(["--only", "no-zero-grad", "--cadence", "every-step,default", "--json", str(file)])
    every, default, *others = json.loads(file.read_text())["scores"]
    assert [row["by"] for row in others] == list(runs.RULES)
    assert every["recall1"][0] == every["healed"][0] == 1
    assert default["agreement"] == 1
    assert every["agreement"] is default["healed"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "no-such-case"], "no case is called like no-such-case"),
        (["--cadence", "sometimes"], "no cadence is called sometimes"),
        (["--seeds", "0"], "at least 1"),
        (["--jobs", "0"], "at least 1"),
    ],
)
def test_wrong_options_are_told(arguments, message, capsys):
    with pytest.raises(SystemExit):
        program.parse(arguments)
    assert message in capsys.readouterr().err


def test_quick_is_a_tenth_at_every_step():
    tasks = program.parse(["--quick"]).tasks
    assert {task.cadence for task in tasks} == {"every step"}
    assert len({task.case for task in tasks}) == -(-(len(CASES) + len(HEALTHY)) // 10)
