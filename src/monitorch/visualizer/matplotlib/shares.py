"""How the layers' shares of a whole are drawn: stacked, with their names inside."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes

from .history import EpochSeries, Numbers
from .palette import SHARE_COLOURS
from .text import AS_IT_IS, POINTS_PER_INCH, SMALL_TEXT, fit, inches


def draw_shares(axes: Axes, lines: Mapping[str, EpochSeries]) -> None:
    """Stack the shares; a layer without one takes no space."""
    points = [series.points() for series in lines.values()]
    epochs = np.unique(np.concatenate([epochs for epochs, _ in points]))
    shares = np.zeros((len(lines), len(epochs)))
    for share, (seen, values) in zip(shares, points, strict=True):
        share[np.searchsorted(epochs, seen)] = np.where(np.isfinite(values), values, 0.0)
    if len(epochs) == 1:
        # an area over one epoch has no width
        epochs, shares = epochs + np.array([-0.4, 0.4]), np.repeat(shares, 2, axis=1)
    areas = axes.stackplot(epochs, shares, labels=list(lines))
    for area, colour in zip(areas, cycle(SHARE_COLOURS), strict=False):
        # without an edge, thin lines of the background are visible
        area.set(facecolor=colour, edgecolor=colour, linewidth=0.4)
    _name_shares(axes, list(lines), epochs, shares)


def _name_shares(axes: Axes, layers: Sequence[str], epochs: Numbers, shares: Numbers) -> None:
    """Write layer names into the plot: those of the largest shares, and others if there is room."""
    width, height = inches(axes)
    spacing = 1.3 * SMALL_TEXT / POINTS_PER_INCH / height
    starts = (shares > 0).argmax(axis=1)
    middles = shares.cumsum(axis=0) - shares / 2
    taken = [-spacing / 2, 1 + spacing / 2]
    for layer in np.argsort(-shares[:, 0], kind="stable"):
        start = starts[layer]
        middle = float(middles[layer, start])
        if shares[layer, start] > 0 and all(abs(middle - other) >= spacing for other in taken):
            taken.append(middle)
            axes.annotate(
                fit(layers[layer], width, SMALL_TEXT),
                (epochs[start], middle),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                size=SMALL_TEXT,
                **AS_IT_IS,
                bbox={"boxstyle": "square,pad=0.08", "color": "white", "alpha": 0.65, "linewidth": 0},
            )
