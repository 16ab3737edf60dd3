"""What the signals that are no lens show of a healthy and of a sick run."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bench.diagnosis.case import Case, vectors
from bench.diagnosis.cases import CASES
from bench.diagnosis.program import Data, Program
from monitorch import Watch

from .drawing import draw
from .lenses import LensPicture, renew, statistics_of
from .runs import pair

PAGES = Path(__file__).parents[1] / "gallery" / "signals"
LATE, WAIT = 120, 0.04
"""From which step on data come late, and by how many seconds."""


def come_late(step: int, x: Tensor, y: Tensor) -> Data:
    """A batch that must be waited for."""
    if step >= LATE:
        time.sleep(WAIT)
    return x, y


WIDE = Case(
    "late-data",
    "",
    partial(vectors, widths=(20, 512, 512, 512, 10), batch=256, steps=240),
    lambda program: setattr(program, "alter", come_late),
)


def peak() -> float:
    """The operations per second of a large product of matrices, on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    size, matrix, seconds = 1024, torch.ones(1024, 1024), []
    for _ in range(10):
        begin = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - begin)
    torch.set_num_threads(threads)
    return 2 * size**3 / min(seconds)


def probe(watched: Watch, program: Program, step: int) -> None:
    """Ask now and then how good the model is at one batch, in both modes."""
    if (step + 1) % 20 == 0:
        report = watched.probe(*(data[:128] for data in program.train), noise=False)
        watched.log({"train mode": report.train_loss, "eval mode": report.eval_loss})


PICTURES = {
    "model_flops": LensPicture(
        WIDE,
        "data are there in time",
        f"they come late after step {LATE}",
        "utilisation",
        statistics_of("run", "run", utilisation="Logged/model FLOP/s utilisation mean"),
    ),
    "probe": LensPicture(
        CASES["slow-statistics"],
        "BatchNorm with momentum 0.1",
        "with momentum 0.0001",
        "loss of one batch",
        statistics_of("run", "run", train_mode="Logged/train mode mean", eval_mode="Logged/eval mode mean"),
        shows_validation=True,
    ),
}
"""By the page of the signal."""


def make(name: str, runs: Path, pages: Path = PAGES) -> None:
    """The picture of a signal, and on its page what is in it, in words."""
    picture = PICTURES[name]
    folder = runs / "signals"
    if name == "probe":
        found = pair(picture.case.symptom, picture.case, folder, each=probe)
    else:
        found = pair("", picture.case, folder, peak_flops=peak(), every=10, tick_every=10)
    (pages / "pictures").mkdir(exist_ok=True)
    (pages / "pictures" / f"{name}.svg").write_text(draw(picture, found), encoding="utf-8")
    page = pages / f"{name}.md"
    page.write_text(renew(page.read_text(encoding="utf-8"), name, PICTURES), encoding="utf-8")
