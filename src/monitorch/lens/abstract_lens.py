"""The interface between the inspector and a lens."""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from ..preprocessor import AbstractPreprocessor
from ..visualizer.abstract_visualizer import AbstractVisualizer


class AbstractLens(ABC):
    """The interface of all lenses; ``monitorch.lens.base.Lens`` implements it for most purposes."""

    @abstractmethod
    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch a module without children, or ignore it."""

    def register_non_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:  # noqa: B027
        """Watch a module with children, or ignore it."""

    def register_foreign_preprocessor(self, ext_ppr: AbstractPreprocessor, inspector_state: Any) -> None:  # noqa: B027
        """Receive a preprocessor of the inspector, such as the one for pushed numbers."""

    def finish_attach(self) -> None:  # noqa: B027
        """Called after all modules of the model were registered."""

    @abstractmethod
    def detach_from_module(self) -> None:
        """Remove all hooks and forget the model."""

    @abstractmethod
    def introduce_tags(self, visualizer: AbstractVisualizer) -> None:
        """Announce the tags of this lens."""

    @abstractmethod
    def finalize_epoch(self) -> None:
        """Turn what was recorded since the last tick into numbers to show."""

    @abstractmethod
    def vizualize(self, visualizer: AbstractVisualizer, epoch: int) -> None:
        """Pass the numbers to the visualizer."""

    @abstractmethod
    def reset_epoch(self) -> None:
        """Prepare for the next tick."""

    def start_sync(self, dst_rank: int = 0) -> None:  # noqa: B027
        """Begin to merge with the same lens on other ranks."""

    def finish_sync(self) -> None:  # noqa: B027
        """Finish :meth:`start_sync`."""
