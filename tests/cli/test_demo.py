import contextlib
import io
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from itertools import pairwise

import matplotlib.image
import pytest

from monitorch.cli import main
from monitorch.cli.demo_model import CharacterTransformer
from monitorch.cli.wording import command
from monitorch.diagnosis import findings_of, verdict
from monitorch.errors import MonitorchWarning
from monitorch.store import list_runs, open_run
from monitorch.visualizer.matplotlib import composing, visualizer
from tests.marks import slow

STEPS = 3
pytestmark = pytest.mark.xdist_group("demo")  # it trains once for all


@pytest.fixture(scope="module", params=[slice(1), slow(slice(None))], ids=["one page", "all pages"])
def demo(request, tmp_path_factory):
    """One run: folder, standard output and standard error; pages of figures take seconds each."""
    folder = tmp_path_factory.mktemp("demo") / "new" / "folder"
    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        patch.setenv("COLUMNS", "100")
        patch.setattr(visualizer, "plan", lambda *given: composing.plan(*given)[request.param])
        assert main(["demo", "--steps", str(STEPS), "--out", str(folder)]) == 0
    return folder, output.getvalue(), errors.getvalue()


@pytest.fixture(scope="module")
def table(demo):
    """Layer -> its cells, an empty one being an empty string."""
    lines = demo[1].splitlines()
    names = next(line for line in lines if line.startswith("layer"))
    ends = [match.end() for match in re.finditer(r"[^\s|]+", names)]  # all cells end where their heading does
    begin = lines.index(names) + 2
    rows = lines[begin : lines.index("", begin)]
    return {row.split()[0]: [row[a:b].split("|")[-1].strip() for a, b in pairwise(ends)] for row in rows}


def test_figures_show_something(demo):
    folder, output, _ = demo
    paths = sorted(folder.glob("*.png"))
    assert folder / "figure.png" in paths
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
        pixels = matplotlib.image.imread(path)
        assert min(pixels.shape[:2]) > 500
        assert 0.02 < (pixels[..., :3].min(axis=-1) < 0.8).mean() < 0.9
        assert f"    {path}\n" in output


def test_a_run_and_a_report_are_left(demo):
    folder, output, _ = demo
    (run,) = list_runs(folder / "runs")
    assert (run.status, run.ticks, run.last_step) == ("finished", STEPS, STEPS)
    assert f"    {command()} ui {folder / 'runs'}\n" in output
    assert f"    {command()} check {folder / 'runs' / run.name}\n" in output
    with open_run(folder / "runs" / run.name) as stored:
        assert verdict(findings_of(stored.meta)) == "healthy"  # and not "not diagnosed"
    assert f"    {folder / 'report.html'}\n" in output
    assert run.name in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_is_there_while_the_demo_trains_and_ends_with_it(tmp_path):
    command = [sys.executable, "-m", "monitorch", "demo", "--steps", "1", "--ui", "--quiet", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        lines = iter(demo.stdout.readline, "")
        url = next(match[0] for line in lines if (match := re.search(r"http://\S+", line)))
        while str(tmp_path / "runs") not in next(lines):
            pass  # until all is written
        with urllib.request.urlopen(url) as answer:
            assert b"monitorch" in answer.read()
        demo.send_signal(signal.SIGINT)
        assert demo.wait() == 130
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url)


def test_table_lists_every_layer_in_the_order_of_the_model(table):
    model = CharacterTransformer(vocabulary=10, context=10)
    assert list(table) == [name for name, module in model.named_modules() if not list(module.children())]


def test_numbers_of_the_table_are_those_recorded(table, training):
    _, ticks = training(STEPS)
    last = ticks[STEPS]
    tags = ["Weight Norm", "Weight Cond", "Weight Gradient Norm", "Weight Update Ratio", "Output Norm"]
    lines = [(tag, "mean") for tag in tags]
    lines.insert(3, ("Weight Gradient Activation", "rows_used"))
    lines += [("Output Activations", "activation_rate"), ("Output Activations", "death_rate")]
    for layer, cells in table.items():
        recorded = [last.get((tag, layer, line)) for tag, line in lines]
        assert [cell == "" for cell in cells] == [number is None for number in recorded]
        for cell, number in zip(cells, recorded, strict=True):
            if cell.endswith("%"):
                assert float(cell[:-1]) / 100 == pytest.approx(number, abs=6e-4)
            elif cell:
                assert float(cell) == pytest.approx(number, rel=6e-4)


def test_output_fits_the_terminal(demo):
    folder, output, _ = demo
    assert max(len(line) for line in output.splitlines() if str(folder) not in line) <= 100


def test_report_tells_losses_and_what_to_do_next(demo, training):
    _, output, _ = demo
    outcome, _ = training(STEPS)
    assert f"{outcome.first_loss:.3f} -> {outcome.last_loss:.3f} in {STEPS} steps" in output
    assert "monitorch.watch(" in output
    assert "README" in output


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal_only_and_not_on_standard_output(demo, tmp_path, monkeypatch):
    _, output, errors = demo
    assert errors == ""
    assert "3/3" not in output
    terminal, elsewhere = io.StringIO(), io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", elsewhere)
    for variable, value in {"COLUMNS": "100", "TERM": "xterm"}.items():
        monkeypatch.setenv(variable, value)
    for variable in ("TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    assert main(["demo", "--steps", "2", "--out", str(tmp_path)]) == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert re.search(r"step +2/2 .*drawing the figures", shown)
    assert "2/2" not in elsewhere.getvalue()


@pytest.mark.slow
def test_quiet_run_in_a_process_without_a_screen(python, tmp_path):
    arguments = ["--steps", 1, "--out", tmp_path, "--quiet"]
    result = python("-m", "monitorch", "demo", *arguments, MPLBACKEND="TkAgg", DISPLAY="")
    assert (result.returncode, result.stderr) == (0, "")
    files = {path for path in tmp_path.iterdir() if path.is_file()}
    assert set(result.stdout.splitlines()) == {str(path) for path in (*files, *(tmp_path / "runs").iterdir())}


def test_without_matplotlib_there_are_no_figures_but_all_else(run_program, tmp_path):
    script = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class Hiding(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, *rest):\n"
        "        return None if name.partition('.')[0] == 'matplotlib' else super().find_spec(name, *rest)\n"
        "sys.meta_path = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]\n"
        "from monitorch.cli import main\n"
        "sys.exit(main(['demo', '--steps', '2', '--out', 'out']))"
    )
    result = run_program(script)
    assert (result.returncode, result.stderr) == (0, "")
    assert "    out/report.html\nFor figures, too: pip install 'monitorch[matplotlib]'\n" in result.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "runs"]


@pytest.mark.parametrize(("inside", "cause"), [("", "File exists"), ("folder", "Not a directory")])
def test_folder_that_cannot_be_written_is_told_before_training(tmp_path, capsys, inside, cause):
    file = tmp_path / "file"
    file.touch()
    assert main(["demo", "--out", str(file / inside)]) == 1
    assert capsys.readouterr() == ("", f"monitorch: error: cannot write into {file / inside}: {cause}\n")


def test_a_demo_whose_run_cannot_be_stored_says_so(tmp_path, capsys):
    (tmp_path / "runs").touch()
    with pytest.warns(MonitorchWarning, match="the run cannot be stored"):
        assert main(["demo", "--fault", "dead_units", "--steps", "2", "--quiet", "--out", str(tmp_path)]) == 1
    told = f"the run could not be stored in {tmp_path / 'runs'}: make room there, or choose another --out"
    assert capsys.readouterr().err == f"monitorch: error: {told}\n"


@pytest.mark.parametrize("fault", [[], ["--fault", "dead_units"]])
def test_demo_while_switched_off(monkeypatch, tmp_path, capsys, fault):
    monkeypatch.setenv("MONITORCH", "OFF")
    assert main(["demo", "--out", str(tmp_path), *fault]) == 1
    assert "MONITORCH=off is set" in capsys.readouterr().err


def test_interrupted_training_ends_with_one_line(tmp_path):
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell may have had it ignored
        "from monitorch.cli import main\n"
        "raise SystemExit(main(['demo', '--steps', '1000000', '--out', sys.argv[1]]))"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], **pipes) as process:
        process.stdout.readline()  # what is printed right before training begins
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "monitorch: interrupted\n")
    assert list(tmp_path.iterdir()) == []
