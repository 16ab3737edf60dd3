"""The diagnosis of a run on disk is that of the run while it trained."""

import sqlite3

import pytest
import torch
from torch import nn

import monitorch
from monitorch.diagnosis import Finding, Remedy, Symptom, check
from monitorch.diagnosis.check import stored_history
from monitorch.diagnosis.symptoms import DeadUnits, NoUpdate
from monitorch.errors import OptionError, StoreError
from monitorch.store import Writer, open_run


class Training:
    """A small classifier; the optimizer does not have its middle layer, and the last ReLU dies at step 20."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        self.optimizer = torch.optim.SGD([*self.model[0].parameters(), *self.model[4].parameters()], lr=0.1)
        self.loss_fn, self.step = nn.CrossEntropyLoss(), 0

    def watch(self, folder, **options):
        options = {"every": 1, "tick_every": 10, "folder": folder, "run": "run", **options}
        return monitorch.watch(self.model, self.optimizer, loss_fn=self.loss_fn, **options)

    def train(self, steps):
        for _ in range(steps):
            self.step += 1
            if self.step == 20:
                nn.init.constant_(self.model[2].bias, -100.0)
            x = torch.randn(64, 4)
            self.optimizer.zero_grad()
            self.loss_fn(self.model(x), (x[:, 0] > 0).long() + (x[:, 1] > 0).long()).backward()
            self.optimizer.step()


@pytest.fixture
def training():
    return Training()


def told(findings):
    return [(one.id, one.severity, one.step, one.detected_at, one.caused_by, one.explanation) for one in findings]


def stored_findings(folder):
    with open_run(folder) as run:
        return [Finding.from_json(one) for one in run.meta["findings"]]


@pytest.mark.parametrize("journal", ["wal", "log"])
def test_what_is_stored_gives_the_findings_that_were_live(training, tmp_path, journal, monkeypatch, capsys):
    monkeypatch.setattr("monitorch.store.backend.probe", lambda _: journal)
    with training.watch(tmp_path, on_event=lambda event: None) as watched:
        training.train(45)
    assert (tmp_path / "run" / f"rank0.{'log' if journal == 'log' else 'db'}").exists()
    live = watched.findings
    assert {"no_update:2", "dead_units:3"} <= {one.id for one in live}
    assert told(check(tmp_path / "run")) == told(live)
    assert told(check(str(tmp_path / "run"))) == told(live)
    with open_run(tmp_path / "run") as run:
        assert told(check(run)) == told(live)
        assert run.name == "run"  # it is not closed
    assert stored_findings(tmp_path / "run") == live


def test_samples_are_those_that_were_live(training, tmp_path):
    with training.watch(tmp_path) as watched:
        training.train(45)
    live = watched._diagnosis.history
    with open_run(tmp_path / "run") as run:
        found = stored_history(run)
    assert set(found.samples) == set(live.samples)
    assert found.facts == live.facts
    assert found.step == live.step == 45
    for signal in live.samples:
        old, new = live.table(signal), found.table(signal)
        assert new.steps.tolist() == old.steps.tolist()
        values = torch.tensor(new.select(old.places).values)
        torch.testing.assert_close(values, torch.tensor(old.values), rtol=1e-6, atol=1e-30, equal_nan=True)


def test_a_run_that_is_still_written_can_be_checked(training, tmp_path):
    with training.watch(tmp_path) as watched:
        training.train(40)
        watched.visualizer.sync()
        assert told(check(tmp_path / "run")) == told(watched.findings)


CRASH = """
import os, sys
from pathlib import Path
from tests.diagnosis.test_check import Training

training = Training()
watched = training.watch(Path(sys.argv[1]))
training.train(40)
assert watched.findings  # a look at the newest numbers
watched.visualizer.sync()
os._exit(3)
"""


def test_after_a_crash_everything_that_was_stored_can_be_checked(run_program, tmp_path):
    assert run_program(CRASH, tmp_path).returncode == 3
    found = check(tmp_path / "run")
    assert {"no_update:2", "dead_units:3"} <= {one.id for one in found}
    assert told(stored_findings(tmp_path / "run")) == told(found)


def test_a_run_that_goes_on_is_one_run(training, tmp_path):
    with training.watch(tmp_path) as watched:
        training.train(30)
        state = watched.state_dict()
    with training.watch(tmp_path, resume=True) as watched:
        watched.load_state_dict(state)
        training.train(20)
    live = {one.id: one for one in watched.findings}
    found = {one.id: one for one in check(tmp_path / "run")}
    assert live["no_update:2"].step > 30  # this process has seen no more
    assert found["no_update:2"].step < 5
    assert found.keys() == live.keys()
    with open_run(tmp_path / "run") as run:
        assert run.meta["diagnosis"]["since"] == 30
        assert stored_history(run).loss().steps.tolist() == list(range(1, 51))


def test_what_was_repeated_counts_once(training, tmp_path):
    with training.watch(tmp_path) as watched:
        training.train(20)
        state = watched.state_dict()
        training.train(25)
    with training.watch(tmp_path, resume=True) as watched:
        watched.load_state_dict(state)
        training.train(10)
    with open_run(tmp_path / "run") as run:
        losses = stored_history(run).loss()
    assert losses.steps.tolist() == list(range(1, 31))


def test_a_run_that_has_forgotten_its_first_samples_did_not_see_the_start(training, tmp_path):
    nn.init.constant_(training.model[0].weight, 0.1)  # alike at the start, and only there
    nn.init.zeros_(training.model[0].bias)
    nn.init.constant_(training.model[2].weight, 0.1)
    with training.watch(tmp_path):
        training.train(45)
    assert "symmetric_units" in {one.symptom for one in check(tmp_path / "run")}
    database = sqlite3.connect(tmp_path / "run" / "rank0.db")
    with database:
        database.execute("DELETE FROM samples WHERE id <= (SELECT (MIN(id) + MAX(id)) / 2 FROM samples)")
    database.close()
    with open_run(tmp_path / "run") as run:
        left = stored_history(run)
    assert left.facts.since >= left.loss().steps[0] - 1 > 0
    assert "symmetric_units" not in {one.symptom for one in check(tmp_path / "run")}


def test_thresholds_and_symptoms_of_ones_own(training, tmp_path):
    with training.watch(tmp_path):
        training.train(45)
    assert "dead_units:3" not in {one.id for one in check(tmp_path / "run", [DeadUnits(share=2.0), NoUpdate(steps=4)])}
    with pytest.raises(OptionError, match="DeadUnits"):
        check(tmp_path / "run", ["dead_units"])


class Failing(Symptom):
    """One that has an error."""

    id = "failing"

    def look(self, run):
        raise KeyError("mine")


def test_errors_in_a_symptom_of_ones_own_are_shown(training, tmp_path):
    with training.watch(tmp_path):
        training.train(10)
    with pytest.raises(KeyError, match="mine"):
        check(tmp_path / "run", [Failing()])


def test_a_run_that_was_not_diagnosed_says_how_to_get_that(training, tmp_path):
    with training.watch(tmp_path, diagnose=False):
        training.train(10)
    with pytest.raises(StoreError, match=r"cannot be diagnosed: it has no diagnosis data.*without diagnose=False"):
        check(tmp_path / "run")
    Writer(tmp_path / "bare").close()
    with pytest.raises(StoreError, match="cannot be diagnosed"):
        check(tmp_path / "bare")


def test_no_run_is_the_error_of_the_store(tmp_path):
    with pytest.raises(StoreError):
        check(tmp_path / "nothing")


def test_what_was_over_before_the_run_ended_is_still_listed(training, tmp_path):
    with training.watch(tmp_path) as watched:
        training.train(45)
        gone = Finding("oscillation", "warning", None, 5, 8, "Gradients turn round.", Remedy("Wait."))
        assert gone.id not in {one.id for one in watched.findings}  # waits for ticks: one in progress would drop it
        watched._diagnosis._findings.append(gone)
        training.train(10)
    over = {one.id: one for one in watched.findings}[gone.id]
    assert over.resolved_at is not None
    assert {one.id: one for one in check(tmp_path / "run")}[gone.id] == over
    assert gone.id not in {one.id for one in check(tmp_path / "run", [NoUpdate(steps=4)])}
