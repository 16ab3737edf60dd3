"""Words in figures: how large, how long, and where they fit."""

from typing import Any

from matplotlib.axes import Axes

SMALL_TEXT = 7.0
POINTS_PER_INCH = 72

# size of the average character, relative to the font size
_CHARACTER_WIDTH, _BOLD_CHARACTER_WIDTH = 0.6, 0.7


def shorten(name: str, at_most: int) -> str:
    """Cut out the middle: beginning and end tell layers apart.

    >>> shorten("encoder.layers.11.self_attn.out_proj", 19)
    'encoder.l….out_proj'
    """
    if len(name) <= at_most:
        return name
    kept = max(2, at_most - 1)
    return f"{name[: kept - kept // 2]}…{name[-(kept // 2) :]}"


def fit(text: str, width: float, size: float) -> str:
    """The text, shortened to this many inches."""
    return shorten(text, int(width * POINTS_PER_INCH / (_CHARACTER_WIDTH * size)))


def bold_size(text: str, width: float, largest: float) -> float:
    """The font size at which bold text fits into this many inches, if it stays readable."""
    return max(SMALL_TEXT, min(largest, width * POINTS_PER_INCH / (_BOLD_CHARACTER_WIDTH * max(1, len(text)))))


def inches(axes: Axes) -> tuple[float, float]:
    """Width and height of the plot area."""
    return axes.bbox.width / axes.figure.dpi, axes.bbox.height / axes.figure.dpi


AS_IT_IS: dict[str, Any] = {"parse_math": False}
"""For names: a dollar in one is no formula. A wrong formula would be an error when the figure is drawn."""


def say(axes: Axes, text: str) -> None:
    """Write into the middle of an empty plot."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="grey", style="italic")
