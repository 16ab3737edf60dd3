"""Shows runs as HTML, such as in a notebook."""

import html
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import OptionError
from ..store import Run, open_run
from ..store.whole_file import whole_file
from .report import FEWEST_COLUMNS, page
from .windows import HIGHEST_RESOLUTION

AnyRun: TypeAlias = Run | str | os.PathLike[str]

NOTEBOOK_BYTES, NOTEBOOK_COLUMNS = 950_000, 200
_SMALLEST_BYTES = 400_000


class Report:
    """One HTML page that contains its numbers; in a notebook it is shown in a sandboxed frame.

    Args:
        html: the page.
        text: shown where HTML is not supported.
        height: height of the frame, in pixels.
    """

    def __init__(self, html: str, text: str, height: int = 720) -> None:
        self.html, self.text, self.height = html, text, height

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, in a folder that is made if needed."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_text(self.html, encoding="utf-8", errors="backslashreplace")  # names of files may not be Unicode
        return path

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        frame = (
            f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(self.html)}" '
            f'style="width: 100%; height: {self.height}px; border: 0" title="{html.escape(self.text)}"></iframe>'
        )
        return {"text/html": frame, "text/plain": self.text}


def report_html(*runs: AnyRun, columns: int = NOTEBOOK_COLUMNS, max_bytes: int = NOTEBOOK_BYTES) -> Report:
    """A page of one or more runs; a notebook displays it, and it can be saved as a file.

    Args:
        *runs: folders, or open runs; the first is shown, the others can be compared with it.
        columns: the most points in time; numbers in between become mean, minimum and maximum.
        max_bytes: the largest size of the page; columns are reduced to fit.

    >>> import tempfile
    >>> from monitorch.store import Writer
    >>> folder = tempfile.mkdtemp() + "/first"
    >>> with Writer(folder) as writer:
    ...     _ = writer.put("Norm", 1, [[1, 2]], layers=["fc1", "fc2"], statistics=["mean"])
    >>> report_html(folder)
    first: finished at step 1, 2 layers
    """
    if not runs:
        raise OptionError("report_html takes at least one run: the path of its folder, or what open_run has returned")
    if not FEWEST_COLUMNS <= columns <= HIGHEST_RESOLUTION:
        raise OptionError(f"columns={columns!r} must be a whole number from {FEWEST_COLUMNS} to {HIGHEST_RESOLUTION}")
    if max_bytes < _SMALLEST_BYTES:
        raise OptionError(f"max_bytes={max_bytes!r} is too small: the page itself takes about {_SMALLEST_BYTES}")
    with ExitStack() as stack:
        opened = list(_opened(runs, stack))
        text = "; ".join(map(_line, opened))
        return Report(page(opened, columns, max_bytes, f"{opened[0].path.parent.name} · monitorch"), text)


def _opened(runs: Sequence[AnyRun], stack: ExitStack) -> Iterator[Run]:
    for run in runs:
        yield run if isinstance(run, Run) else stack.enter_context(open_run(run))


def _line(run: Run) -> str:
    where = "no numbers yet" if run.last_step is None else f"at step {run.last_step}"
    why = f" ({run.error.line})" if run.error else ""
    return f"{run.path.parent.name}: {run.status}{why} {where}, {len(run.layers)} layers"
