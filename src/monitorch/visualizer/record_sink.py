"""Base of the visualizers that want a list of records rather than nested dictionaries."""

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .abstract_visualizer import AbstractVisualizer, Ranges, TagAttributes, Values
from .record import Record


def flatten(values: Values, ranges: Ranges | None) -> Iterator[tuple[str, str, float]]:
    """``(layer, name, number)`` for every line and every band edge, layer by layer."""
    for layer, lines in values.items():
        yield from ((layer, name, value) for name, value in lines.items())
        for names, edges in (ranges or {}).get(layer, {}).items():
            yield from ((layer, name, value) for name, value in zip(names, edges, strict=True))


class RecordSink(AbstractVisualizer):
    """A visualizer that needs only one method, :meth:`write`.

    Lenses call ``write`` once per tick with all their records. The four methods of the visualizer interface, which
    players and your own lenses may call, end there, too.
    """

    @property
    def tags(self) -> dict[str, TagAttributes]:
        """The attributes of tags; made on first use, so that a subclass need not call this class's constructor."""
        found: dict[str, TagAttributes] = vars(self).setdefault("_tags", {})
        return found

    @abstractmethod
    def write(self, records: Sequence[Record]) -> None:
        """Take the records of one lens at one tick."""

    def register_tags(self, main_tag: str, tag_attr: TagAttributes) -> None:
        """Keep the attributes of the tag."""
        self.tags[main_tag] = tag_attr

    def begin_tick(self, epoch: int, step: int, axis: str) -> None:
        """Keep the step for the numbers that follow."""
        vars(self)["_begun"] = epoch, step

    def plot_numerical_values(
        self, epoch: int, main_tag: str, values_dict: Values, ranges_dict: Ranges | None = None
    ) -> None:
        """Write lines and band edges."""
        self._write_plot(epoch, main_tag, flatten(values_dict, ranges_dict))

    def plot_probabilities(self, epoch: int, main_tag: str, values_dict: Values) -> None:
        """Write the numbers as they are."""
        self._write_plot(epoch, main_tag, flatten(values_dict, None))

    plot_relations = plot_probabilities

    def count_nonfinite(self, epoch: int, main_tag: str, counts: Mapping[str, int]) -> None:
        """Keep the counts for the numbers that follow."""
        vars(self)["_counts"] = (epoch, main_tag), counts

    def _write_plot(self, epoch: int, tag: str, numbers: Iterable[tuple[str, str, float]]) -> None:
        now = time.time()
        begun, step = vars(self).get("_begun", (None, epoch))
        step = step if begun == epoch else epoch
        meant, counts = vars(self).pop("_counts", (None, {}))
        counts = counts if meant == (epoch, tag) else {}
        self.write(
            [
                Record(step, epoch, now, 0, "", layer, tag, name, value, counts.get(layer, 0))
                for layer, name, value in numbers
            ]
        )
