"""A tensor of its own for the output of a module that returns its input."""

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_map

from ..preprocessor.outputs import tensors_in


def with_alias(output: Any, tensor: Tensor, module: nn.Module, inputs: Any) -> tuple[Any, Tensor]:
    """The output and its tensor to put a gradient hook on; new ones where the module returned its own input.

    A hook on the input would also see the gradients of its other uses.
    """
    if not _is_among(tensor, inputs) or _changes_its_input(module):
        return output, tensor
    alias = tensor.view_as(tensor)
    return replace(output, tensor, alias), alias


def replace(output: Any, old: Tensor, new: Tensor) -> Any:
    """The same output with another tensor in it."""
    return new if output is old else tree_map(lambda leaf: new if leaf is old else leaf, output)


def _is_among(tensor: Tensor, inputs: Any) -> bool:
    """Whether the very tensor is one of the inputs; most have no tensors further inside."""
    for value in inputs:
        if value is tensor or (not isinstance(value, Tensor) and any(tensor is other for other in tensors_in(value))):
            return True
    return False


def _changes_its_input(module: nn.Module) -> bool:
    """Whether the module has just changed its input in place: then the tensor is its output and nothing else."""
    in_place: bool = getattr(module, "inplace", False)
    return in_place and (module.training or not isinstance(module, _DropoutNd))
