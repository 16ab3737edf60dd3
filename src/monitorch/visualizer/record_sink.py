"""Base of the visualizers that want a list of records rather than nested dictionaries."""

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from .abstract_visualizer import AbstractVisualizer, Ranges, TagAttributes, Values
from .record import Record


def flatten(values: Values, ranges: Ranges | None) -> Iterator[tuple[str, str, float]]:
    """``(layer, name, number)`` for every line and every band edge, layer by layer."""
    for layer, lines in values.items():
        yield from ((layer, name, value) for name, value in lines.items())
        for names, edges in (ranges or {}).get(layer, {}).items():
            yield from ((layer, name, value) for name, value in zip(names, edges, strict=True))


class RecordSink(AbstractVisualizer):
    """A visualizer whose only verb is :meth:`write`.

    Lenses call ``write`` once a tick with everything they have. The four methods of the seed protocol, for players and
    lenses of your own, end there too.
    """

    def __init__(self) -> None:
        self.tags: dict[str, TagAttributes] = {}

    @abstractmethod
    def write(self, records: Sequence[Record]) -> None:
        """Take the records of one lens at one tick."""

    def register_tags(self, main_tag: str, tag_attr: TagAttributes) -> None:
        """Keep what the tag looks like."""
        self.tags[main_tag] = tag_attr

    def plot_numerical_values(
        self, epoch: int, main_tag: str, values_dict: Values, ranges_dict: Ranges | None = None
    ) -> None:
        """Write lines and band edges."""
        self._write_plot(epoch, main_tag, flatten(values_dict, ranges_dict))

    def plot_probabilities(self, epoch: int, main_tag: str, values_dict: Values) -> None:
        """Write the numbers as they are."""
        self._write_plot(epoch, main_tag, flatten(values_dict, None))

    plot_relations = plot_probabilities

    def _write_plot(self, epoch: int, tag: str, numbers: Iterable[tuple[str, str, float]]) -> None:
        now = time.time()
        self.write([Record(epoch, epoch, now, 0, "", layer, tag, name, value) for layer, name, value in numbers])
