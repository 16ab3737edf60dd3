"""Loops that tick by themselves."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


class EpochLoops(ABC):
    """Loops that tick after each iteration."""

    @abstractmethod
    def tick_epoch(self, epoch: int | None = None) -> None:
        """End a tick."""

    def iter(self, iterable: Iterable[Item]) -> Iterator[Item]:
        """Go through ``iterable`` and tick after each item, except one where the loop ends with ``break``."""
        for index, item in enumerate(iterable):
            if index:
                self.tick_epoch()
            yield item
        self.tick_epoch()

    def range(self, *args: Any, **kwargs: Any) -> Iterator[int]:
        """``range`` that ticks after each number."""
        return self.iter(range(*args, **kwargs))
