"""Tensors inside what modules take and return."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn, strided

from ..errors import SkippedSample
from .torch_private import Dropout, is_container, tree_map


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


def named_tensors(data: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The same with names: those of parts come after the name of the whole.

    >>> list(dict(named_tensors({"a": [torch.ones(1), torch.ones(1)]}, "x")))
    ['x.a.0', 'x.a.1']
    """
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(data, Tensor):
        yield name, data
    elif isinstance(data, (list, tuple)):
        parts = enumerate(data)
    elif isinstance(data, Mapping):
        parts = data.items()
    elif dataclasses.is_dataclass(data) and not isinstance(data, type):
        parts = ((field.name, getattr(data, field.name)) for field in dataclasses.fields(data))
    for key, part in parts:
        yield from named_tensors(part, f"{name}.{key}")


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


def tensor_for_graph(output: Any, index: int | str | None = None) -> Tensor | None:
    """The same while a model is being compiled: operators in the graph cannot take tensors of tensors."""
    tensor = pick_tensor(output, index)
    return None if tensor is None or tensor.is_nested else tensor


def samples_of(output: Any, index: int | str | None) -> Tensor:
    """The tensor of an output as a batch of samples ``[B, ...]``, floating and not empty."""
    tensor = pick_tensor(output, index)
    if tensor is None:
        raise SkippedSample(f"its output holds no floating tensor ({type(output).__name__})")
    if not tensor.numel():
        raise SkippedSample(f"its output is empty, shape {tuple(tensor.shape)}")
    return tensor if tensor.dim() > 1 else tensor.reshape(1, -1)  # no batch dimension: a batch of one


def has_no_numbers(data: Any) -> bool:
    """Whether there are tensors on the meta device in it: only their shapes are known, as under a tracer."""
    return any(tensor.is_meta for tensor in tensors_in(data))


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a module was called with: its first argument, or the first keyword argument."""
    return args[0] if args else next(iter(kwargs.values()), None)


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
    return not is_container(type(thing))


def _is_among(tensor: Tensor, inputs: Any) -> bool:
    """Whether this very tensor is one of the inputs; most inputs are not nested."""
    for value in inputs:
        if value is tensor or (not isinstance(value, Tensor) and any(tensor is other for other in tensors_in(value))):
            return True
    return False


def _changes_its_input(module: nn.Module) -> bool:
    """Whether the module has just changed its input in place: then the tensor is its output only."""
    in_place: bool = getattr(module, "inplace", False)
    return in_place and (module.training or not isinstance(module, Dropout))
