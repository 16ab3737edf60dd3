import argparse
import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import numpy as np
import pytest
from rich.console import Console

from monitorch import cli
from monitorch.cli.top_screen import Screen
from monitorch.dashboard.windows import WindowRequest, blocks, planes
from monitorch.diagnosis import Finding, Remedy
from monitorch.store import Writer, open_run

STEADY = np.tile([1.0, 1.1, 0.9, 1.0], 20)
SECONDS = 60


def top(folder, capsys, *arguments):
    assert cli.main(["top", "--runs", str(folder), *arguments]) == 0
    return capsys.readouterr().out


def layers_of(text):
    """The rows of the table of layers: ``layer -> the rest of its line``."""
    _, _, body = text.partition("reason")
    lines = body.split("\n\n")[0].splitlines()[2:]
    return {line.split()[0]: line for line in lines}


def with_end(values, *end):
    return np.concatenate([values[: len(values) - len(end)], end])


@pytest.fixture
def folder(write_run):
    gradients = {
        "calm": STEADY * 0.1,
        "loud": STEADY * 5,
        "jump": with_end(STEADY, 40.0),
        "nan": with_end(STEADY, np.nan, 1.0),
        "[red]": STEADY * 2,
    }
    rates = dict.fromkeys(gradients, STEADY * 0.5) | {"calm": with_end(STEADY * 0.5, 0.0)}
    whole = {"run": {"Loss/loss mean": {"run": np.linspace(2, 1, 80)}}}
    lenses = {"Gradients": {"Norm/mean": gradients, "Norm/max": gradients}, "Rates": {"Rate/mean": rates}}
    return write_run("first", lenses | whole, every=10).parent


def test_worst_layers_come_first_with_the_reason(folder, capsys):
    rows = layers_of(top(folder, capsys))
    assert list(rows) == ["nan", "calm", "jump", "loud", "[red]"]
    assert rows["nan"].split("  ")[-1].strip() == "1 not finite in 1 of 60 ticks"
    assert rows["calm"].rstrip().endswith("fell to 0")
    assert rows["jump"].rstrip().endswith("40x its median")
    assert "Rate" in rows["calm"]
    assert "Norm" in rows["jump"]


def test_a_model_that_is_a_single_layer_has_a_name_in_the_list(write_run, capsys):
    folder = write_run("linear", {"Outputs": {"Norm/mean": {"": STEADY, "weight": STEADY * 0.5}}}).parent
    assert [line.split("  ")[0] for line in layers_of(top(folder, capsys)).values()] == ["the model", "weight"]


@pytest.fixture
def facts_folder(write_run):
    """A calm run whose checksums change at every step, as checksums do."""
    sums = {"fc.weight": with_end(STEADY * 1e7, 3.0), "fc2.weight": STEADY * 1e7}
    lenses = {
        "NonFinite": {"Non-Finite Gradients/max": dict.fromkeys(sums, STEADY * 0)},
        "Facts": {"Parameter Checksum/last": sums},
        "Gradients": {"Norm/mean": dict.fromkeys(sums, STEADY)},
    }
    return write_run("first", lenses, every=10).parent


def test_a_checksum_is_no_size_and_does_not_jump(facts_folder, capsys):
    rows = json.loads(top(facts_folder, capsys, "--json"))["layers"]
    assert [(row["layer"], row["statistic"]) for row in rows] == [
        ("fc.weight", "Norm/mean"),
        ("fc2.weight", "Norm/mean"),
    ]
    assert "Checksum" not in top(facts_folder, capsys)
    asked = json.loads(top(facts_folder, capsys, "--json", "--statistic", "checksum"))["layers"]
    assert [(row["statistic"], row["reason"]) for row in asked] == [("Parameter Checksum/last", "")] * 2


def test_a_calm_layer_shows_a_number_that_is_not_zero(facts_folder, capsys):
    rows = layers_of(top(facts_folder, capsys))
    assert rows.keys() == {"fc.weight", "fc2.weight"}
    assert all("Norm" in line and "Non-Finite" not in line for line in rows.values())


def test_head_shows_the_run_and_its_losses(folder, capsys):
    lines = top(folder, capsys).splitlines()
    assert lines[0].startswith("first  finished  step 800  80 ticks")
    name, value, curve = lines[2].split()
    assert (name, value, curve[0], curve[-1]) == ("loss", "1.000", "█", "▁")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sort", "name"], ["[red]", "calm", "jump", "loud", "nan"]),
        (["--sort", "depth"], ["calm", "loud", "jump", "nan", "[red]"]),
        (["--sort", "value", "--lens", "grad"], ["jump", "loud", "[red]", "nan", "calm"]),
        (["--layers", "^(calm|loud)$", "--lens", "grad"], ["loud", "calm"]),
        (["--statistic", "max"], ["nan", "jump", "loud", "[red]", "calm"]),
    ],
)
def test_order_and_filters(folder, capsys, arguments, expected):
    assert list(layers_of(top(folder, capsys, *arguments))) == expected


def test_losses_come_first_in_the_head_and_each_name_once(write_run, capsys):
    names = [f"Logged/metric{number} mean" for number in range(6)]
    names = ["Loss/train_loss mean", "Logged/train_loss mean", *names, "Loss/val_loss mean"]
    values = {name: {"run": [float(place), float(place)]} for place, name in enumerate(names)}
    top = ["top", str(write_run("many", {"run": values})), "--once"]
    assert cli.main(top) == 0
    head = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:8]]
    assert head[:3] == [["train_loss", "0"], ["val_loss", "8.000"], ["metric0", "2.000"]]
    assert [line[0] for line in head] == ["train_loss", "val_loss", *(f"metric{number}" for number in range(4))]


def test_json_has_the_same_order_and_the_recent_numbers(folder, capsys):
    facts = json.loads(top(folder, capsys, "--json"))
    assert [row["layer"] for row in facts["layers"]] == ["nan", "calm", "jump", "loud", "[red]"]
    worst = facts["layers"][0]
    assert (worst["lens"], worst["statistic"], worst["step"]) == ("Gradients", "Norm/mean", 800)
    assert (worst["reason"], worst["value"]) == ("1 not finite in 1 of 60 ticks", 1.0)
    assert len(worst["recent"]) == 60
    assert worst["recent"][-2:] == ["nan", 1.0]
    assert [row["statistic"] for row in facts["run"]] == ["Loss/loss mean"]


def test_at_most_forty_layers_are_shown(write_run, capsys):
    folder = write_run("wide", {"L": {"x": {f"layer{number}": STEADY for number in range(70)}}}).parent
    text = top(folder, capsys)
    assert len(layers_of(text)) == 40
    assert "40 of 70 layers, worst first" in text


def test_warnings_are_shown_and_news_are_not(tmp_path, capsys):
    with Writer(tmp_path / "first") as writer:
        writer.event(3, "told")
        writer.event(4, "warned", "warning", layer="fc\x1b")
    text = top(tmp_path, capsys, "--once")
    assert "no numbers yet" in text
    assert r"fc\x1b" in text
    assert "told" not in text


def test_a_layer_that_was_not_measured_lately_has_its_last_number(write_run, capsys):
    lens = {"x": {"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 3.0]}}
    folder = write_run("first", {"L": lens}).parent
    with Writer(folder / "first", resume=True) as writer:
        writer.put("L", 9, [[4.0]], layers=["a"], statistics=["x"])
    rows = {row["layer"]: row for row in json.loads(top(folder, capsys, "--json"))["layers"]}
    assert (rows["a"]["step"], rows["a"]["value"]) == (9, 4.0)
    assert (rows["b"]["step"], rows["b"]["value"]) == (3, 3.0)
    assert rows["b"]["recent"][-1] is None


class Terminal:
    """A command on a terminal of 24 lines and 100 columns."""

    def __init__(self, *command):
        self._end, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), other)
        self.process = subprocess.Popen([sys.executable, *command], env=environment, start_new_session=True, **streams)
        os.close(other)

    def read_until(self, text):
        """What is written until ``text`` is; None stands for the end of the process."""
        seen, deadline = b"", time.monotonic() + SECONDS
        while text is None or text not in seen:
            ready, _, _ = select.select([self._end], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{text!r} never came, only {seen[-2000:]!r}"
            try:
                piece = os.read(self._end, 65536)
            except OSError:  # the other end is closed
                piece = b""
            if not piece:
                assert text is None, f"{text!r} never came, only {seen[-2000:]!r}"
                break
            seen += piece
        return seen

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._end)


@pytest.mark.xdist_group("processes")
def test_on_a_terminal_it_follows_the_run_until_interrupted(tmp_path):
    with Writer(tmp_path / "live") as writer:
        for step in range(20):
            writer.put("L", step, [[1.0, 2.0]], layers=["first", "[red]"], statistics=["Norm/mean"])
        writer.flush()
        terminal = Terminal("-m", "monitorch", "top", str(tmp_path / "live"))
        try:
            screen = terminal.read_until(b"Ctrl-C leaves")
            assert b"\x1b[?1049h" in screen  # a screen of its own
            assert b"[red]" in screen
            writer.put("L", 20, [[np.nan, 2.0]], layers=["first", "[red]"], statistics=["Norm/mean"])
            writer.flush()
            terminal.read_until(b"1 not finite in 1 of 21")
            terminal.process.send_signal(signal.SIGINT)
            rest = terminal.read_until(None)
            assert terminal.process.wait(SECONDS) == 0
            assert b"\x1b[?1049l" in rest  # and the old one back
            assert b"Traceback" not in rest
        finally:
            terminal.close()


BIASES = [f"transformer.blocks.{block}.attn.{part}.bias" for block in range(8) for part in ("qkv", "proj")]


@pytest.mark.parametrize("columns", ["40", "60", "80", "120"])
def test_layers_are_told_apart_on_a_narrow_screen(write_run, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    folder = write_run("first", {"L": {"Weight Gradient Norm/mean": dict.fromkeys(BIASES, STEADY)}}).parent
    lines = top(folder, capsys).splitlines()
    rows = [line for line in lines if "bias" in line]
    assert len({row.split()[0] for row in rows}) == len(BIASES)
    assert max(map(len, lines)) <= int(columns)


@pytest.mark.parametrize("height", [14, 20, 30])
@pytest.mark.parametrize(("width", "lines_per_row"), [(60, 2), (160, 1)])
@pytest.mark.parametrize("facts", [{}, {"overhead": 12.345, "overhead_at_least": True}], ids=str)
def test_a_screen_is_no_higher_than_the_terminal(write_run, height, width, lines_per_row, facts):
    norms = dict.fromkeys(BIASES, STEADY) | {BIASES[0]: with_end(STEADY, np.nan)}
    folder = write_run("first", {"L": {"Weight Gradient Norm/mean": norms}}, meta=facts)
    options = argparse.Namespace(lens=None, statistic=None, layers=None, sort="worst")
    target = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    with open_run(folder) as run:
        drawn = target.render_lines(Screen(run, options, target).draw(height))
    text = "\n".join("".join(segment.text for segment in line) for line in drawn)
    shown = text.count("Weight Gradient Norm")
    assert len(drawn) <= height
    assert ("1234.5 % overhead" in text) == bool(facts)
    # around the rows: title, headings, rule, how many layers there are, and two empty lines
    wraps = bool(facts) and width == 60
    assert shown == min((height - 5 - wraps - lines_per_row) // lines_per_row, len(BIASES))
    assert f"{shown} of 16 layers" in text


def test_not_finite_is_the_same_number_wherever_it_is_told(write_run, capsys, tmp_path):
    """Samples that were NaN or infinite, summed over the ticks that are shown."""
    counts, norms = [0, 21, 0, 40, 7, 0, 15, *[0] * 13], np.ones(20)
    norms[[3, 6]] = np.nan
    lens = {"Norm/mean": {"fc": norms, "fine": np.ones(20)}, "Norm/nonfinite": {"fc": counts, "fine": [0] * 20}}
    path = write_run("first", {"L": lens})
    facts = json.loads(top(path.parent, capsys, "--json"))["layers"][0]
    assert (facts["layer"], facts["nonfinite"], facts["broken"], facts["ticks"]) == ("fc", 83, 4, 20)
    assert facts["reason"] == "83 not finite in 4 of 20 ticks"
    assert cli.main(["export", str(path), "--to", "csv", "-o", "-", "--worst", "0"]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    assert sum(float(row[-1]) for row in rows if row[-2] == "nonfinite") == 83
    with open_run(path) as run:
        for resolution in (1, 3, 20):
            (block,) = blocks(run, WindowRequest((("L", "Norm/mean"),), resolution=resolution))
            assert planes(block)["nonfinite"].sum(axis=1).tolist() == [83, 0]
        assert "NaN !15" in "".join(capture_show(path, capsys, step=6))


def capture_show(path, capsys, step):
    """What ``show`` prints of a run that ends at a step."""
    with Writer(path, resume=True, resume_step=step + 1):
        pass
    assert cli.main(["show", str(path)]) == 0
    return capsys.readouterr().out


def found(symptom, severity, layer, step, **more):
    return Finding(symptom, severity, layer, step, step + 5, "It is so, and it stays so.", Remedy(""), **more).to_json()


FOUND = [
    found("no_update", "warning", "late", 30),
    found("no_update", "warning", "early", 20),
    found("dead_units", "error", "dead", 700),
    found("no_gradient", "warning", "dead", 3),
    found("oscillation", "info", "calm", 1),
    found("loss_spike", "error", "healed", 2, resolved_at=3),
    found("input_scale", "warning", None, 0),
]


@pytest.fixture
def diagnosed(write_run):
    names = ["calm", "healed", "late", "early.weight", "dead", "jump"]
    norms = dict.fromkeys(names, STEADY) | {"jump": with_end(STEADY, 40.0)}
    return write_run("sick", {"L": {"Norm/mean": norms}}, every=10, meta={"findings": FOUND}).parent


def test_layers_in_which_something_lasts_come_first(diagnosed, capsys):
    rows = layers_of(top(diagnosed, capsys))
    assert list(rows) == ["dead", "early.weight", "late", "jump", "calm", "healed"]
    reasons = [line.split("  ")[-1].strip() for line in rows.values()]
    assert reasons[0].startswith("dead units since step 700; no gra")  # a narrow screen cuts the rest
    assert reasons[1:4] == ["no update since step 20", "no update since step 30", "40x its median"]
    assert not {"", *reasons[:4]} & set(map(str.strip, reasons[4:])) - {""}
    facts = json.loads(top(diagnosed, capsys, "--json"))
    assert [row["findings"] for row in facts["layers"]][:4] == [
        ["dead_units:dead", "no_gradient:dead"],
        ["no_update:early"],
        ["no_update:late"],
        [],
    ]
    told = "dead units since step 700; no gradient since step 3"
    assert [row["reason"] for row in facts["layers"]][:4] == [told, *reasons[1:4]]
    assert (facts["verdict"], facts["findings"]) == ("5 problems since step 0", FOUND)


def test_another_order_is_kept(diagnosed, capsys):
    rows = layers_of(top(diagnosed, capsys, "--sort", "depth"))
    assert list(rows) == ["calm", "healed", "late", "early.weight", "dead", "jump"]
    assert "dead units since step 700; no gra" in rows["dead"]


def test_the_screen_begins_with_the_verdict_and_three_causes(diagnosed, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = top(diagnosed, capsys).splitlines()
    assert lines[1:7] == [
        "5 problems since step 0",
        "warning: no update in late since step 30: It is so, and it …",
        "warning: no update in early since step 20: It is so, and it…"[:59] + "…",
        "error: dead units in dead since step 700: It is so, and it …",
        "3 more findings: monitorch check",
        "",
    ]


@pytest.mark.parametrize("height", [14, 20, 30])
@pytest.mark.parametrize("width", [60, 160])
def test_a_screen_with_findings_is_no_higher_than_the_terminal(diagnosed, height, width):
    options = argparse.Namespace(lens=None, statistic=None, layers=None, sort="worst")
    target = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    with open_run(diagnosed / "sick") as run:
        drawn = target.render_lines(Screen(run, options, target).draw(height))
    assert len(drawn) <= height
    assert "".join(segment.text for segment in drawn[1]).startswith("5 problems")
