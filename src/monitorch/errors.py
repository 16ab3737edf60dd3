"""Every error and warning that monitorch raises on purpose.

Some errors also inherit a built-in class: code written for earlier releases catches those.
"""

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

LONGEST_VALUE = 60
"""Characters of a value in a message."""


class MonitorchError(Exception):
    """Root of all errors of this package."""


class OptionError(MonitorchError, ValueError, AttributeError):
    """An option has a value that is not allowed."""

    @classmethod
    def unknown(cls, option: str, value: Any, choices: Iterable[Any]) -> "OptionError":
        """The error for a value outside a closed list of choices."""
        return cls(f"{option}={value!r} is unknown; choose from {', '.join(map(repr, choices))}")


class LifecycleError(MonitorchError, RuntimeError, AssertionError):
    """A method was called at the wrong time, such as detaching twice."""


class UnsupportedModelError(MonitorchError, TypeError):
    """The model, or its wrapper, is of a kind that cannot be observed correctly."""


class ExchangeError(MonitorchError, RuntimeError):
    """The numbers of other processes could not be collected."""


class TrainingStopped(MonitorchError):  # noqa: N818  # it was asked for
    """Raised between two steps because of an event, if ``stop_on`` asks for it; no other error of ours ends training.

    Args:
        message: which event, where and when.
        event: the event, a :class:`monitorch.store.Event`.
    """

    def __init__(self, message: str, event: Any = None) -> None:
        super().__init__(message)
        self.event = event


class MissingExtraError(MonitorchError, ImportError):
    """An optional package is needed; the message holds the pip line."""

    @classmethod
    def needed_by(cls, what: str, package: str, extra: str) -> "MissingExtraError":
        """The error for a feature whose package is not installed."""
        return cls(f"{what} needs the package {package!r}: pip install 'monitorch[{extra}]'")


class OldTorchError(MonitorchError, ImportError):
    """The installed torch is too old; the message holds the pip line."""


class RecordingError(MonitorchError, ValueError):
    """A file is not a recording that this version can play."""


class StoreError(MonitorchError, ValueError):
    """A file or folder is not a run that this version can read or continue."""


class NoRunError(StoreError, OptionError):
    """There is no run where one was looked for, or it has no such rank."""


class UnreadableRunError(StoreError):
    """The file of a run cannot be read.

    Args:
        path: the file.
        state: why, in a word: ``"empty"``, ``"newer"``, ``"foreign"``, ``"locked"``, ``"damaged"`` or ``"unreadable"``.
        reason: why, in a sentence that begins after the name of the file.
    """

    def __init__(self, path: Any, state: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.state, self.reason = state, reason

    @classmethod
    def newer(cls, path: Any, version: str, known: int) -> "UnreadableRunError":
        """The error for a file in a format of a later release."""
        cure = f"this one reads up to {known}): upgrade monitorch to read it"
        return cls(path, "newer", f"was written by a newer monitorch ({version}, {cure}")


class SkippedSample(MonitorchError, ValueError):  # noqa: N818  # nothing went wrong
    """A tensor has nothing to measure: skip this sample, and keep watching the layer."""


class MonitorchWarning(UserWarning):
    """Something could not be observed; training is not affected."""


def short_repr(value: Any) -> str:
    """A value that the user has given, for a message: on one line, however large it is.

    >>> short_repr([1.0] * 1000)[-8:]
    '.0, 1.0…'
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def warn(message: str) -> None:
    """Issue a MonitorchWarning at the user's line, and never raise.

    Where warnings are errors (``python -W error``) a raised warning would end the user's training: then the message is
    printed to stderr instead.

    Args:
        message: what the user has to know, and what to do.
    """
    if _this_thread.texts is not None:
        _this_thread.texts.append(message)
        return
    try:
        warnings.warn(message, MonitorchWarning, stacklevel=_users_line())
    except Exception:
        _print(message)


def say(line: str) -> None:
    """Print a line for the user, and never raise: there may be no stream, or one that lacks the letters of a name."""
    with contextlib.suppress(Exception):
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        print(line.encode(encoding, "replace").decode(encoding))


class _ThisThread(threading.local):
    texts: list[str] | None = None
    """Where warnings of this thread go instead."""


_this_thread = _ThisThread()


@contextlib.contextmanager
def kept_warnings() -> Iterator[list[str]]:
    """Collect this thread's warnings inside the block: they must be shown by the user's own thread."""
    before, _this_thread.texts = _this_thread.texts, []
    try:
        yield _this_thread.texts
    finally:
        _this_thread.texts = before


def _users_line() -> int:
    """The ``stacklevel`` with which a warning of the caller points to the user's code: not to ours, nor to torch's."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (__package__, "torch"):
        frame, level = frame.f_back, level + 1
    return level


def _print(message: str) -> None:
    with contextlib.suppress(Exception):  # there may be no stream to print to
        print(f"monitorch: {message}", file=sys.stderr)
