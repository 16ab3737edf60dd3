"""Train a small language model on the CPU, watched by all lenses, and show what they saw."""

import argparse
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from ..errors import MissingExtraError, MonitorchError
from .arguments import whole_number
from .wording import command

if TYPE_CHECKING:
    from ..visualizer import MatplotlibVisualizer, StoreVisualizer
    from .demo_data import Corpus
    from .demo_training import Outcome

_STEPS, _STEPS_OF_FAULT = 100, 150
_LARGEST_SEED = 2**63 - 1
_WIDEST_PROSE = 100
FAULTS = {
    "dead_units": "the biases of a layer are so low that its ReLUs never fire",
    "vanishing_gradient": "it is made of eight sigmoid layers",
    "exploding_signal": "the weights of its eight layers begin far too large",
    "nonfinite": "a layer divides its output by its length, which is 0 for one of the samples",
    "no_update": "the optimizer was not given one of its layers",
    "stale_gradient": "nobody calls zero_grad()",
    "step_too_large": "the learning rate is 300 times too high",
    "no_progress": "the learning rate is 1,000 times too low",
    "input_scale": "some of its inputs are in the hundreds, and the others are near 1",
    "output_loss_mismatch": "it ends in a Softmax, and its loss applies another one",
}
"""What can be made to go wrong: the symptom that is found, and the cause in words."""

_NEXT = """\
Next, around a training loop of your own (more in the README):
    with monitorch.watch(model, optimizer, loss_fn=loss_fn):
        train(model, optimizer)"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--out", type=Path, default="monitorch_demo", metavar="DIR", help="folder for the figures (%(default)s)")
    add("--steps", type=whole_number(1), metavar="N", help=f"steps to train ({_STEPS}; {_STEPS_OF_FAULT} with a fault)")
    add("--seed", type=whole_number(0, _LARGEST_SEED), default=0, metavar="N", help="seed of the random numbers (0)")
    add("--quiet", action="store_true", help="print only the paths of the written files")
    faults = f"train a small network that goes wrong, and say what was found: {', '.join(FAULTS)}"
    add("--fault", choices=FAULTS, metavar="NAME", help=faults)
    add("--ui", action="store_true", help="show the run in a browser while it trains, until Ctrl-C")


def run(options: argparse.Namespace) -> None:
    """Check everything that can fail, train, draw, print."""
    if os.environ.get("MONITORCH", "").lower() == "off":
        raise MonitorchError("the demo has nothing to show while MONITORCH=off is set")
    (_run_healthy if options.fault is None else _run_fault)(options)


def _run_healthy(options: argparse.Namespace) -> None:
    from ..visualizer import StoreVisualizer

    _check_writable(options.out)
    from .demo_data import python_help
    from .demo_training import train

    runs, steps = options.out / "runs", options.steps or _STEPS
    corpus, figures, store = python_help(), _figures(), StoreVisualizer(runs)
    width = shutil.get_terminal_size((80, 24)).columns
    if not options.quiet:
        size, kinds = len(corpus.ids), len(corpus.vocabulary)
        text = f"A small transformer learns to continue Python's help texts: {size:,} characters of {kinds} kinds."
        print(textwrap.fill(text, min(width, _WIDEST_PROSE)), flush=True)
    with _page(runs) if options.ui else nullcontext() as page:
        with store, _progress(steps, options.quiet) as tell:
            outcome = train(corpus, steps, options.seed, [*figures, store], tell)
            tell(steps, "drawing the figures")
            paths = [path for one in figures for path in one.save(options.out / "figure.png")]
        paths = [*paths, _save_report(store, options.out / "report.html")]
        folder = _folder_of(store, runs)
        shown = "\n".join(map(str, [*paths, folder]))
        print(shown if options.quiet else _summary(corpus, outcome, steps, paths, folder, width), flush=True)
        if page is not None:
            page.wait()


def _run_fault(options: argparse.Namespace) -> None:
    _check_writable(options.out)
    from .demo_faults import faulty
    from .finding_sheet import print_findings
    from .screen import open_console

    runs, steps, console = options.out / "runs", options.steps or _STEPS_OF_FAULT, open_console()
    if not options.quiet:
        text = f"A small network learns classes of made-up points, but {FAULTS[options.fault]}."
        print(textwrap.fill(text, min(console.width, _WIDEST_PROSE)), flush=True)
    with _page(runs) if options.ui else nullcontext() as page:
        with _progress(steps, options.quiet) as tell:
            watched = faulty(options.fault, options.seed).run(steps, options.fault, runs, tell)
        folder = _folder_of(watched.visualizer, runs)
        if options.quiet:
            print(folder, flush=True)
        else:
            console.print()
            print_findings(console, watched.findings, everything=True)
            print(f"\n{_look(folder)}\n\n{_NEXT}", flush=True)
        if page is not None:
            page.wait()


@contextmanager
def _progress(steps: int, quiet: bool) -> "Iterator[Callable[[int, str], None]]":
    """Show the progress of training on a terminal: the step, and a few words."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}")
    is_shown = console.is_terminal and not quiet
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not is_shown) as progress:
        task = progress.add_task("", total=steps)
        yield lambda step, words: progress.update(task, completed=step, description=words)


@contextmanager
def _page(runs: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """The live page in another process, which ends with the block."""
    runs.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen([sys.executable, "-m", "monitorch", "ui", str(runs)])
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _figures() -> "list[MatplotlibVisualizer]":
    """What draws them; nothing where matplotlib is not installed: the report shows more."""
    try:
        from ..visualizer import MatplotlibVisualizer
    except MissingExtraError:
        return []
    import matplotlib as mpl

    mpl.use("Agg")  # figures go to files, and there may be no screen
    return [MatplotlibVisualizer()]


def _save_report(store: "StoreVisualizer", path: Path) -> Path:
    from ..dashboard import report_html

    assert store.path is not None  # it exists once numbers are written
    return report_html(store.path).save(path)


def _summary(corpus: "Corpus", outcome: "Outcome", steps: int, paths: Sequence[Path], folder: Path, width: int) -> str:
    from .summary import EXPLANATION, summary_text  # not at the top: every command loads this file

    prose = min(width, _WIDEST_PROSE)
    result = (
        f"Held-out loss: {outcome.first_loss:.3f} -> {outcome.last_loss:.3f} in {steps} steps "
        f"(guessing by frequency: {corpus.entropy:.3f})"
    )
    table = summary_text(outcome.records, outcome.layers, width)
    written = "\n".join(f"    {path}" for path in paths)
    figures = f"The same and more, over time (the report opens in any browser):\n{written}"
    if len(paths) == 1:
        figures += "\nFor figures, too: pip install 'monitorch[matplotlib]'"
    parts = [textwrap.fill(result, prose), table, textwrap.fill(EXPLANATION, prose), figures, _look(folder), _NEXT]
    return "\n\n".join(parts)


def _folder_of(store: "StoreVisualizer", runs: Path) -> Path:
    """The folder of the run, as short as ``--out`` was given."""
    if store.path is None:
        raise MonitorchError(f"the run could not be stored in {runs}: make room there, or choose another --out")
    return runs / store.path.name


def _look(run: Path) -> str:
    """What to do with the run."""
    return f"All numbers are in a run:\n    {command()} check {run}\n    {command()} ui {run.parent}"


def _check_writable(folder: Path) -> None:
    """Fail now rather than after the training."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise MonitorchError(f"cannot write into {folder}: {error.strerror}") from error
