"""The exception that ended a run, as text that is safe to keep and to show."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

MOST_LINES = 30
LONGEST_MESSAGE = 2_000
LONGEST_LINE = 300
_PACKAGES = ("site-packages", "dist-packages")


class Failure(NamedTuple):
    """What ended a run: the type and message of an exception, and the last lines of its traceback.

    Files are named without the folders above the package or the working directory: runs and reports are shared.
    """

    type: str
    message: str
    traceback: tuple[str, ...]

    @property
    def line(self) -> str:
        r"""Type and message on one line.

        >>> Failure("ValueError", "too large\n(max 3)", ()).line, Failure("KeyboardInterrupt", "", ()).line
        ('ValueError: too large (max 3)', 'KeyboardInterrupt')
        """
        message = " ".join(self.message.split())
        return f"{self.type}: {message}" if message else self.type

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception; works even if it cannot be turned into text."""
        name = type(error).__qualname__
        try:
            message = str(error)[:LONGEST_MESSAGE]
        except Exception:
            message = ""
        try:
            lines = _lines(error)
        except Exception:
            lines = ()
        return cls(name, message, lines)

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Failure | None:
        """The failure in the facts of a run; None if there is none, as in files of earlier versions."""
        kept = meta.get("error")
        if not isinstance(kept, Mapping):
            return None
        lines = kept.get("traceback")
        texts = tuple(map(str, lines)) if isinstance(lines, list | tuple) else ()
        return cls(str(kept.get("type", "")), str(kept.get("message", "")), texts)


def _lines(error: BaseException) -> tuple[str, ...]:
    described = traceback.TracebackException.from_exception(error, limit=-MOST_LINES, compact=True)
    _shorten_paths(described)
    lines = [line.rstrip()[:LONGEST_LINE] for piece in described.format() for line in piece.splitlines()]
    return tuple(line for line in lines if line)[-MOST_LINES:]


def _shorten_paths(described: traceback.TracebackException | None) -> None:
    if described is None:
        return
    for frame in described.stack:
        frame.filename = _short_path(frame.filename)
    for other in (described.__cause__, described.__context__, *(getattr(described, "exceptions", None) or ())):
        _shorten_paths(other)


def _short_path(name: str) -> str:
    """``torch/nn/modules/linear.py`` of a package, ``src/train.py`` below the working directory, else the file."""
    path = Path(name)
    if not path.is_absolute():
        return name
    for folder in _PACKAGES:
        if folder in path.parts:
            return "/".join(path.parts[path.parts.index(folder) + 1 :])
    try:
        here = Path.cwd()
        return path.relative_to(here).as_posix() if len(here.parts) > 1 else path.name
    except (ValueError, OSError):
        return path.name
