import json
from pathlib import Path

import pytest
import torch

from monitorch.cli import main
from monitorch.cli.demo import FAULTS
from monitorch.cli.demo_faults import CHANGES, faulty, healthy
from tests.marks import slow

QUICK = "dead_units", "nonfinite", "no_update"


def test_every_fault_that_is_offered_exists():
    assert list(CHANGES) == list(FAULTS)


def test_without_a_fault_the_network_learns_and_nothing_is_found(tmp_path):
    losses = []
    watched = healthy(0).run(100, "fine", tmp_path, lambda step, words: losses.append(float(words.split()[-1])))
    assert len(losses) == 100
    assert losses[-1] < 0.5
    assert [found.line for found in watched.findings if found.severity != "info"] == []


def test_same_seed_same_training():
    first, again, other = (faulty("dead_units", seed) for seed in (5, 5, 6))
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
    assert all(map(torch.equal, first.model.parameters(), again.model.parameters()))


@pytest.mark.parametrize("fault", [fault if fault in QUICK else slow(fault) for fault in FAULTS])
def test_the_demo_ends_with_the_finding_that_it_is_about(fault, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["demo", "--fault", fault, "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    opening, verdict, first, *_ = text.split("\n\n")
    assert FAULTS[fault] in opening.replace("\n", " ")
    assert verdict.startswith("1 problem since step")
    assert f": {fault.replace('_', ' ')} " in first.splitlines()[0]
    assert max(map(len, [*opening.splitlines(), *first.splitlines()])) <= 80
    assert f"check {tmp_path / 'runs' / fault}\n" in text
    assert main(["check", str(tmp_path / "runs" / fault), "--json", "--fail-on", "warning"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["symptom"] == fault


def test_the_commands_that_are_printed_name_the_folder_as_it_was_given(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--fault", "no_update", "--steps", "2", "--out", "mine"]) == 0
    text, runs = capsys.readouterr().out, Path("mine", "runs")
    assert f" check {runs / 'no_update'}\n" in text
    assert f" ui {runs}\n" in text


def test_quietly_only_the_path_is_printed(tmp_path, capsys):
    assert main(["demo", "--fault", "no_update", "--steps", "2", "--quiet", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'runs' / 'no_update'}\n"
