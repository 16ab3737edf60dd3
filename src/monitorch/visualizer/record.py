"""The form of every number after a tick: a plain value with its tag, layer and time."""

from typing import NamedTuple

from ..statistic import Role, Side, label


class Record(NamedTuple):
    """One number of one layer at one tick.

    ``tag`` is the plot (``"Weight Gradient Norm"``), ``statistic`` the line or band edge in it (``"mean"``, or
    ``"train_loss mean"`` if the plot has several curves), ``nonfinite`` how many samples behind the number were NaN or
    infinite and left out of it.

    The other fields say what the statistic is: its ``curve``, its ``role`` (``"line"``, ``"edge"`` or ``"share"``), for
    an edge its ``band`` and its ``side``, the ``limits`` of possible numbers, and the standard ``error`` of an
    estimate: absolute where there are limits, else as a share of it. A share has the tag as its layer, and the layer as
    its statistic.
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
    role: Role = "line"
    curve: str = ""
    band: str = ""
    side: Side = ""
    limits: tuple[float, float] | None = None
    error: float | None = None

    @property
    def line(self) -> str:
        """The statistic without the name of its curve."""
        return self.statistic[len(self.curve) + 1 :] if self.curve else self.statistic

    @property
    def label(self) -> str:
        """The statistic without the word "mean", which goes without saying."""
        return label(self.curve, self.line)
