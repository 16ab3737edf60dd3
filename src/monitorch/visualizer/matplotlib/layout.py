"""What goes on which page, and how large; lengths are inches."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import TypeVar

from ..layer_order import merge_order

T = TypeVar("T")

MAX_COLUMNS = 6
MAX_LAYERS = 12
MAX_HEIGHT = 22.0
MAX_WIDTH = 18.0
MIN_COLUMN_WIDTH, MAX_COLUMN_WIDTH = 1.5, 5.0

LEFT, RIGHT = 0.62, 0.2
TAG_TITLE = 0.36
LEGEND_ROW = 0.17
LAYER_TITLE = 0.26
FOOT = 0.46
BIG_PLOT = 2.1
SMALL_PLOT = 0.95
PAGE_TITLE = 0.45

_LEGEND_CHARACTER, _LEGEND_HANDLE = 0.058, 0.25


@dataclass(frozen=True)
class TagColumn:
    """A tag, the labels of its legend and, if it is a small one, its layers.

    ``only`` is the one name to show of a tag whose names have nothing in common.
    """

    tag: str
    labels: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    only: str = ""

    @property
    def title(self) -> str:
        """The text above it."""
        return self.only or self.tag


@dataclass(frozen=True)
class PlotBlock:
    """Tags side by side: big ones with a plot each, small ones with a plot per layer."""

    columns: tuple[TagColumn, ...]
    layers: tuple[str, ...]
    big: bool
    width: float

    @property
    def column_width(self) -> float:
        """Width of each column."""
        return self.width / len(self.columns)

    @property
    def rows(self) -> int:
        """Plots per column; small tags without layers still get one, which says so."""
        return 1 if self.big else max(1, len(self.layers))

    @property
    def plot_height(self) -> float:
        """Height of each plot."""
        return BIG_PLOT if self.big else SMALL_PLOT

    @property
    def head(self) -> float:
        """Height of the title and legend above the first plot."""
        legend_rows = max(math.ceil(len(column.labels) / self.legend_columns(column)) for column in self.columns)
        return TAG_TITLE + legend_rows * LEGEND_ROW + (0.0 if self.big else LAYER_TITLE)

    @property
    def height(self) -> float:
        """Total height."""
        return self.head + self.rows * self.plot_height + (self.rows - 1) * LAYER_TITLE + FOOT

    def legend_columns(self, column: TagColumn) -> int:
        """How many labels fit side by side, evened out over the rows that they need."""
        for rows in range(1, len(column.labels)):
            stacks = (column.labels[start : start + rows] for start in range(0, len(column.labels), rows))
            widths = (_LEGEND_HANDLE + _LEGEND_CHARACTER * max(map(len, stack)) for stack in stacks)
            if sum(widths) <= self.column_width:
                return math.ceil(len(column.labels) / rows)
        return 1


@dataclass(frozen=True)
class Page:
    """One figure."""

    title: str
    blocks: tuple[PlotBlock, ...]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        return self.blocks[0].width, self.title_height + sum(block.height for block in self.blocks)

    @property
    def title_height(self) -> float:
        """Height of the title; a single page has none."""
        return PAGE_TITLE if self.title else 0.0


def paginate(
    big: Sequence[TagColumn], small: Sequence[TagColumn], width: float | None = None, model_order: Sequence[str] = ()
) -> list[Page]:
    """Big tags first, then the small ones; a page never mixes two ranges of layers.

    Args:
        big: tags with one plot.
        small: tags with a plot per layer.
        width: the width of the pages; computed if None.
        model_order: the known order of layers.
    """
    pages: list[Page] = []
    for page in _single_blocks(big, small, width, model_order):
        joint = _join(pages[-1], page) if pages else None
        pages[-1:] = [joint] if joint else [*pages[-1:], page]
    if len(pages) == 1:
        return pages
    return [
        replace(page, title="  ·  ".join(filter(None, [page.title, f"page {number} of {len(pages)}"])))
        for number, page in enumerate(pages, start=1)
    ]


def merge_orders(orders: Iterable[Sequence[str]]) -> list[str]:
    """One order of all layers that keeps the order of each tag, unless they contradict.

    >>> merge_orders([["relu1", "relu2"], ["lin1", "relu1", "lin2", "relu2"]])
    ['lin1', 'relu1', 'lin2', 'relu2']
    """
    nothing: list[str] = []
    return reduce(merge_order, sorted(orders, key=len, reverse=True), nothing)


def split_evenly(items: Sequence[T], at_most: int) -> Iterator[Sequence[T]]:
    """As few parts as possible, of about the same length.

    >>> list(split_evenly("abcdefg", at_most=3))
    ['ab', 'cd', 'efg']
    """
    parts = math.ceil(len(items) / at_most)
    bounds = [len(items) * part // max(1, parts) for part in range(parts + 1)]
    yield from (items[start:end] for start, end in pairwise(bounds))


def _single_blocks(
    big: Sequence[TagColumn], small: Sequence[TagColumn], wanted: float | None, model_order: Sequence[str]
) -> Iterator[Page]:
    """A page per block, before pages are joined."""
    groups = _group(small)
    widest = max(len(part) for columns in (big, *groups) for part in split_evenly(columns, MAX_COLUMNS))
    width = max(wanted or min(MAX_WIDTH, widest * MAX_COLUMN_WIDTH), widest * MIN_COLUMN_WIDTH)
    for columns in split_evenly(big, MAX_COLUMNS):
        yield Page("", (PlotBlock(tuple(columns), (), big=True, width=width),))
    for group in groups:
        known = {layer for column in group for layer in column.layers}
        start = [layer for layer in model_order if layer in known]
        layers = merge_orders([start, *(column.layers for column in group)])
        first = 1
        for part in list(split_evenly(layers, MAX_LAYERS)) or [()]:
            last = first + len(part) - 1
            title = f"layers {first}-{last} of {len(layers)}" if len(part) < len(layers) else ""
            present = [column for column in group if not part or set(column.layers) & set(part)]
            for columns in split_evenly(present, MAX_COLUMNS):
                used = {layer for column in columns for layer in column.layers}
                yield Page(
                    title, (PlotBlock(tuple(columns), tuple(x for x in part if x in used), big=False, width=width),)
                )
            first = last + 1


def _group(columns: Sequence[TagColumn]) -> list[list[TagColumn]]:
    """Group tags that share layers; tags of different layers side by side would leave holes."""
    groups: list[list[TagColumn]] = []
    for column in columns:
        for group in groups:
            if any(set(column.layers) & set(other.layers) or column.layers == other.layers for other in group):
                group.append(column)
                break
        else:
            groups.append([column])
    return groups


def _join(page: Page, following: Page) -> Page | None:
    joint = Page(following.title, page.blocks + following.blocks)
    return joint if page.title in ("", following.title) and joint.size[1] <= MAX_HEIGHT else None
