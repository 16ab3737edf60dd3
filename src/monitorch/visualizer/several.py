"""Shows the same numbers in several visualizers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .abstract_visualizer import AbstractVisualizer, Ranges, TagAttributes, Values


class Several(AbstractVisualizer):
    """Passes everything to each visualizer; optional methods are called where they exist.

    >>> from monitorch.visualizer import RecorderVisualizer
    >>> several = Several([RecorderVisualizer("a.rec"), RecorderVisualizer("b.rec")])
    >>> len(list(several)), several.deferred
    (2, False)
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = tuple(parts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    def __getitem__(self, index: int) -> Any:
        return self.parts[index]

    @property
    def deferred(self) -> bool:  # type: ignore[override]
        """Whether all of them may be shown later."""
        return all(getattr(part, "deferred", False) for part in self.parts)

    @property
    def busy_seconds(self) -> float:  # type: ignore[override]
        """The sum over all parts."""
        return sum(getattr(part, "busy_seconds", 0.0) for part in self.parts)

    def register_tags(self, main_tag: str, tag_attr: TagAttributes) -> None:
        """Announce a tag to all."""
        self._all("register_tags", main_tag, tag_attr)

    def plot_numerical_values(
        self, epoch: int, main_tag: str, values_dict: Values, ranges_dict: Ranges | None = None
    ) -> None:
        """Show lines and bands everywhere."""
        self._all("plot_numerical_values", epoch, main_tag, values_dict, ranges_dict)

    def plot_probabilities(self, epoch: int, main_tag: str, values_dict: Values) -> None:
        """Show them everywhere."""
        self._all("plot_probabilities", epoch, main_tag, values_dict)

    def plot_relations(self, epoch: int, main_tag: str, values_dict: Values) -> None:
        """Show them everywhere."""
        self._all("plot_relations", epoch, main_tag, values_dict)

    def begin_tick(self, epoch: int, step: int, axis: str) -> None:
        """Pass it to those that have this method."""
        self._all("begin_tick", epoch, step, axis)

    def count_nonfinite(self, epoch: int, main_tag: str, counts: Mapping[str, int]) -> None:
        """Pass it to those that have this method."""
        self._all("count_nonfinite", epoch, main_tag, counts)

    def describe_layers(self, layers: Sequence[tuple[str, str, int]]) -> None:
        """Tell each by the method that it has."""
        for part in self.parts:
            if hasattr(part, "describe_layers"):
                part.describe_layers(layers)
            elif hasattr(part, "introduce_layers"):
                part.introduce_layers([name for name, *_ in layers])

    def continue_from(self, step: int) -> None:
        """Tell those that count steps."""
        self._all("continue_from", step)

    def flush(self) -> None:
        """End a tick."""
        self._all("flush")

    def reset_fig(self) -> None:
        """Clear figures."""
        self._all("reset_fig")

    def close(self) -> None:
        """Close those that can be closed."""
        self._all("close")

    def _all(self, method: str, *args: Any) -> None:
        for part in self.parts:
            if hasattr(part, method):
                getattr(part, method)(*args)
