"""A separate output tensor for modules that return their input or a parameter."""

import dataclasses
from typing import Any

from torch import Tensor, nn, strided
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import SUPPORTED_NODES, tree_map

from ..preprocessor.outputs import tensors_in


def with_alias(output: Any, tensor: Tensor, module: nn.Module, inputs: Any) -> tuple[Any, Tensor]:
    """The output, and its tensor to put a gradient hook on; new ones if the module returned an input or a parameter.

    A hook on an input or a parameter would also see the gradients of other uses, and on a leaf it would stay.
    """
    if not tensor.is_leaf and (not _is_among(tensor, inputs) or _changes_its_input(module)):
        return output, tensor
    alias = tensor.view_as(tensor) if tensor.layout is strided else tensor.clone()  # sparse tensors have no views
    return replace(output, tensor, alias), alias


def replace(output: Any, old: Tensor, new: Tensor) -> Any:
    """The same output with another tensor in it; a dataclass is changed in place, since it might not allow a copy."""
    if output is old:
        return new
    if _is_data(output):
        for field in dataclasses.fields(output):
            value = getattr(output, field.name)
            changed = replace(value, old, new)
            if changed is not value:
                object.__setattr__(output, field.name, changed)  # works for frozen dataclasses, too
        return output
    return tree_map(lambda leaf: replace(leaf, old, new) if leaf is old or _is_data(leaf) else leaf, output)


def _is_data(thing: Any) -> bool:
    """Whether it is a dataclass that torch's pytree does not know."""
    if isinstance(thing, (Tensor, type)) or not dataclasses.is_dataclass(thing):
        return False
    return type(thing) not in SUPPORTED_NODES


def _is_among(tensor: Tensor, inputs: Any) -> bool:
    """Whether this very tensor is one of the inputs; most inputs are not nested."""
    for value in inputs:
        if value is tensor or (not isinstance(value, Tensor) and any(tensor is other for other in tensors_in(value))):
            return True
    return False


def _changes_its_input(module: nn.Module) -> bool:
    """Whether the module has just changed its input in place: then the tensor is its output only."""
    in_place: bool = getattr(module, "inplace", False)
    return in_place and (module.training or not isinstance(module, _DropoutNd))
