"""Makes pictures of the documents anew: ``python -m docs.pictures``, or only those that are named.

Small programs are trained for this, each once healthy and once with a fault, which takes a few minutes on one core.
What the pages of symptoms take from the code, such as thresholds, is renewed too.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from . import dashboard, lenses, signals, tutorial
from .drawing import draw
from .pages import PAGES, renew
from .recipes import PICTURES
from .runs import pair

OF_PAGE = {"dashboard": dashboard.make, "tutorial": tutorial.make}
NAMES = (*PICTURES, *lenses.PICTURES, *signals.PICTURES, *OF_PAGE)


def make(name: str, runs: Path, pages: Path = PAGES) -> None:
    """The picture of a symptom, and what its page takes from the code and from this run."""
    picture = PICTURES[name]
    found = pair(name, picture.case, runs)
    (pages / "pictures").mkdir(exist_ok=True)
    (pages / "pictures" / f"{name}.svg").write_text(draw(picture, found), encoding="utf-8")
    page = pages / f"{name}.md"
    page.write_text(renew(page.read_text(encoding="utf-8"), picture, found.finding), encoding="utf-8")


def maker(name: str) -> Callable[[Path], None]:
    """What makes the picture, or pictures, of this name, with the folder of runs."""
    if name in OF_PAGE:
        return OF_PAGE[name]
    for kind in (lenses, signals):
        if name in kind.PICTURES:
            return partial(kind.make, name)
    return partial(make, name)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make them, and show how far it is."""
    parser = argparse.ArgumentParser(prog="python -m docs.pictures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"pictures to make: {', '.join(NAMES)}; all")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="keep runs here; those that are there are drawn again")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"there is no picture {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    columns = TextColumn("{task.description:26}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with tempfile.TemporaryDirectory() if options.runs is None else nullcontext(options.runs) as runs:
        names = options.names or NAMES
        with Progress(*columns) as progress:
            bar = progress.add_task("", total=len(names))
            for name in names:
                progress.update(bar, description=name)
                maker(name)(Path(runs))
                progress.advance(bar)


if __name__ == "__main__":
    main()
