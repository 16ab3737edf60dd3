"""Facts about a run: true, plain, and never in the way."""

import json
import subprocess

import pytest
import torch
from torch import nn

from monitorch.watching import environment


def git(folder, *command):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    return subprocess.run(["git", *identity, *command], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("print(1)\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_model_and_optimizer_are_described():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model[0].weight.requires_grad_(False)
    facts = environment.environment_facts(model, [torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)])
    assert facts["model"] == {"kind": "Sequential", "parameters": 21, "trained parameters": 9}
    (optimizer,) = facts["optimizers"]
    assert (optimizer["kind"], optimizer["lr"], optimizer["momentum"]) == ("SGD", 0.25, 0.5)
    assert json.loads(json.dumps(facts)) == facts


def test_options_of_an_optimizer_may_be_tensors_and_tuples():
    model = nn.Linear(1, 1)
    (optimizer,) = environment.environment_facts(model, [torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5))])[
        "optimizers"
    ]
    assert (optimizer["lr"], optimizer["betas"]) == (0.5, [0.9, 0.999])


def test_the_commit_and_whether_files_differ_from_it(repository):
    head = git(repository, "rev-parse", "HEAD").strip()
    assert environment.commit(repository) == {"commit": head, "changed": False}
    (repository / "new.py").write_text("")  # git does not know it, so it is no difference
    assert environment.commit(repository) == {"commit": head, "changed": False}
    (repository / "train.py").write_text("print(2)\n")
    assert environment.commit(repository) == {"commit": head, "changed": True}


def test_no_repository_and_no_git_are_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment.commit(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert environment.commit(tmp_path) is None
