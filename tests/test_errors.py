"""Messages to the user never end the user's program."""

import ast
import io
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import monitorch
from monitorch.errors import MonitorchWarning, say, warn

PRINTED = "monitorch: a message"


def test_a_warning_is_issued_for_the_line_that_the_stack_level_names():
    with pytest.warns(MonitorchWarning, match="a message") as caught:
        warn("a message")
    assert caught[0].filename == __file__


def test_the_users_line_is_neither_ours_nor_one_of_torch():
    """A program calls the optimizer, torch calls a hook of ours, and that warns."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    ours = {"__name__": "monitorch.gatherer", "warn": warn}
    exec("def hook(*_): warn('a message')", ours)
    optimizer.register_step_post_hook(ours["hook"])
    with pytest.warns(MonitorchWarning, match="a message") as caught:
        optimizer.step()
    assert caught[0].filename == __file__


@pytest.mark.parametrize("module", ["train", "__main__", "monitorch_runs", "my.monitorch"])
def test_a_warning_names_the_line_of_the_user_whatever_his_module_is_called(module):
    inspector = monitorch.PyTorchInspector([], visualizer="dummy")
    program = compile("inspector.log(accuracy='high')", "program of the user", "exec")
    with pytest.warns(MonitorchWarning, match="accuracy='high' is left out") as caught:
        exec(program, {"__name__": module, "inspector": inspector})
    assert [one.filename for one in caught] == ["program of the user"]


def test_where_warnings_are_errors_a_message_is_printed_instead(unexpected_warnings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn("a message")
    assert unexpected_warnings == ["a message"]
    unexpected_warnings.clear()


@pytest.mark.parametrize("before", ["", "sys.stderr = None; ", "sys.stderr.close(); "])
def test_a_program_that_makes_warnings_errors_goes_on(before):
    program = f"import sys; {before}from monitorch.errors import warn; warn('a message'); sys.exit(7)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert (PRINTED in done.stderr + done.stdout) == ("close" not in before)


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


STREAMS = {"none": None, "closed": closed(), "ascii": io.TextIOWrapper(io.BytesIO(), encoding="ascii")}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_a_watch_goes_on_whatever_becomes_of_what_it_prints(stream, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", stream)
    model = torch.nn.Linear(2, 1)
    with monitorch.watch(model, folder=tmp_path / "läufe", run="größe", tick_every=2) as watched:
        for _ in range(4):  # there are hints about the run, the loss and the optimizer
            model(torch.ones(3, 2)).sum().backward()
            watched.step()
        assert watched.inspector.state.step == 4


def test_a_letter_that_the_terminal_lacks_is_replaced(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    say("größe")
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue().split() == [b"gr??e"]


def test_nothing_warns_in_another_way():
    others = [
        file.name
        for file in Path(monitorch.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "warn" and file.name != "errors.py"
    ]
    assert not others
