"""Tensors that the package makes have the device and dtype it chose, whatever the user's defaults are."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import monitorch
from tests.marks import slow

SOURCE = Path(monitorch.__file__).parent
MAKERS = {
    *(
        "arange",
        "as_tensor",
        "empty",
        "empty_strided",
        "eye",
        "full",
        "linspace",
        "logspace",
        "ones",
        "rand",
        "randint",
    ),
    *("randn", "randperm", "scalar_tensor", "tensor", "zeros"),
}
# the demo is a training script, as a user writes one
FILES = [file for file in SOURCE.rglob("*.py") if not file.name.startswith("demo_")]


def calls_that_make_tensors(tree):
    """Calls of a maker, also as ``partial(torch.zeros, ...)``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = [node.func, *(node.args[:1] if getattr(node.func, "id", "") == "partial" else ())]
            for function in called:
                of_torch = isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "torch"
                if of_torch and function.attr in MAKERS:
                    yield node


def unnamed(node):
    """What a call leaves to the user's defaults; ``**options`` are trusted."""
    given = {keyword.arg for keyword in node.keywords}
    return set() if None in given else {"device", "dtype"} - given


def test_every_tensor_made_inside_names_its_device_and_dtype():
    found = [
        f"{file.relative_to(SOURCE)}:{node.lineno}: {' and '.join(sorted(unnamed(node)))}"
        for file in FILES
        for node in calls_that_make_tensors(ast.parse(file.read_text(encoding="utf-8")))
        if unnamed(node)
    ]
    assert not found


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("torch.zeros(3)", {"device", "dtype"}),
        ("torch.zeros(3, device=x.device)", {"dtype"}),
        ("partial(torch.full, (2,), 0.0, dtype=torch.float32)", {"device"}),
        ("torch.arange(3, **WHOLE)", set()),
        ("torch.zeros(3, dtype=torch.int8, device=HOST)", set()),
    ],
)
def test_the_search_finds_what_is_left_out(code, expected):
    (call,) = calls_that_make_tensors(ast.parse(code))
    assert unnamed(call) == expected


TRAINING = """
import torch
{before}
import monitorch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8, device="{device}"), nn.ReLU(), nn.Linear(8, 1, device="{device}"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_fn = nn.MSELoss()
options = {{"every": 1, "tick_every": 2, "visualizer": "dummy", "on_error": "raise"}}
watched = monitorch.watch(model, optimizer, loss_fn=loss_fn, **options)
for _ in range(4):
    inputs = torch.ones(3, 4, device="{device}")
    optimizer.zero_grad()
    loss_fn(model(inputs), inputs[:, :1]).backward()
    optimizer.step()
print(len({{(record.lens, record.layer) for record in watched.inspector.records()}}))
watched.close()
"""


LINES = 43
"""Of all lenses and layers, as without a word about defaults."""

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(
    ("before", "device"),
    [
        slow("", "cpu"),
        ("torch.set_default_device('meta'); torch.set_default_dtype(torch.float64)", "cpu"),
        slow("torch.set_default_device('meta')", "cpu"),
        slow("torch.set_default_dtype(torch.float64)", "cpu"),
        pytest.param("torch.set_default_device('cuda')", "cuda", marks=NEEDS_GPU),
        pytest.param("torch.set_default_device('cuda')", "cpu", marks=NEEDS_GPU),
    ],
)
def test_a_script_may_choose_its_defaults_before_the_import(before, device):
    program = TRAINING.format(before=before, device=device)
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) == LINES
