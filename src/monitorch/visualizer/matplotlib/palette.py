"""Which colour a line or a band has; the same name looks the same in every plot."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...statistic import band_of, curve_and_line

COLUMN_BACKGROUNDS = ((1.0, 1.0, 1.0), (0.95, 0.92, 0.9))
SHARE_COLOURS = ("cornflowerblue", "royalblue")
NONFINITE_COLOUR = "red"
NONPOSITIVE_COLOUR = "dimgrey"

_LINE_COLOURS = MappingProxyType(
    {
        "median": "blue",
        "mean": "steelblue",
        "activation_rate": "blue",
        "worst activation_rate": "blue",
        "death_rate": "orange",
        "rows_used": "green",
        "worst death_rate": "orange",
        "train_loss": "blue",
        "val_loss": "orange",
        "train_accuracy": "steelblue",
        "val_accuracy": "red",
    }
)
_BAND_COLOURS = MappingProxyType(
    {"min-max": "grey", "Q1-Q3": "blue", "std": "steelblue"},
)
_VALIDATION_BAND_COLOURS = MappingProxyType(
    {"min-max": "bisque", "Q1-Q3": "orange", "std": "sandybrown"},
)
_BANDS_OF = MappingProxyType({"": _BAND_COLOURS, "train_loss": _BAND_COLOURS, "val_loss": _VALIDATION_BAND_COLOURS})

# several aggregations of one quantity share its colour and differ in the dashes
_DASHES = ("-", "--", ":", "-.")
_UNNAMED_COLOURS = tuple(f"C{index}" for index in (2, 4, 6, 8, 9, 3, 5, 7, 0, 1))


@dataclass(frozen=True)
class LineStyle:
    """Colour and dashes of a line, as matplotlib spells them."""

    colour: str
    dashes: str


def line_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """A style per line, such that no two lines of the first forty look the same."""
    colour_of: dict[str, str] = {}
    uses: Counter[str] = Counter()
    styles = {}
    for name in names:
        quantity = curve_and_line(name)[0] or name
        named = _LINE_COLOURS.get(name) or _LINE_COLOURS.get(quantity)
        colour = named or colour_of.setdefault(quantity, _UNNAMED_COLOURS[len(colour_of) % len(_UNNAMED_COLOURS)])
        styles[name] = LineStyle(colour, _DASHES[uses[colour] % len(_DASHES)])
        uses[colour] += 1
    return styles


def band_colour(edges: tuple[str, str], lines: Mapping[str, LineStyle]) -> str:
    """The named colour of a band, or else the colour of the line that it surrounds."""
    (quantity, low), (_, high) = map(curve_and_line, edges)
    named = _BANDS_OF[quantity].get(band_of(low, high)) if quantity in _BANDS_OF else None
    surrounded = (style.colour for name, style in lines.items() if quantity and curve_and_line(name)[0] == quantity)
    return named or next(surrounded, "grey")
