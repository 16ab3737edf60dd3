"""The interface of a visualizer, and the description of a tag."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

Values: TypeAlias = Mapping[str, Mapping[str, float]]
"""Layer -> name of the line -> number."""

Ranges: TypeAlias = Mapping[str, Mapping[tuple[str, str], tuple[float, float]]]
"""Layer -> names of a band's two edges -> the two numbers."""


class TagType(Enum):
    """What kind of numbers a tag has."""

    NUMERICAL = 0
    PROBABILITY = 1
    RELATIONS = 2


@dataclass
class TagAttributes:
    """How to draw a tag.

    Args:
        logy: logarithmic vertical axis.
        big_plot: one plot for the whole model instead of one per layer.
        annotate: draw a legend.
        type: what kind of numbers they are.
        ylim: the two ends of the vertical axis, in any order.
        apart: draw each name in its own plot, since the lines have nothing in common.
    """

    logy: bool
    big_plot: bool
    annotate: bool
    type: TagType
    ylim: tuple[float, float] | None = None
    apart: bool = False

    @property
    def scale(self) -> Literal["linear", "log"]:
        """The vertical axis."""
        return "log" if self.logy else "linear"

    @property
    def limits(self) -> tuple[float, float] | None:
        """The smallest and the largest possible number, if there are any; rates and shares are between 0 and 1."""
        ends = (0.0, 1.0) if self.ylim is None and self.type is not TagType.NUMERICAL else self.ylim
        return None if ends is None else (min(ends), max(ends))

    def __repr__(self) -> str:
        fields = f"logy={self.logy}, big_plot={self.big_plot}, annotate={self.annotate}"
        return f"TagAttributes({fields}, type={self.type.name}, ylim={self.ylim})"


class AbstractVisualizer(ABC):
    """Receives tags once and their numbers at every active tick.

    Subclass it to write your own visualizer. Nine more methods are called if they exist:
    ``introduce_layers(names)`` with all layers of a model in its order, or instead of it ``describe_layers(layers)``
    with the name, the class and the number of parameters of each, ``continue_from(step)`` when a run continues from a
    checkpoint of that step, ``begin_tick(epoch, step, axis)`` before the numbers of a tick, with the step they belong
    to and the unit of ticks, ``"epoch"``, ``"step"`` or ``"tick"``, ``count_nonfinite(epoch, main_tag, counts)`` before
    the numbers of a tag that leave out NaN or infinite samples, with how many by layer, ``flush()`` when all lenses
    have shown their part of a tick, ``show_event(event)`` with an event, by the thread that found it,
    ``show_findings(findings)`` with all findings so far of a run that is diagnosed, and ``reset_fig()`` when the
    inspector detaches.
    """

    deferred = False
    """True if another thread may show ticks, so that training does not wait for them."""

    busy_seconds: float = 0.0
    """CPU seconds used by threads of the visualizer; part of the cost of observing."""

    wait_for_ticks: Callable[[], object] | None = None
    """Set by an inspector that shows ticks in another thread: waits until all of them are shown."""

    @abstractmethod
    def register_tags(self, main_tag: str, tag_attr: TagAttributes) -> None:
        """Announce a tag; called before any number of that tag arrives."""

    @abstractmethod
    def plot_numerical_values(
        self, epoch: int, main_tag: str, values_dict: Values, ranges_dict: Ranges | None = None
    ) -> None:
        """Take lines and bands, per layer; a big tag has itself as the only layer."""

    @abstractmethod
    def plot_probabilities(self, epoch: int, main_tag: str, values_dict: Values) -> None:
        """Take numbers between 0 and 1, per layer."""

    @abstractmethod
    def plot_relations(self, epoch: int, main_tag: str, values_dict: Values) -> None:
        """Take the layers' shares of a whole, all under the tag's own name."""
