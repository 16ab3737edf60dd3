"""What the inspector expects of a lens."""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from ..preprocessor import AbstractPreprocessor
from ..visualizer.abstract_visualizer import AbstractVisualizer


class AbstractLens(ABC):
    """The interface of all lenses; ``monitorch.lens.base.Lens`` implements it for most purposes."""

    @abstractmethod
    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch, or ignore, a module without children."""

    def register_non_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:  # noqa: B027
        """Watch, or ignore, a module with children."""

    def register_foreign_preprocessor(self, ext_ppr: AbstractPreprocessor, inspector_state: Any) -> None:  # noqa: B027
        """Meet a preprocessor that belongs to the inspector, such as the one for pushed numbers."""

    def finish_attach(self) -> None:  # noqa: B027
        """Learn that the whole model has been shown."""

    @abstractmethod
    def detach_from_module(self) -> None:
        """Remove all hooks and forget the model."""

    @abstractmethod
    def introduce_tags(self, visualizer: AbstractVisualizer) -> None:
        """Announce one's tags."""

    @abstractmethod
    def finalize_epoch(self) -> None:
        """Turn what was gathered since the last tick into numbers to show."""

    @abstractmethod
    def vizualize(self, visualizer: AbstractVisualizer, epoch: int) -> None:
        """Hand the numbers over."""

    @abstractmethod
    def reset_epoch(self) -> None:
        """Make ready for the next tick."""

    def start_sync(self, dst_rank: int = 0) -> None:  # noqa: B027
        """Begin to merge with the same lens on other ranks."""

    def finish_sync(self) -> None:  # noqa: B027
        """Finish :meth:`start_sync`."""
