"""Draws a healthy and a sick run side by side, in colours for light and for dark pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Protocol

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from monitorch.diagnosis.history import Loss, Numbers, Steps

if TYPE_CHECKING:
    from .runs import Pair, Seen

INK, FAINT, GRID, CARD = "#24292e", "#687078", "#e5e7e4", "#fdfdfc"
FINE, SICK, LIMIT = "#17756c", "#c2500e", "#8a7012"
DARK = {
    INK: "#e7e9eb",
    FAINT: "#a0a8b0",
    GRID: "#31373e",
    CARD: "#191d21",
    FINE: "#46bcae",
    SICK: "#ff8e52",
    LIMIT: "#d8b74a",
}
"""What each colour is on dark pages."""

BEHIND = {"facecolor": CARD, "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
"""What is behind words that stand on lines."""

LETTER = 0.017
"""How wide a letter of a name is, as a share of a panel."""

WITH_ZERO, SMALLEST = "log with zero", 1e-12
"""A logarithmic scale on which zero has a place: numbers below the smallest are drawn as if there were no logarithm."""

STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "monitorch",  # the same picture gives the same file
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": GRID,
    "axes.facecolor": CARD,
    "figure.facecolor": CARD,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": FAINT,
    "lines.linewidth": 1.1,
    "path.simplify_threshold": 0.3,
}


@dataclass(frozen=True)
class Curve:
    """Numbers to draw: over steps, or over layers."""

    x: Steps
    y: Numbers
    is_dots: bool = False

    def until(self, last: int) -> Curve:
        """Without what comes after this step."""
        kept = self.x <= last
        return Curve(self.x[kept], self.y[kept], self.is_dots)


@dataclass(frozen=True)
class Curves:
    """What a picture shows of a run.

    Args:
        lines: by name.
        limits: levels, by what they are called.
        layers: the names along the x axis, if it does not show steps.
    """

    lines: dict[str, Curve]
    limits: dict[str, float] = field(default_factory=dict)
    layers: Sequence[str] | None = None


class Picture(Protocol):
    """What a picture shows of two runs: the losses, and above them numbers of layers unless losses say all."""

    healthy: str
    """What the healthy one does, in a few words."""
    sick: str
    shows: str
    """What the numbers are."""
    scale: str
    loss_scale: str
    shows_validation: bool
    until: int
    """The last step that is drawn; 0 for all."""

    def look(self, seen: Seen) -> Curves | None:
        """The numbers of a run; None if losses say all."""

    def levels_of_loss(self, seen: Seen) -> dict[str, float]:
        """Lines to draw among losses."""


def draw(picture: Picture, pair: Pair) -> str:
    """The picture, as the text of an SVG file."""
    found = [picture.look(seen) for seen in (pair.healthy, pair.sick)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.1 if found[0] is None else 4.6))
        FigureCanvasSVG(figure)
        heights = [1] if found[0] is None else [1.9, 1]
        grid = figure.subplots(
            len(heights), 2, sharey="row", squeeze=False, gridspec_kw={"height_ratios": heights, "wspace": 0.07}
        )
        for column, (seen, words) in enumerate(((pair.healthy, picture.healthy), (pair.sick, picture.sick))):
            is_sick = column == 1
            _title(grid[0, column], f"Sick: {words}" if is_sick else f"Healthy: {words}", is_sick)
            if is_sick:
                _said(grid[0, column], pair)
            if (curves := found[column]) is not None:
                _curves(grid[0, column], curves, picture, seen, pair, is_sick)
            _losses(grid[-1, column], picture, seen, pair, is_sick)
        grid[0, 0].set_ylabel(picture.shows if found[0] is not None else "loss")
        grid[-1, 0].set_ylabel("loss")
        figure.subplots_adjust(left=0.085, right=0.98, top=0.84 if len(heights) == 1 else 0.89, bottom=0.13, hspace=0.3)
        if len(heights) == 2:
            figure.subplots_adjust(bottom=0.09)
        figure.align_ylabels(grid[:, 0])
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _finished(text.getvalue())


def _title(axes: Axes, words: str, is_sick: bool) -> None:
    axes.set_title(words, loc="left", fontsize=10, fontweight="bold", color=SICK if is_sick else FINE, pad=10)


def _curves(axes: Axes, found: Curves, picture: Picture, seen: Seen, pair: Pair, is_sick: bool) -> None:
    last = picture.until or seen.view.step
    lines = found.lines if found.layers else {name: curve.until(last) for name, curve in found.lines.items()}
    guilty = [name for name in lines if _is_at(name, pair.layer)] or list(lines)
    for name, curve in lines.items():
        is_guilty = name in guilty
        colour = SICK if is_sick and is_guilty else FINE
        look = {"color": colour, "alpha": 1.0 if is_guilty or len(lines) == 1 else 0.45}
        marker = {"marker": "o", "markersize": 3.5} if curve.is_dots else {}
        axes.plot(curve.x, curve.y, **look, **marker, linewidth=1.7 if is_guilty and len(guilty) < 3 else 1.0)
    if 0 < len(guilty) < min(len(lines), 3) or len(lines) == 2:
        _names(axes, {name: curve for name, curve in lines.items() if name in guilty}, is_sick)
    _limits(axes, found.limits, is_sick)
    _scale(axes, picture.scale)
    if found.layers is None:
        _steps(axes, last)
        _mark(axes, pair, is_sick)
    else:
        axes.set_xticks(range(len(found.layers)), found.layers, fontsize=8)
        axes.set_xlabel("layer", labelpad=1)


def _is_at(name: str, layer: str | None) -> bool:
    """Whether a layer, or a parameter of it, is meant."""
    return layer is not None and (name == layer or name.rpartition(".")[0] == layer)


def _names(axes: Axes, lines: dict[str, Curve], is_sick: bool) -> None:
    """At the ends of lines: of two, above the upper and below the lower one, and clear of what they do there."""
    known = {
        name: Curve(curve.x[seen], curve.y[seen])
        for name, curve in lines.items()
        if (seen := np.isfinite(curve.y)).any()
    }
    highest_first = sorted(known.items(), key=lambda line: -line[1].y[-1])
    for number, (name, curve) in enumerate(highest_first):
        text = f"layer {name}" if name.isdigit() else name
        beside = curve.y[curve.x >= curve.x[-1] - len(text) * LETTER * np.ptp(curve.x)]
        shift, place, level = ((-2, -6), "top", beside.min()) if number else ((-2, 5), "bottom", beside.max())
        look = {"ha": "right", "va": place, "fontsize": 8.5, "color": SICK if is_sick else FINE}
        axes.annotate(text, (curve.x[-1], level), shift, textcoords="offset points", bbox=BEHIND, **look)


def _limits(axes: Axes, limits: dict[str, float], is_sick: bool) -> None:
    """Thresholds; their names stand on the left only, where nothing is in their way."""
    for name, level in limits.items():
        axes.axhline(level, color=LIMIT, linewidth=1.1, linestyle=(0, (4, 3)))
        if name and not is_sick:
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            axes.annotate(name, (0.0, level), (4, 4), **place, fontsize=8, color=LIMIT, bbox=BEHIND)


def _scale(axes: Axes, scale: str) -> None:
    axes.margins(y=0.1)
    if scale == WITH_ZERO:
        axes.set_yscale("symlog", linthresh=SMALLEST)
        axes.yaxis.set_major_locator(FixedLocator([0, *10.0 ** np.arange(-12, 1, 2)]))
    else:
        axes.set_yscale(scale)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: re.sub(r"e\+?(-?)0?", r"e\1", f"{value:g}")))
    axes.yaxis.set_minor_locator(NullLocator())


def _steps(axes: Axes, last: int) -> None:
    axes.set_xlim(0, last)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _said(axes: Axes, pair: Pair) -> None:
    """In words, at the end of the line of the title."""
    if pair.found_at is not None:
        axes.set_title(f"found at step {pair.found_at:,}", loc="right", fontsize=8.5, color=FAINT, pad=10)


def _mark(axes: Axes, pair: Pair, is_sick: bool) -> None:
    """When it was found."""
    if is_sick and pair.found_at is not None:
        axes.axvline(pair.found_at, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))


def _losses(axes: Axes, picture: Picture, seen: Seen, pair: Pair, is_sick: bool) -> None:
    last = picture.until or seen.view.step
    colour = SICK if is_sick else FINE
    training, validation = (_until(losses, last) for losses in (seen.view.loss, seen.view.validation))
    has_both = bool(validation) and picture.shows_validation
    axes.plot(training.steps, training.values, color=colour, alpha=0.45 if has_both else 1.0)
    if has_both:
        axes.plot(validation.steps, validation.values, color=colour, marker="o", markersize=3.5, linewidth=1.4)
        _names(axes, {"validation": Curve(validation.steps, validation.values)}, is_sick)
    broken = training.steps[~np.isfinite(training.values)]
    if len(broken):
        axes.axvspan(broken[0], last, color=SICK, alpha=0.15, linewidth=0)
        axes.annotate(
            "NaN or infinite",
            ((broken[0] + last) / 2, 0.5),
            xycoords=("data", "axes fraction"),
            ha="center",
            color=SICK,
        )
    _limits(axes, picture.levels_of_loss(seen), is_sick)
    _scale(axes, picture.loss_scale)
    _steps(axes, last)
    _mark(axes, pair, is_sick)
    axes.set_xlabel("step", labelpad=1)


def _until(losses: Loss, last: int) -> Loss:
    kept = losses.steps <= last
    return Loss(losses.steps[kept], losses.values[kept])


def _finished(svg: str) -> str:
    """Short numbers, fonts of the reader, and colours for dark pages."""
    svg = re.sub(r' d="([^"]*)"', lambda path: f' d="{_rounded(path[1])}"', svg)
    svg = svg.replace("'DejaVu Sans'", "system-ui, sans-serif")
    rules = [
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    ]
    style = f"<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>"
    return re.sub(r"(<svg [^>]*>)", lambda tag: f"{tag[1]}\n {style}", svg, count=1)


def _rounded(path: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path).strip()
