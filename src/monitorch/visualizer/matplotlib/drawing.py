"""Draws the numbers of one layer into one plot."""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from ..abstract_visualizer import TagAttributes, TagType
from .history import Curves, Numbers
from .palette import NONFINITE_COLOUR, NONPOSITIVE_COLOUR, LineStyle, band_colour
from .shares import draw_shares
from .text import SMALL_TEXT, say

_ALPHA = 0.2
_LEAST_HEIGHT = 1e-6  # how far apart the limits of a logarithmic axis are at least, as a share of them
_MANY_EPOCHS = 500


def draw(axes: Axes, tag: TagAttributes, curves: Curves, styles: Mapping[str, LineStyle]) -> None:
    """Draw lines, bands or shares, and say what could not be drawn."""
    epochs, values = _all_points(curves)
    floor = -math.inf
    if tag.type is TagType.RELATIONS:
        draw_shares(axes, curves.lines)
    else:
        if tag.logy:
            axes.set_yscale("log", base=10)
            floor = np.min(values, where=np.isfinite(values) & (values > 0), initial=math.inf)
        _draw_bands(axes, curves, styles, floor)
        _draw_lines(axes, curves, styles, floor, filled=tag.type is TagType.PROBABILITY)
    _set_limits(axes, tag)
    missing, _ = curves.nonfinite.points()
    kinds = {"NaN": bool(np.isnan(values).any()), "Inf": bool(np.isinf(values).any())}
    kinds["NaN or Inf left out"] = not any(kinds.values())
    text = ", ".join(kind for kind, seen in kinds.items() if seen)
    _mark(axes, np.concatenate([epochs[~np.isfinite(values)], missing]), text, NONFINITE_COLOUR)
    if not np.isfinite(values).any():
        say(axes, "no finite values")


def _all_points(curves: Curves) -> tuple[Numbers, Numbers]:
    edges = [edge for band in curves.bands.values() for edge in band]
    points = [series.points() for series in (*curves.lines.values(), *edges)]
    return np.concatenate([epochs for epochs, _ in points]), np.concatenate([values for _, values in points])


def _draw_lines(axes: Axes, curves: Curves, styles: Mapping[str, LineStyle], floor: float, *, filled: bool) -> None:
    """Draw lines, with gaps where there is no number or, on a logarithmic axis, none above the lower limit."""
    for name, series in curves.lines.items():
        epochs, values = series.points()
        finite = np.isfinite(values)
        drawable = finite & (values >= floor)
        alone = _isolated(drawable)
        axes.plot(
            epochs,
            np.where(drawable, values, np.nan),
            label=name,
            color=styles[name].colour,
            linestyle=styles[name].dashes,
            linewidth=1.2 if len(epochs) < _MANY_EPOCHS else 0.7,
            marker="o" if alone.any() else "",
            markersize=3.5,
            markevery=alone,
        )
        _mark(axes, epochs[finite & ~drawable], "≤ 0", NONPOSITIVE_COLOUR)
        if filled:
            _fill(axes, epochs, np.zeros_like(values), values, styles[name].colour, floor)


def _draw_bands(axes: Axes, curves: Curves, styles: Mapping[str, LineStyle], floor: float) -> None:
    for edges, (lower, upper) in curves.bands.items():
        (epochs, low), (_, high) = lower.points(), upper.points()
        _fill(axes, epochs, low, high, band_colour(edges, styles), floor, label=" -- ".join(edges))


def _fill(
    axes: Axes, epochs: Numbers, low: Numbers, high: Numbers, colour: str, floor: float, label: str | None = None
) -> None:
    """Fill an area down to the lower limit of the axis."""
    drawable = np.isfinite(low) & np.isfinite(high) & (high >= floor)
    low, high = np.where(drawable, np.maximum(low, floor), np.nan), np.where(drawable, high, np.nan)
    axes.fill_between(epochs, low, high, color=colour, alpha=_ALPHA, linewidth=0, label=label)
    alone = _isolated(drawable)
    if alone.any():
        # an area over one epoch has no width
        axes.vlines(epochs[alone], low[alone], high[alone], color=colour, alpha=_ALPHA, linewidth=7)


def _isolated(drawable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Points without a neighbour, which neither a line nor an area shows."""
    around = np.pad(drawable, 1)
    return drawable & ~around[:-2] & ~around[2:]


def _set_limits(axes: Axes, tag: TagAttributes) -> None:
    """Apply the two limits in any order; matplotlib chooses if they make no sense."""
    if not tag.ylim and tag.type is TagType.NUMERICAL:
        low, high = axes.get_ylim()
        if axes.get_yscale() == "log" and high - low < _LEAST_HEIGHT * high:  # matplotlib would divide by zero
            axes.set_ylim(low * (1 - _LEAST_HEIGHT), high * (1 + _LEAST_HEIGHT))
        return
    low, high = sorted(tag.ylim or (0.0, 1.0))
    if axes.get_yscale() == "log" and low <= 0 < high:
        low = min(axes.get_ylim()[0], high / 10)
    if math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or axes.get_yscale() != "log"):
        axes.set_ylim(low, high)


def _mark(axes: Axes, epochs: Numbers, text: str, colour: str) -> None:
    """Mark these epochs at the bottom of the plot."""
    if not len(epochs):
        return
    epochs = np.unique(epochs)
    bottom = axes.get_xaxis_transform()
    axes.plot(epochs, np.zeros_like(epochs), transform=bottom, color=colour, linestyle="", marker="|", clip_on=False)
    align: Literal["left", "right"] = "left" if epochs[0] < sum(axes.get_xlim()) / 2 else "right"
    axes.text(epochs[0], 0.06, f" {text} ", transform=bottom, color=colour, size=SMALL_TEXT, ha=align)
