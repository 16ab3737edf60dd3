"""Facts as short text, safe to print."""

import shutil
import sys

from ..visualizer.names import printable
from ..visualizer.table import overhead_text

__all__ = ["age_text", "command", "count_text", "overhead_text", "printable", "size_text", "status_text"]

STALE_SECONDS = 10.0
"""A running run updates its heartbeat every two seconds; without one for this long, it may be gone."""


def command() -> str:
    """What to type to run this program here."""
    return "monitorch" if shutil.which("monitorch") else f"{sys.executable} -m monitorch"


def status_text(status: str, age: float) -> str:
    """The status, marked if a running run has had no heartbeat for too long."""
    return "stale" if status == "running" and age > STALE_SECONDS else status


def age_text(seconds: float) -> str:
    """A duration in its largest unit.

    >>> age_text(42), age_text(250), age_text(100_000)
    ('42 s', '4 min', '28 h')
    """
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:,.0f} d"


def size_text(size: float) -> str:
    """Bytes in their largest unit.

    >>> size_text(999), size_text(483_328), size_text(10.4e9)
    ('999 B', '483 kB', '10.4 GB')
    """
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def count_text(number: int, noun: str) -> str:
    """How many of something.

    >>> count_text(1, "run"), count_text(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
