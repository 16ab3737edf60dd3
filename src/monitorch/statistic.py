"""What a number of a layer is: its plot, its curve and its line, and how to draw it.

Everything that shows numbers reads these fields. A name, such as ``"Loss/train_loss -σ"``, is read only where a number
comes with nothing but its name: in files of earlier versions, and in what users hand over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

Role: TypeAlias = Literal["line", "edge", "share", "count"]
"""A line, an edge of a band around one, a layer's share of a whole, or how many samples were not finite."""

Side: TypeAlias = Literal["", "low", "high"]

BANDS = {"std": ("-σ", "+σ"), "Q1-Q3": ("Q1", "Q3"), "min-max": ("min", "max")}
"""The names of bands, and of their two edges."""

AGGREGATIONS = ("mean", "std", "min", "max", "median", "Q1", "Q2", "Q3", "IQR")
"""The names of single numbers for many samples."""

SHARE = "share"
NONFINITE = "nonfinite"

_USUAL = ("mean", "value")  # what a line is if its label does not say so
_EDGES: dict[str, tuple[str, Side]] = {
    **{low: (band, "low") for band, (low, _) in BANDS.items()},
    **{high: (band, "high") for band, (_, high) in BANDS.items()},
}
_LINES = {*AGGREGATIONS, *_EDGES, "value", SHARE, NONFINITE}


class _Fields(NamedTuple):
    name: str
    scale: Literal["linear", "log"]
    limits: tuple[float, float] | None
    tag: str
    curve: str
    line: str
    role: Role
    band: str
    side: Side
    error: float | None


class Statistic(_Fields):
    """One number of each layer.

    >>> Statistic("Loss/train_loss -σ").parts
    ('Loss', 'train_loss', '-σ', 'edge', 'std', 'low')
    >>> Statistic.of("Weight Norm", "mean", scale="log").name
    'Weight Norm/mean'

    Args:
        name: the full name: ``<tag>/<line>``, or ``<tag>/<curve> <line>``. If nothing else is given, the other fields
            are read from it.
        scale: ``"linear"`` or ``"log"``, the vertical axis.
        limits: the smallest and the largest possible number, if there are any.
        tag: the plot.
        curve: which of its curves; empty if a plot has only one.
        line: what it is of that curve: ``"mean"``, ``"-σ"``, ``"death_rate"``.
        role: ``"line"``, ``"edge"`` of a band, ``"share"`` of a whole, or ``"count"`` of samples that were not finite.
        band: the band that an edge belongs to: ``"std"``, ``"Q1-Q3"``, ``"min-max"``.
        side: which end of the band it is, ``"low"`` or ``"high"``.
        error: the standard error of the number, if it is an estimate for some layer: absolute where there are limits,
            such as of a correlation, else as a share of the number, such as of a norm.
    """

    __slots__ = ()

    def __new__(
        cls,
        name: str,
        scale: Literal["linear", "log"] = "linear",
        limits: tuple[float, float] | None = None,
        tag: str = "",
        curve: str = "",
        line: str | None = None,
        role: Role = "line",
        band: str = "",
        side: Side = "",
        error: float | None = None,
    ) -> Statistic:
        """Read from the name what is not given."""
        if line is None:
            tag, curve, line = _names_in(name)
            role, band, side = _part(line)
        return super().__new__(cls, name, scale, limits, tag, curve, line, role, band, side, error)

    @classmethod
    def of(
        cls,
        tag: str,
        line: str,
        curve: str = "",
        *,
        role: Role = "line",
        band: str = "",
        side: Side = "",
        scale: Literal["linear", "log"] = "linear",
        limits: tuple[float, float] | None = None,
        error: float | None = None,
    ) -> Statistic:
        """The same from its single names."""
        own = f"{curve} {line}" if curve else line
        return cls(f"{tag}/{own}" if tag else own, scale, limits, tag, curve, line, role, band, side, error)

    @property
    def parts(self) -> tuple[str, str, str, Role, str, Side]:
        """Tag, curve, line, role, band and side."""
        return self.tag, self.curve, self.line, self.role, self.band, self.side

    @property
    def text(self) -> str:
        """Its name inside of the plot: curve and line."""
        return f"{self.curve} {self.line}" if self.curve else self.line

    @property
    def label(self) -> str:
        """A short label: without the parts that are implied.

        >>> Statistic("Loss/train_loss mean").label, Statistic("Norm/mean").label, Statistic("Norm/max").label
        ('train_loss', '', 'max')
        """
        return label(self.curve, self.line, self.role)

    @property
    def title(self) -> str:
        """Its full name, without the parts that are implied.

        >>> Statistic("Loss/train_loss mean").title, Statistic("Norm/mean").title, Statistic("mean").title
        ('Loss/train_loss', 'Norm', 'mean')
        """
        return "/".join(part for part in (self.tag, self.label) if part) or self.name

    @property
    def error_text(self) -> str:
        """The error as text; empty if the number is exact.

        >>> Statistic("Norm/mean", error=0.011).error_text, Statistic("Cos", limits=(-1, 1), error=0.022).error_text
        ('± 1.1 %', '± 0.022')
        """
        if self.error is None:
            return ""
        return f"± {self.error:.2g}" if self.limits else f"± {100 * self.error:.2g} %"

    @property
    def plot(self) -> str:
        """The tag and, if it has several, the curve."""
        return f"{self.tag}/{self.curve}" if self.curve else self.tag

    def nonfinite(self) -> Statistic:
        """The statistic that counts the samples of this one that were not finite."""
        return Statistic.of(self.tag, NONFINITE, self.curve, role="count")

    def nonfinite_among(self, known: Iterable[Statistic]) -> Statistic | None:
        """The same, if it is among the known ones; None for a count itself.

        Files of earlier versions have one count for all curves of a tag.
        """
        counts = {one.curve: one for one in known if one.role == "count" and one.tag == self.tag}
        return None if self.role == "count" else counts.get(self.curve) or counts.get("")


def label(curve: str, line: str, role: str = "line") -> str:
    """The label of a line inside its plot, without the default aggregation."""
    return " ".join(part for part in (curve, "" if line in _USUAL or role == SHARE else line) if part)


def edges(band: str) -> tuple[tuple[str, Side], tuple[str, Side]]:
    """The names of a band's edges, and which ends they are."""
    low, high = BANDS[band]
    return (low, "low"), (high, "high")


def band_of(low: str, high: str) -> str:
    """The band with these two edges; another one is called after both.

    >>> band_of("-σ", "+σ"), band_of("5 %", "95 %")
    ('std', '5 %-95 %')
    """
    return next((band for band, names in BANDS.items() if names == (low, high)), f"{low}-{high}")


def curve_and_line(name: str) -> tuple[str, str]:
    """The two parts of a name inside a plot; a curve may have any name.

    >>> curve_and_line("train/acc mean"), curve_and_line("mean"), curve_and_line("my loss")
    (('train/acc', 'mean'), ('', 'mean'), ('', 'my loss'))
    """
    curve, _, line = name.rpartition(" ")
    return (curve, line) if curve and line in _LINES else ("", name)


def _names_in(name: str) -> tuple[str, str, str]:
    """Tag, curve and line of a name; joined again, they are the name."""
    tag, _, rest = name.rpartition("/")
    return tag, *curve_and_line(rest if tag else name)


def _part(line: str) -> tuple[Role, str, Side]:
    if line in _EDGES:
        return "edge", *_EDGES[line]
    return "count" if line == NONFINITE else "share" if line == SHARE else "line", "", ""
