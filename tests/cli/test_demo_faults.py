import json
import math

import pytest
import torch

from monitorch.cli import main
from monitorch.cli.demo import FAULTS
from monitorch.cli.demo_faults import CHANGES, faulty, healthy


def losses(training, folder, steps):
    """Train, and give the loss of every step."""
    told = []
    training.run(steps, "run", folder, lambda step, words: told.append((step, float(words.removeprefix("loss ")))))
    assert [step for step, _ in told] == list(range(1, steps + 1))
    return [loss for _, loss in told]


def test_every_fault_that_is_offered_exists():
    assert list(CHANGES) == list(FAULTS)


def test_without_a_fault_the_network_learns(tmp_path):
    assert losses(healthy(0), tmp_path, 100)[-1] < 0.5 < math.log(10)


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - {"no_update", "input_scale"}))
def test_a_fault_does_harm(fault, tmp_path):
    assert not losses(faulty(fault, 0), tmp_path, 100)[-1] < 1.46


def test_same_seed_same_training():
    first, again, other = (faulty("dead_units", seed) for seed in (5, 5, 6))
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
    assert all(map(torch.equal, first.model.parameters(), again.model.parameters()))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_demo_ends_with_the_finding_that_it_is_about(fault, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["demo", "--fault", fault, "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    opening, problems, first = text.split("\n\n")[0], text.split("\n\n")[1], text.split("\n\n")[2]
    assert FAULTS[fault] in opening.replace("\n", " ")
    assert problems.startswith("1 problem since step")
    assert f": {fault.replace('_', ' ')} " in first.splitlines()[0]
    assert f"check {tmp_path / 'runs' / fault}\n" in text
    assert main(["check", str(tmp_path / "runs" / fault), "--json", "--fail-on", "warning"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["symptom"] == fault


def test_quietly_only_the_path_is_printed(tmp_path, capsys):
    assert main(["demo", "--fault", "no_update", "--steps", "2", "--quiet", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'runs' / 'no_update'}\n"
