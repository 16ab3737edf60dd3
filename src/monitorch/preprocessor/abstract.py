"""The five bases of preprocessors: what a preprocessor is, and what it may be handed.

For a preprocessor of your own subclass one of the last four and write its verb, ``value`` and, if it keeps anything,
``reset``.
"""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn


class AbstractPreprocessor(ABC):
    """Turns what gatherers hand over into numbers, kept by name of the layer."""

    @property
    @abstractmethod
    def value(self) -> dict[str, Any]:
        """What was computed since the last reset, by name."""

    def reset(self) -> None:  # noqa: B027  # nothing to forget is a fine answer
        """Forget what was computed: a tick is over."""

    def clear(self) -> None:
        """Forget everything, also what is compared with later tensors: the model is gone."""
        self.reset()

    def interrupt(self, name: str) -> None:  # noqa: B027
        """Learn that tensors of ``name`` were not handed over for a while."""

    def start_sync(self, dst_rank: int = 0) -> None:  # noqa: B027
        """Begin to merge with the same preprocessor on other ranks."""

    def finish_sync(self) -> None:  # noqa: B027
        """Finish :meth:`start_sync`."""


class AbstractForwardPreprocessor(AbstractPreprocessor):
    """Is handed the input and output of a layer."""

    @abstractmethod
    def process_fw(self, name: str, module: nn.Module, layer_input: Any, layer_output: Any) -> None:
        """Take one forward pass."""


class AbstractBackwardPreprocessor(AbstractPreprocessor):
    """Is handed the gradients with respect to a layer's input and output."""

    needs_grad_input = True
    """False where only ``grad_output`` is read: then in-place operations after the layer stay possible."""

    @abstractmethod
    def process_bw(self, name: str, module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        """Take one backward pass."""


class AbstractModulePreprocessor(AbstractPreprocessor):
    """Is handed a whole module."""

    @abstractmethod
    def process_module(self, name: str, module: nn.Module) -> None:
        """Take one look at the module."""


class AbstractTensorPreprocessor(AbstractPreprocessor):
    """Is handed single tensors, such as gradients of parameters."""

    @abstractmethod
    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take one tensor."""

    def remember(self, name: str, tensor: Tensor) -> None:
        """See a tensor that is about to change, before it is processed; most have no use for it."""
