"""The tracker interface: what can be written, and how often."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import MissingExtraError, OptionError
from ..frame import Counts, Numbers


class TrackedRun(NamedTuple):
    """The run that is tracked.

    Args:
        name: its name.
        config: the settings of the program, as JSON data.
    """

    name: str
    config: Mapping[str, Any]


class Histogram(NamedTuple):
    """How many elements of a tensor are between two neighbours of ``edges``."""

    edges: Numbers
    counts: Counts

    @property
    def filled(self) -> "Histogram":
        """Without the empty bins at both ends.

        >>> Histogram(np.arange(6.0), np.array([0, 0, 3, 0, 0])).filled
        Histogram(edges=array([2., 3.]), counts=array([3]))
        """
        there = np.flatnonzero(self.counts)
        first, last = (int(there[0]), int(there[-1]) + 1) if len(there) else (0, 1)
        return Histogram(self.edges[first : last + 1], self.counts[first:last])

    def even(self, bins: int) -> "Histogram":
        """The same with bins of equal width, as if the elements of each bin were evenly spread over it.

        >>> Histogram(np.array([0.0, 1.0, 4.0]), np.array([1, 6])).even(2).counts
        array([3, 4])
        """
        edges, counts = self.filled
        finite = np.clip(edges, np.finfo(np.float32).min, np.finfo(np.float32).max)
        even = np.linspace(finite[0], finite[-1], bins + 1)
        below = np.interp(even, finite, np.concatenate([[0], np.cumsum(counts)]))
        return Histogram(even, np.diff(np.round(below)).astype(np.int64))


class Tracker(ABC):
    """Writes numbers to where another program shows them. Subclass it for a tracker of your own.

    The thread that trains calls :meth:`start` and :meth:`close`; a background thread calls the others. Any method may
    raise an error: it becomes one warning, and training goes on.

    Args:
        every_ticks: write every this many ticks.
        every_seconds: write at most once in this many seconds.
        include: a regular expression: numbers of layers whose name it is found in are written one by one, beside the
            digest. A name is such as ``parameter_gradient_norm/encoder.0.weight/mean``.
        histograms: a regular expression for the histograms of Distribution lenses, whose names are such as
            ``gradient_distribution/encoder.0.weight``; None for none. They take longer than numbers, so they are
            written only as often as fits into a twentieth of the time.
        report: whether to add the report of a stored run at its end.
        prefix: what all names begin with.
    """

    def __init__(
        self,
        *,
        every_ticks: int = 1,
        every_seconds: float = 0.0,
        include: str | None = None,
        histograms: str | None = "",
        report: bool = True,
        prefix: str = "monitorch/",
    ) -> None:
        if not isinstance(every_ticks, int) or isinstance(every_ticks, bool) or every_ticks < 1:
            raise OptionError(f"every_ticks={every_ticks!r} must be a whole number, at least 1")
        is_number = isinstance(every_seconds, (int, float)) and not isinstance(every_seconds, bool)
        if not is_number or not 0 <= every_seconds < math.inf:
            raise OptionError(f"every_seconds={every_seconds!r} must be a number of seconds, at least 0")
        self.every_ticks, self.every_seconds = every_ticks, float(every_seconds)
        self.include, self.shown_histograms = _pattern("include", include), _pattern("histograms", histograms)
        self.report, self.prefix = report, prefix

    @abstractmethod
    def start(self, run: TrackedRun) -> None:
        """Use what the user has started there already, else start it."""

    @abstractmethod
    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write numbers of one training step, all at once; some may be NaN or infinite."""

    def histograms(self, step: int, histograms: Mapping[str, Histogram]) -> None:  # noqa: B027
        """Write histograms; by default none, for trackers that have no such thing."""

    @abstractmethod
    def alert(self, step: int, title: str, text: str, severity: str) -> None:
        """Say that something is wrong; the severity is ``"warning"`` or ``"error"``."""

    @abstractmethod
    def note(self, facts: Mapping[str, str]) -> None:
        """Write facts about the run as text, such as where it is stored."""

    def artifact(self, path: Path) -> None:  # noqa: B027
        """Keep a file; by default nothing, for trackers that keep none."""

    @abstractmethod
    def close(self, status: str) -> None:
        """Finish what :meth:`start` started, but not a run that the user started; ``"finished"`` or ``"crashed"``."""


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of all trackers among these, and the others.

    >>> split_options({"include": "attn", "project": "gpt"})
    ({'include': 'attn'}, {'project': 'gpt'})
    """
    known = signature(Tracker.__init__).parameters
    return ({k: v for k, v in given.items() if k in known}, {k: v for k, v in given.items() if k not in known})


def package(name: str, needed_by: object) -> Any:
    """Import the package of a tracker; the extra has the same name."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError.needed_by(type(needed_by).__name__, name, extra=name) from error


def check_call(function: Any, *args: Any, **options: Any) -> None:
    """Refuse options that a function does not take now, rather than when it is called."""
    try:
        signature(function).bind(*args, **options)
    except TypeError as error:
        raise OptionError(f"{function.__module__}.{function.__qualname__}: {error}") from None


def _pattern(option: str, text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise OptionError(f"{option}={text!r} must be a regular expression: {error}") from None
