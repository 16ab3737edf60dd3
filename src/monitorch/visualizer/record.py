"""The form of every number after a tick: a plain value with its tag, layer and time."""

from typing import NamedTuple


class Record(NamedTuple):
    """One number of one layer at one tick.

    ``tag`` is the plot (``"Weight Gradient Norm"``), ``statistic`` the line or band edge in it (``"mean"``),
    ``nonfinite`` how many samples behind the number were NaN or infinite and left out of it.
    """

    step: int
    epoch: int
    time: float
    rank: int
    lens: str
    layer: str
    tag: str
    statistic: str
    value: float
    nonfinite: int = 0
