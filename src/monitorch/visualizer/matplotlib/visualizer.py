"""A visualizer that draws figures on demand."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import matplotlib.pyplot as plt
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from ...errors import LifecycleError, OptionError
from ..abstract_visualizer import AbstractVisualizer, Ranges, TagAttributes, Values
from .composing import compose, plan
from .history import History
from .layout import Page


class MatplotlibVisualizer(AbstractVisualizer):
    """Keeps all numbers and draws them on demand.

    Deep models fill several pages: big tags are on the first, and each page shows about a dozen layers.

    Args:
        **kwargs: passed to ``matplotlib.pyplot.figure``; without ``figsize`` a size is computed for each page.
    """

    # not emitted any more; kept because tests written for earlier releases silence it by this name
    _NO_SMALL_TAGS_WARNING: ClassVar[str] = "No layer has numbers for this tag"

    def __init__(self, **kwargs: Any) -> None:
        self._options = kwargs
        self._tags: dict[str, TagAttributes] = {}
        self._model_order: Sequence[str] = ()
        self._history = History()
        self._pages: list[Page] = []
        self._figures: dict[int, Figure] = {}
        self._stale = True

    @property
    def figure_(self) -> Figure | None:
        """The figure shown first since numbers last arrived."""
        return next(iter(self._figures.values()), None) if not self._stale else None

    def register_tags(self, main_tag: str, tag_attr: TagAttributes) -> None:
        """Plan a place for the tag, whether or not numbers will come."""
        self._tags[main_tag] = tag_attr
        self._stale = True

    def introduce_layers(self, layers: Sequence[str]) -> None:
        """Show rows in the order of the model."""
        self._model_order = list(layers)

    def begin_tick(self, epoch: int, step: int, axis: str) -> None:
        """Keep the step of the numbers of a tick, and the unit of the x axis."""
        self._history.begin_tick(epoch, step, axis)

    def plot_numerical_values(
        self, epoch: int, main_tag: str, values_dict: Values, ranges_dict: Ranges | None = None
    ) -> None:
        """Keep the numbers; those of an unknown tag are ignored."""
        if main_tag in self._tags:
            self._history.add(epoch, main_tag, values_dict, ranges_dict)
            self._stale = True

    def count_nonfinite(self, epoch: int, main_tag: str, counts: Mapping[str, int]) -> None:
        """Mark the epoch in the plots of those layers."""
        if main_tag in self._tags:
            self._history.add_nonfinite(epoch, main_tag, counts)
            self._stale = True

    def plot_probabilities(self, epoch: int, main_tag: str, values_dict: Values) -> None:
        """Keep the numbers."""
        self.plot_numerical_values(epoch, main_tag, values_dict)

    plot_relations = plot_probabilities

    def show_fig(self, page: int = 1) -> Figure:
        """One page as an up-to-date figure; figures of earlier numbers are closed."""
        pages = self._current_pages()
        if not 1 <= page <= len(pages):
            raise OptionError(f"page={page!r} does not exist; pages are counted from 1 to {len(pages)}")
        if page not in self._figures:
            # with the same name, pyplot would draw all pages into one figure
            options = self._options if page == 1 else {k: v for k, v in self._options.items() if k != "num"}
            self._figures[page] = compose(pages[page - 1], self._tags, self._history, options)
        return self._figures[page]

    def figures(self) -> list[Figure]:
        """All pages, up to date."""
        return [self.show_fig(number) for number, _ in enumerate(self._current_pages(), start=1)]

    def save(self, path: str | Path, **options: Any) -> list[Path]:
        """Write all pages: into one pdf, or in other formats as ``name.png``, ``name-2.png`` and so on.

        Args:
            path: the file; without a suffix it is a png.
            **options: passed to ``Figure.savefig``, for example ``dpi``.
        """
        path = Path(path)
        path = path if path.suffix else path.with_suffix(".png")
        if path.suffix.lower() == ".pdf":
            with PdfPages(path) as pdf:
                for figure in self._page_by_page():
                    pdf.savefig(figure, **options)
            return [path]
        written = []
        for number, figure in enumerate(self._page_by_page(), start=1):
            written.append(path if number == 1 else path.with_stem(f"{path.stem}-{number}"))
            figure.savefig(written[-1], **options)
        return written

    def reset_fig(self) -> "MatplotlibVisualizer":
        """Drop all numbers and figures; the tags stay."""
        self._history = History()
        self._close(*self._figures)
        self._stale = True
        return self

    def _current_pages(self) -> list[Page]:
        if not self._tags:
            raise LifecycleError("nothing to draw: no tag was registered; attach an inspector that has lenses first")
        if self._stale:
            self._close(*self._figures)
            self._pages = plan(self._tags, self._history, self._options, self._model_order)
            self._stale = False
        return self._pages

    def _page_by_page(self) -> Iterator[Figure]:
        """All figures, one by one; closes those that were not open before, since all pages at once take much memory."""
        for number in range(1, len(self._current_pages()) + 1):
            keep = number in self._figures
            yield self.show_fig(number)
            if not keep:
                self._close(number)

    def _close(self, *numbers: int) -> None:
        for number in numbers:
            plt.close(self._figures.pop(number))
