"""Finds the tensor in a module's output, and tells training from evaluation."""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SkippedSample
from .abstract import AbstractForwardPreprocessor
from .accumulating import AccumulatingPreprocessor
from .ask import ALL_PASSES


def tensors_in(output: Any) -> Iterator[Tensor]:
    """All tensors in tuples, lists, dictionaries and dataclasses, in order."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (list, tuple)):
        yield from _tensors_of(output)
    elif isinstance(output, Mapping):
        yield from _tensors_of(output.values())
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        yield from _tensors_of(getattr(output, field.name) for field in dataclasses.fields(output))


def _tensors_of(parts: Iterable[Any]) -> Iterator[Tensor]:
    for part in parts:
        yield from tensors_in(part)


def pick_tensor(output: Any, index: int | str | None = None) -> Tensor | None:
    """The first floating tensor of a module's output, or of its part ``index``; a plain tensor has no parts.

    >>> pick_tensor({"ids": torch.tensor([1]), "logits": torch.zeros(2, 3)}).shape
    torch.Size([2, 3])
    """
    if isinstance(output, Tensor):
        return output if output.is_floating_point() or output.is_complex() else None
    if index is not None:
        by_name = isinstance(index, str) and not isinstance(output, Mapping)
        output = getattr(output, str(index)) if by_name else output[index]
    return next((t for t in tensors_in(output) if t.is_floating_point() or t.is_complex()), None)


def is_training_pass(module: nn.Module, evaluation_from_grad: bool | None) -> bool:
    """Whether a forward pass is part of training.

    ``True``: if gradients are enabled. ``False``: if the module is in train mode. ``None``: if both are true.
    """
    if evaluation_from_grad is None:
        return module.training and torch.is_grad_enabled()
    return torch.is_grad_enabled() if evaluation_from_grad else module.training


def kind_of_pass(module: nn.Module) -> int:
    """The two conditions of :func:`is_training_pass` as bits: 1 for train mode, 2 for gradients enabled."""
    return bool(module.training) + 2 * torch.is_grad_enabled()


class OutputPreprocessor(AccumulatingPreprocessor, AbstractForwardPreprocessor):
    """Measures outputs of training passes, or with ``record_eval`` of all passes; a subclass writes ``_measure``."""

    def __init__(
        self, inplace: bool, record_eval: bool, evaluation_from_grad: bool | None, output_index: int | str | None
    ) -> None:
        super().__init__(inplace)
        self.record_eval, self.evaluation_from_grad = record_eval, evaluation_from_grad
        self.output_index = output_index

    def passes(self) -> frozenset[int]:
        """The passes to measure, as :func:`kind_of_pass` numbers them."""
        if self.record_eval:
            return ALL_PASSES
        return {None: frozenset({3}), True: frozenset({2, 3}), False: frozenset({1, 3})}[self.evaluation_from_grad]

    def process_fw(self, name: str, module: nn.Module, layer_input: Any, layer_output: Any) -> None:
        """Take the output of one forward pass."""
        if self.record_eval or is_training_pass(module, self.evaluation_from_grad):
            with torch.no_grad():
                self._measure(name, samples_of(layer_output, self.output_index))

    @abstractmethod
    def _measure(self, name: str, output: Tensor) -> None:
        """Record numbers from an output ``[B, ...]`` that is floating and not empty."""


def samples_of(output: Any, index: int | str | None) -> Tensor:
    """The tensor of an output as a batch of samples ``[B, ...]``, floating and not empty."""
    tensor = pick_tensor(output, index)
    if tensor is None:
        raise SkippedSample(f"its output holds no floating tensor ({type(output).__name__})")
    if not tensor.numel():
        raise SkippedSample(f"its output is empty, shape {tuple(tensor.shape)}")
    return tensor if tensor.dim() > 1 else tensor.reshape(1, -1)  # no batch dimension: a batch of one
