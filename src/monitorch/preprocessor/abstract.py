"""The five base classes of preprocessors, by what they receive.

To write your own, subclass one of the last four and write its ``process_*`` method, ``value`` and, if it keeps
anything, ``reset``.
"""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn


class AbstractPreprocessor(ABC):
    """Turns what gatherers pass on into numbers, kept by layer name."""

    @property
    @abstractmethod
    def value(self) -> dict[str, Any]:
        """What was computed since the last reset, by layer name."""

    def reset(self) -> None:  # noqa: B027  # some have nothing to forget
        """Forget what was computed: a tick has ended."""

    def clear(self) -> None:
        """Forget everything, also the tensors that later ones are compared with: the model is gone."""
        self.reset()

    def interrupt(self, name: str) -> None:  # noqa: B027
        """Called when tensors of ``name`` were not recorded for a while."""

    def start_sync(self, dst_rank: int = 0) -> None:  # noqa: B027
        """Begin to merge with the same preprocessor on other ranks."""

    def finish_sync(self) -> None:  # noqa: B027
        """Finish :meth:`start_sync`."""


class AbstractForwardPreprocessor(AbstractPreprocessor):
    """Receives the input and output of a layer."""

    needs_input = True
    """Set it to False if only the first floating tensor of the output is read: then compiled graphs are not broken."""

    @abstractmethod
    def process_fw(self, name: str, module: nn.Module, layer_input: Any, layer_output: Any) -> None:
        """Take one forward pass."""


class AbstractBackwardPreprocessor(AbstractPreprocessor):
    """Receives the gradients with respect to a layer's input and output."""

    needs_grad_input = True
    """Set it to False if only ``grad_output`` is read: then in-place operations after the layer stay possible."""

    @abstractmethod
    def process_bw(self, name: str, module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        """Take one backward pass."""


class AbstractModulePreprocessor(AbstractPreprocessor):
    """Receives a whole module."""

    @abstractmethod
    def process_module(self, name: str, module: nn.Module) -> None:
        """Take the module as it is now."""


class AbstractTensorPreprocessor(AbstractPreprocessor):
    """Receives single tensors, such as gradients of parameters."""

    @abstractmethod
    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take one tensor."""

    def remember(self, name: str, tensor: Tensor) -> None:
        """See a tensor that is about to change, before it is processed; most do not need it."""
