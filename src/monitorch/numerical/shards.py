"""Tensors that several processes hold together: what of them is here, and who else has the same."""

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .notes import OWN, SHARED

PLAIN = (Tensor, nn.Parameter)
"""What nearly all tensors are; told apart first, because hooks ask."""


def is_distributed(tensor: Any) -> bool:
    """Whether it is a DTensor, without loading what makes them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Tensor) -> tuple[Tensor, int]:
    """What is here of a parameter, a gradient or an update, and which part it is.

    A plain tensor counts as one that all processes hold. One that is still a sum to be taken over processes is summed
    up, which takes a collective.
    """
    if type(tensor) in PLAIN or not is_distributed(tensor):
        return _arrived(tensor), SHARED
    whole: Any = _summed(tensor)
    # other meshes of this shape, if there are some, hold copies: the place in the mesh is the part
    return _here(whole), int(np.ravel_multi_index(_place(whole), whole.device_mesh.shape))


def local_samples(tensor: Tensor) -> tuple[Tensor, int]:
    """What is here of a batch ``[B, ...]``: whole samples, which takes a collective where a sample is cut in pieces."""
    if not is_distributed(tensor):
        return _arrived(tensor), OWN
    whole: Any = tensor.detach()
    if any(not placement.is_replicate() and not placement.is_shard(0) for placement in whole.placements):
        whole = whole.redistribute(placements=[_replicate()] * len(whole.placements))
    return _here(whole), _lowest_rank(whole)


def local_gradient(tensor: Tensor) -> tuple[Tensor, int]:
    """What is here of the gradient of a batch, in whatever pieces."""
    if not is_distributed(tensor):
        return _arrived(tensor), OWN
    tensor = _summed(tensor)
    return _here(tensor), _lowest_rank(tensor)


def _here(tensor: Any) -> Tensor:
    with torch.no_grad():
        return _arrived(tensor.detach().to_local())


def _place(tensor: Any) -> tuple[int, ...]:
    """Where in its mesh this part is found first: along dimensions with copies, at the beginning."""
    coordinate = tensor.device_mesh.get_coordinate()
    pairs = zip(coordinate, tensor.placements, strict=True)
    return tuple(0 if placement.is_replicate() else number for number, placement in pairs)


def _lowest_rank(tensor: Any) -> int:
    """The lowest rank that holds this part; other meshes of this shape have other batches."""
    return int(tensor.device_mesh.mesh[_place(tensor)])


def _summed(tensor: Any) -> Any:
    if not any(placement.is_partial() for placement in tensor.placements):
        return tensor
    wanted = [_replicate() if placement.is_partial() else placement for placement in tensor.placements]
    return tensor.detach().redistribute(placements=wanted)


def _replicate() -> Any:
    return sys.modules["torch.distributed.tensor"].Replicate()


def _arrived(tensor: Tensor) -> Tensor:
    """The tensor itself, where it is one that a collective is still to fill."""
    wait = None if type(tensor) in PLAIN else getattr(tensor, "trigger_wait", None)
    return tensor if wait is None else wait()
