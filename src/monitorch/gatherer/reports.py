"""What is said when monitoring itself goes wrong: once, and never in the way of training."""

from collections import Counter
from typing import Any

from ..errors import warn

_told_by_nobody = Counter[str]()
"""What was told where no inspector is known."""

LONGEST = 300
"""Characters of an error's text that are told."""


def tell(state: Any, what: str, error: Exception) -> None:
    """Say that ``what`` has failed, once per cause; with ``on_error="raise"`` the error goes on instead.

    Everything that torch or a training loop calls catches what goes wrong inside and brings it here.
    """
    if getattr(state, "on_error", "warn") == "raise":
        raise error
    cause = cause_of(error)
    if is_news(state, cause):
        warn(f"{what} failed: {cause}. Training goes on; on_error='raise' shows where it happened", stacklevel=3)


def cause_of(error: Exception) -> str:
    """What went wrong, in a line; messages of torch may be pages long."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first if len(first) <= LONGEST else first[:LONGEST] + '...'}"


def is_news(state: Any, cause: str) -> bool:
    """Whether an inspector has not told of this cause yet."""
    told = getattr(state, "told", None)
    if told is None:
        told = _told_by_nobody
    told[cause] += 1
    return bool(told[cause] == 1)
