"""What all symptoms share: how a finding is made, and since when something lasts."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ...store.types import layer_text
from ..finding import Evidence, Finding, Remedy
from ..history import Mask, Numbers, Steps, Table
from ..run import FEWEST, RunView, rolling_median

MOST_POINTS = 60
"""How many numbers of a series are kept as evidence."""

MOST_NAMED = 3
"""A finding about more layers names the first one, and counts the others."""


@dataclass(frozen=True)
class Symptom(ABC):
    """One thing that may be wrong in a run: a subclass says how it is recognised.

    Fields are thresholds: ``DeadUnits(share=0.7)`` replaces the default one. ``needs`` names the signals without which
    nothing can be said; ``needs_start`` tells that the first steps must have been watched.

    >>> @dataclass(frozen=True)
    ... class HugeLoss(Symptom):
    ...     id: ClassVar[str] = "huge_loss"
    ...     limit: float = 1e6
    ...
    ...     def look(self, run):
    ...         if run.last_loss > self.limit:
    ...             yield self.finding(None, run.step, run.step, "warning", "The loss is huge.", Remedy("Look at it."))
    """

    id: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    needs_start: ClassVar[bool] = False

    @abstractmethod
    def look(self, run: RunView) -> Iterable[Finding]:
        """What is found in a run."""

    def is_possible(self, run: RunView) -> bool:
        """Whether the run has what this symptom needs."""
        return run.has(*self.needs) and (run.saw_the_start or not self.needs_start)

    def finding(
        self,
        layer: str | None,
        step: int,
        detected_at: int,
        severity: str,
        explanation: str,
        remedy: Remedy,
        *evidence: Evidence,
        resolved_at: int | None = None,
        confidence: float = 0.9,
    ) -> Finding:
        """A finding of this symptom; one that is over becomes "info"."""
        severity = severity if resolved_at is None else "info"
        return Finding(
            self.id,
            severity,
            layer,
            int(step),
            int(detected_at),
            explanation,
            remedy,
            evidence,
            confidence=confidence,
            resolved_at=resolved_at,
        )


class Stretch(NamedTuple):
    """When something began, when that was certain, and when it ended."""

    place: int
    step: int
    detected_at: int
    resolved_at: int | None


def stretches(
    steps: Steps, values: Numbers, is_bad: Mask, was_bad: Mask, still_bad: Mask | None = None
) -> list[Stretch]:
    """When each column was bad for the first time, and whether it still is; only those that ever were.

    Args:
        steps: the step of each row.
        values: the numbers, ``[step, place]``; NaN where there is none.
        is_bad: which numbers are bad, each by itself.
        was_bad: where enough of them were bad to be sure.
        still_bad: where it is not over yet, if ending takes more than not being bad.

    >>> bad = np.array([[0], [1], [1], [1], [0]], bool)
    >>> sure = np.array([[0], [0], [0], [1], [0]], bool)
    >>> stretches(np.array([1, 2, 3, 4, 5]), bad.astype(float), bad, sure)
    [Stretch(place=0, step=2, detected_at=4, resolved_at=5)]
    """
    found = []
    still_bad = is_bad if still_bad is None else still_bad
    for place in np.flatnonzero(was_bad.any(axis=0)).tolist():
        rows = np.flatnonzero(np.isfinite(values[:, place]) | was_bad[:, place])
        sure, bad, still = was_bad[rows, place], is_bad[rows, place], still_bad[rows, place]
        first, last = np.flatnonzero(sure)[[0, -1]]
        onset = first
        while onset > 0 and (bad[onset - 1] or bad[max(onset - 2, 0)]):
            onset -= 1
        onset += int(np.argmax(bad[onset : first + 1]))
        fine = np.flatnonzero(~still[last:])
        is_over = last < len(rows) - 1 and len(fine) > 0
        end = int(last + fine[0]) if is_over else 0
        while end > 0 and not still[end - 1]:  # it was over before that was certain
            end -= 1
        resolved = int(steps[rows[end]]) if is_over else None
        found.append(Stretch(place, int(steps[rows[onset]]), int(steps[rows[first]]), resolved))
    return found


def lasting(table: Table, is_bad: Mask, window: int = FEWEST, still_bad: Mask | None = None) -> list[Stretch]:
    """The same where more than half of ``window`` observed steps must be bad."""
    share = np.where(np.isfinite(table.values), is_bad, np.nan)
    known = np.isfinite(rolling_median(table.values, window))
    sure = known & (rolling_median(share, window) > 0.5)
    return stretches(table.steps, table.values, is_bad, sure, still_bad)


def in_a_row(is_bad: Mask, count: int) -> Mask:
    """Where the last ``count`` numbers of a column were all bad.

    >>> in_a_row(np.array([[True], [True], [False], [True]]), 2)[:, 0].tolist()
    [False, True, False, False]
    """
    bad_so_far = np.cumsum(is_bad, axis=0)
    before = np.vstack([np.zeros((count, is_bad.shape[1]), np.int64), bad_so_far])[: len(is_bad)]
    found: Mask = bad_so_far - before == count
    return found


def during(table: Table, found: Stretch) -> Numbers:
    """The newest numbers of a place while it was bad, as many as a median needs.

    >>> table = Table(np.array([1, 2, 3]), ("a",), np.array([[0.9], [0.8], [0.1]]))
    >>> during(table, Stretch(place=0, step=1, detected_at=1, resolved_at=3))
    array([0.9, 0.8])
    """
    end = table.steps[-1] + 1 if found.resolved_at is None else found.resolved_at
    lasted = (table.steps >= found.step) & (table.steps < end)
    values = table.values[lasted, found.place]
    newest: Numbers = values[np.isfinite(values)][-FEWEST:]
    return newest


def evidence(table: Table, signal: str, place: str, threshold: float | None = None) -> Evidence:
    """The numbers of one place, thinned out for display."""
    return points(signal, place, table.steps, table.column(place), threshold)


def points(
    signal: str, place: str | None, steps: Steps | Sequence[int], values: Numbers, threshold: float | None = None
) -> Evidence:
    """The same from arrays."""
    known = np.flatnonzero(np.isfinite(values))
    chosen = known[np.linspace(0, len(known) - 1, min(MOST_POINTS, len(known))).astype(int)] if len(known) else known
    numbers = tuple(float(f"{value:.5g}") for value in values[chosen])
    return Evidence(signal, place, tuple(int(step) for step in np.asarray(steps)[chosen]), numbers, threshold)


def short(value: float) -> str:
    """A number for a sentence.

    >>> short(0.000012345), short(1234.5), short(0.5)
    ('1.2e-05', '1,234', '0.5')
    """
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def share(value: float) -> str:
    """A share for a sentence.

    >>> share(0.5), share(0.9996)
    ('50 %', '100 %')
    """
    return f"{100 * value:.0f} %"


def part_of(value: float) -> str:
    """How much of something, before that: as a share, or as a factor where it is much more than all of it.

    >>> part_of(0.21), part_of(2.2e6)
    ('21 % of', '2.2e+06 times')
    """
    return f"{share(value)} of" if value <= 10 else f"{short(value)} times"


def others(names: Sequence[str]) -> str:
    """The names after the first, at the end of a sentence about that one."""
    return "" if len(names) < 2 else f", as in {_rest(names)}"


def together(names: Sequence[str]) -> str:
    """All names, for a sentence.

    >>> together(["fc1", "fc2", "head"]), together(["fc1", "fc2", "fc3", "head"])
    ('fc1, fc2 and head', 'fc1 and 3 other layers')
    """
    return _listed(names) if len(names) <= MOST_NAMED else f"{layer_text(names[0])} and {_rest(names)}"


def _rest(names: Sequence[str]) -> str:
    return _listed(names[1:]) if len(names) <= MOST_NAMED else f"{len(names) - 1} other layers"


def _listed(names: Sequence[str]) -> str:
    *first, last = map(layer_text, names)
    return f"{', '.join(first)} and {last}" if first else last
