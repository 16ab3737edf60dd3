"""Base of the visualizers that want a list of records rather than nested dictionaries."""

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..statistic import Role, Side, band_of, curve_and_line
from .abstract_visualizer import AbstractVisualizer, Ranges, TagAttributes, TagType, Values
from .record import Record

if TYPE_CHECKING:
    from .frame import Moment, TagFrame  # needs NumPy, which is slow to import

_SIDES: tuple[Side, Side] = ("low", "high")


class RecordSink(AbstractVisualizer):
    """A visualizer that needs only one method, :meth:`write`.

    Lenses call ``write`` once per tick with all their records. The four methods of the visualizer interface, which
    players and your own lenses may call, also end up there. A visualizer that can use whole arrays overrides
    :meth:`write_frames` instead.
    """

    @property
    def tags(self) -> dict[str, TagAttributes]:
        """The attributes of tags; made on first use, so that a subclass need not call this class's constructor."""
        found: dict[str, TagAttributes] = vars(self).setdefault("_tags", {})
        return found

    @abstractmethod
    def write(self, records: Sequence[Record]) -> None:
        """Take the records of one lens at one tick."""

    def write_frames(self, moment: "Moment", frames: Sequence["TagFrame"]) -> None:
        """Take the numbers of one lens at one tick as arrays; without this method of your own, they become records."""
        self.write([record for frame in frames for record in frame.records(moment)])

    def is_share(self, record: Record) -> bool:
        """Whether a number is a layer's share of a whole: then its statistic is the name of the layer."""
        attributes = self.tags.get(record.tag)
        return record.role == "share" or (attributes is not None and attributes.type is TagType.RELATIONS)

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
        self._write_plot(epoch, main_tag, values_dict, ranges_dict or {})

    def plot_probabilities(self, epoch: int, main_tag: str, values_dict: Values) -> None:
        """Write the numbers as they are."""
        self._write_plot(epoch, main_tag, values_dict, {})

    def plot_relations(self, epoch: int, main_tag: str, values_dict: Values) -> None:
        """Write the shares, each as the statistic of its layer."""
        self._write_plot(epoch, main_tag, values_dict, {}, role="share")

    def count_nonfinite(self, epoch: int, main_tag: str, counts: Mapping[str, int]) -> None:
        """Keep the counts for the numbers that follow."""
        vars(self)["_counts"] = (epoch, main_tag), counts

    def _write_plot(self, epoch: int, tag: str, values: Values, ranges: Ranges, role: Role = "line") -> None:
        begun, step = vars(self).get("_begun", (None, epoch))
        moment = step if begun == epoch else epoch, epoch, time.time(), 0, ""
        meant, counts = vars(self).pop("_counts", (None, {}))
        counts = counts if meant == (epoch, tag) else {}
        records = []
        for layer, lines in values.items():
            count = counts.get(layer, 0)
            curves = {name: "" if role == "share" else curve_and_line(name)[0] for name in lines}
            for name, value in lines.items():
                records.append(Record(*moment, layer, tag, name, value, count, role, curves[name]))
            for names, edges in ranges.get(layer, {}).items():
                curve, band = _band(names, curves.values())
                for side, name, value in zip(_SIDES, names, edges, strict=True):
                    record = Record(*moment, layer, tag, name, value, count, "edge", curve, band, side)
                    records.append(record)
        self.write(records)


def _band(names: tuple[str, str], curves: Iterable[str]) -> tuple[str, str]:
    """Which of the curves a band is around, and what it is called."""
    low, high = names
    known = (curve for curve in (*curves, curve_and_line(low)[0]) if curve)
    curve = next((curve for curve in known if all(name.startswith(f"{curve} ") for name in names)), "")
    start = len(curve) + 1 if curve else 0
    return curve, band_of(low[start:], high[start:])
