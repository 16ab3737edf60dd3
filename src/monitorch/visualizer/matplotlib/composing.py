"""Turns a page into a figure: columns, titles, legends and axes."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter, StrMethodFormatter

from ...statistic import curve_and_line
from ..abstract_visualizer import TagAttributes, TagType
from .drawing import draw
from .history import Curves, History
from .layout import FOOT, LAYER_TITLE, LEFT, RIGHT, TAG_TITLE, Page, PlotBlock, TagColumn, paginate
from .palette import COLUMN_BACKGROUNDS, line_styles
from .text import AS_IT_IS, SMALL_TEXT, bold_size, fit, inches, say

_PAGE_TITLE_SIZE, _TAG_TITLE_SIZE, _LAYER_TITLE_SIZE = 13.0, 10.5, 8.0
_STEPS = (1, 2, 5, 10)


def plan(
    tags: Mapping[str, TagAttributes], history: History, options: Mapping[str, Any], model_order: Sequence[str] = ()
) -> list[Page]:
    """The pages that show all tags."""
    size = options.get("figsize") or (None, None)
    big, small = [], []
    for tag, attributes in tags.items():
        if attributes.big_plot and attributes.apart:
            names = dict.fromkeys(curve_and_line(line)[0] or line for line in history.line_names(tag))
            big += [TagColumn(tag, only=name) for name in names]
        elif attributes.big_plot:
            big.append(TagColumn(tag, _labels(tag, attributes, history)))
        else:
            small.append(TagColumn(tag, _labels(tag, attributes, history), tuple(history.layers(tag))))
    # a third entry is a unit of length: such pages get a computed layout, which is then scaled
    return paginate(big, small, width=size[0] if len(size) == 2 else None, model_order=model_order)


def compose(page: Page, tags: Mapping[str, TagAttributes], history: History, options: Mapping[str, Any]) -> Figure:
    """Draw one page into a new figure."""
    given = {option: value for option, value in options.items() if value is not None}
    if not any("layout" in option for option in given):
        # positions are computed; a layout engine from the user's settings would move things
        given["layout"] = "none"
    with plt.rc_context({"figure.max_open_warning": 0}):
        figure = plt.figure(**{"figsize": page.size, **given})
    if page.title:
        figure.suptitle(page.title, size=_PAGE_TITLE_SIZE, y=1 - page.title_height / 2 / page.size[1], va="center")
    heights = [height for height in (page.title_height, *(block.height for block in page.blocks)) if height]
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    for row, block in enumerate(page.blocks, start=-len(page.blocks)):
        parts = figure.add_subfigure(grid[row]).subfigures(1, len(block.columns), squeeze=False)[0]
        for part, column, background in zip(parts, block.columns, cycle(COLUMN_BACKGROUNDS), strict=False):
            part.set_facecolor(background)
            _compose_column(part, block, column, tags[column.tag], history)
    return figure


def _labels(tag: str, attributes: TagAttributes, history: History) -> tuple[str, ...]:
    # shares have their names inside the plot
    if not attributes.annotate or attributes.type is TagType.RELATIONS:
        return ()
    return (*history.line_names(tag), *(" -- ".join(edges) for edges in history.band_names(tag)))


def _compose_column(part: SubFigure, block: PlotBlock, column: TagColumn, tag: TagAttributes, history: History) -> None:
    plots = _add_plots(part, block, column, history)
    first = next(iter(plots.values()))[0]
    width, _ = inches(first)
    title_size = bold_size(column.title, width + LEFT, _TAG_TITLE_SIZE)
    part.suptitle(column.title, x=0.5, y=1 - 0.08 / block.height, va="top", size=title_size, weight="bold", **AS_IT_IS)
    styles = line_styles(history.line_names(column.tag))
    for name, (axes, curves) in plots.items():
        _prepare_axes(axes, history.epochs)
        if not block.big and name:
            axes.set_title(fit(name, width, _LAYER_TITLE_SIZE), size=_LAYER_TITLE_SIZE, pad=3, **AS_IT_IS)
        if curves:
            draw(axes, tag, curves, styles)
            _number_values(axes, tag)
        else:
            say(axes, "no data")
            axes.set(xticks=[], yticks=[])
    lowest, _ = list(plots.values())[-1]
    lowest.tick_params(labelbottom=True)
    lowest.set_xlabel(history.axis or "epoch", size=SMALL_TEXT, labelpad=2)
    if column.labels:
        _add_legend([axes for axes, _ in plots.values()], part, block, column)


def _add_plots(
    part: SubFigure, block: PlotBlock, column: TagColumn, history: History
) -> dict[str, tuple[Axes, Curves]]:
    """Axes for each layer that the tag has, in the row of that layer."""
    grid = part.add_gridspec(
        block.rows,
        1,
        left=LEFT / block.column_width,
        right=1 - RIGHT / block.column_width,
        top=1 - block.head / block.height,
        bottom=FOOT / block.height,
        hspace=LAYER_TITLE / block.plot_height,
    )
    layers = history.layers(column.tag)
    if block.big or not layers:
        name, curves = next(iter(layers.items()), ("", Curves()))
        return {name: (part.add_subplot(grid[0]), _part_of(curves, column.only))}
    plots: dict[str, tuple[Axes, Curves]] = {}
    first = None
    for row, layer in enumerate(block.layers):
        if layer in layers:
            axes = part.add_subplot(grid[row], sharex=first)
            first = first or axes
            plots[layer] = axes, layers[layer]
    return plots


def _part_of(curves: Curves, name: str) -> Curves:
    """The lines and bands of one name, or all of them."""
    if not name:
        return curves
    lines = {line: series for line, series in curves.lines.items() if name in (line, curve_and_line(line)[0])}
    bands = {edges: band for edges, band in curves.bands.items() if curve_and_line(edges[0])[0] == name}
    return Curves(lines, bands, curves.nonfinite)


def _prepare_axes(axes: Axes, epochs: tuple[float, float] | None) -> None:
    axes.tick_params(labelsize=SMALL_TEXT, length=2.5, labelbottom=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=_STEPS, integer=True, min_n_ticks=1))
    if epochs:
        first, last = epochs
        margin = 0.02 * (last - first) or 0.5
        axes.set_xlim(first - margin, last + margin)


def _number_values(axes: Axes, tag: TagAttributes) -> None:
    """Few and short axis numbers beside the plot."""
    low, high = axes.get_ylim()
    decades = math.log10(high / low) if axes.get_yscale() == "log" else 0.0
    axes.yaxis.set_minor_formatter(NullFormatter())
    if decades > 1:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if decades < 2.5 else (1.0,), numticks=5))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        return
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5 if tag.big_plot else 4, steps=_STEPS))
    formatter = ScalarFormatter()
    formatter.set_powerlimits((-3, 4))
    axes.yaxis.set_major_formatter(formatter)
    # the power of ten goes left of the plot, since the layer name is above it
    axes.yaxis.get_offset_text().set(ha="right", size=SMALL_TEXT - 1)


def _add_legend(plots: list[Axes], part: SubFigure, block: PlotBlock, column: TagColumn) -> None:
    """One legend for all layers, at the head of the column."""
    handles = {label: handle for axes in plots for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels = [label for label in column.labels if label in handles]
    legend = plots[0].legend(
        [handles[label] for label in labels],
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, 1 - TAG_TITLE / block.height),
        bbox_transform=part.transSubfigure,
        ncols=block.legend_columns(column),
        fontsize=SMALL_TEXT,
        frameon=False,
        borderaxespad=0,
        borderpad=0,
        handlelength=1.2,
        handletextpad=0.4,
        columnspacing=1.0,
        labelspacing=0.25,
    )
    for text in legend.get_texts():
        text.set(**AS_IT_IS)
