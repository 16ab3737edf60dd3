"""The names of statistics: ``<tag>/<line>``, or ``<tag>/<curve> <line>`` if a tag has several curves.

``Weight Norm/mean`` is the mean of a layer's norms, ``Loss/train_loss mean`` that of the curve ``train_loss``. Some
lines belong to others: band edges, shares, and counts of non-finite samples.
"""

from collections.abc import Collection
from typing import NamedTuple

NONFINITE = "nonfinite"
SHARE = "share"
_EDGES = ("-σ", "+σ", "Q1", "Q3", "min", "max", SHARE, NONFINITE)
_LINES = (*_EDGES, "mean", "std", "median", "Q2", "IQR", "value")


class StatisticName(NamedTuple):
    """The parts of a name; ``curve`` is empty if a tag has only one."""

    tag: str
    curve: str
    line: str


def parse(statistic: str) -> StatisticName:
    """The parts of a name.

    >>> parse("Loss/train_loss mean"), parse("Weight Norm/-σ").line
    (StatisticName(tag='Loss', curve='train_loss', line='mean'), '-σ')
    """
    tag, _, rest = statistic.rpartition("/")
    curve, _, line = rest.rpartition(" ")
    return StatisticName(tag, curve, line) if line in _LINES else StatisticName(tag, "", rest)


def is_edge(statistic: str) -> bool:
    """Whether a statistic belongs to another one: a band edge, a share or a count.

    >>> is_edge("Output Norm/max"), is_edge("Output Norm/mean"), is_edge("Loss/argmax")
    (True, False, False)
    """
    return parse(statistic).line in _EDGES


def count_name(statistic: str) -> str:
    """The statistic that counts the non-finite samples of this one.

    >>> count_name("Weight Norm/mean"), count_name("Logged/learning rate mean")
    ('Weight Norm/nonfinite', 'Logged/learning rate nonfinite')
    """
    tag, curve, _ = parse(statistic)
    line = f"{curve} {NONFINITE}" if curve else NONFINITE
    return f"{tag}/{line}" if tag else line


def find_count(statistic: str, known: Collection[str]) -> str | None:
    """The same, if the lens has it; None if nothing was counted, or this one is the count itself.

    Files of earlier versions have one count for all curves of a tag.
    """
    if parse(statistic).line == NONFINITE:
        return None
    tag = parse(statistic).tag
    names = count_name(statistic), f"{tag}/{NONFINITE}" if tag else NONFINITE
    return next((name for name in names if name in known), None)
