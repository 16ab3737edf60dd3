"""Tensors that are sharded over processes: the local part, and which other processes have the same."""

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .torch_private import arrived, mark_constant

OWN, SHARED = -1, 0
"""Which part of a tensor is here: one that only this process has, or the whole tensor, which every process has."""

PLAIN = (Tensor, nn.Parameter)
"""The types of nearly all tensors; checked first, because hooks call this."""


def distributed_type() -> Any:
    """The class DTensor, without importing its package: until that is imported, no tensor can be one."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else module.DTensor


def is_distributed(tensor: Any) -> bool:
    """Whether it is a DTensor."""
    return isinstance(tensor, distributed_type())


def local_part(tensor: Tensor) -> tuple[Tensor, int]:
    """The local part of a parameter, a gradient or an update, and which part it is.

    A plain tensor counts as one that all processes hold. A partial sum over processes is reduced first, which takes a
    collective.
    """
    if type(tensor) in PLAIN:
        return tensor, SHARED
    if not is_distributed(tensor):
        return _arrived(tensor), SHARED
    whole: Any = _summed(tensor)
    mesh = whole.device_mesh
    # other meshes of this shape hold copies: the position in the mesh identifies the part
    return _here(whole), int(np.ravel_multi_index(_place(mesh, whole.placements), mesh.shape))


def part_here(tensor: Tensor) -> Tensor:
    """The local part as it is, without any collective: that of a partial sum is the summand of this process."""
    if type(tensor) in PLAIN:
        return tensor
    return _here(tensor) if is_distributed(tensor) else _arrived(tensor)


def local_samples(tensor: Tensor) -> tuple[Tensor, int]:
    """The local samples of a batch ``[B, ...]``; takes a collective if samples themselves are sharded."""
    return samples_here(tensor) if is_distributed(tensor) else (_arrived(tensor), OWN)


def local_gradient(tensor: Tensor) -> tuple[Tensor, int]:
    """The local part of the gradient of a batch, sharded in any way."""
    return gradient_here(tensor) if is_distributed(tensor) else (_arrived(tensor), OWN)


# the compiler can trace the following


def samples_here(tensor: Any) -> tuple[Tensor, int]:
    """Whole samples of a distributed batch; a tensor with less than two dimensions is one sample."""
    whole = tensor.detach() if tensor.dim() > 1 else tensor.detach().reshape(1, -1)
    if any(not placement.is_replicate() and not placement.is_shard(0) for placement in whole.placements):
        whole = whole.redistribute(placements=[_replicate()] * len(whole.placements))
    return _here(whole), _lowest_rank(whole.device_mesh, whole.placements)


def gradient_here(tensor: Any) -> tuple[Tensor, int]:
    """The local part of a distributed gradient."""
    # always redistribute: while compiling, a gradient is shown with the placements of its output
    tensor = tensor.detach().redistribute(placements=_without_sums(tensor.placements))
    return _here(tensor), _lowest_rank(tensor.device_mesh, tensor.placements)


def _here(tensor: Any) -> Tensor:
    with torch.no_grad():
        return _arrived(tensor.detach().to_local())


def _place(mesh: Any, placements: Any) -> tuple[int, ...]:
    """The first position of this part in its mesh: 0 along dimensions with copies."""
    pairs = zip(mesh.get_coordinate(), placements, strict=True)
    return tuple(0 if placement.is_replicate() else number for number, placement in pairs)


@mark_constant
def _lowest_rank(mesh: Any, placements: Any) -> int:
    """The lowest rank that holds this part; other meshes of this shape have other batches."""
    return int(mesh.mesh[_place(mesh, placements)])


def _summed(tensor: Any) -> Any:
    if not any(placement.is_partial() for placement in tensor.placements):
        return tensor
    return tensor.detach().redistribute(placements=_without_sums(tensor.placements))


def _without_sums(placements: Any) -> list[Any]:
    return [_replicate() if placement.is_partial() else placement for placement in placements]


def _replicate() -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate()


def _arrived(tensor: Tensor) -> Tensor:
    """The tensor itself, after waiting for the collective that fills it."""
    return tensor if type(tensor) in PLAIN else arrived(tensor)
