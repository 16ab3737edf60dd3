"""Reports errors of monitoring itself: once, and without disturbing training."""

from collections import Counter
from typing import Protocol

from ..errors import TrainingStopped, warn

_told_by_nobody = Counter[str]()
"""Causes reported while no inspector was known."""

LONGEST = 300
"""Characters of an error's text that are shown."""


class Reports(Protocol):
    """The state of an inspector, which says what to do with errors."""

    @property
    def on_error(self) -> str:
        """``"warn"`` or ``"raise"``."""


def tell(state: Reports | None, what: str, error: Exception) -> None:
    """Warn that ``what`` has failed, once per cause; with ``on_error="raise"`` raise the error instead.

    Everything that torch or a training loop calls catches its errors and reports them here. A stop that the user asked
    for with ``stop_on`` is passed on.
    """
    if isinstance(error, TrainingStopped) or getattr(state, "on_error", "warn") == "raise":
        raise error
    cause = cause_of(error)
    if is_news(state, cause):
        warn(f"{what} failed: {cause}. Training goes on; on_error='raise' shows where it happened")


def cause_of(error: Exception) -> str:
    """What went wrong, in one line; torch's messages may be pages long."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first if len(first) <= LONGEST else first[:LONGEST] + '...'}"


def is_news(state: Reports | None, cause: str) -> bool:
    """Whether the inspector has not reported this cause yet."""
    told = getattr(state, "told", None)
    if told is None:
        told = _told_by_nobody
    told[cause] += 1
    return bool(told[cause] == 1)
