"""Tensors that several processes hold together: what of them is here, and who else has the same.

A part of a tensor is named by the lowest rank that holds it.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from .notes import OWN, SHARED


def is_distributed(tensor: Any) -> bool:
    """Whether it is a DTensor, without loading what makes them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_part(tensor: Tensor) -> tuple[Tensor, int]:
    """What is here of a parameter, a gradient or an update, and which part it is.

    A plain tensor counts as one that all processes hold. One that is still a sum to be taken over processes is summed
    up, which takes a collective.
    """
    return _local(_summed(tensor)) if is_distributed(tensor) else (_arrived(tensor), SHARED)


def local_samples(tensor: Tensor) -> tuple[Tensor, int]:
    """What is here of a batch ``[B, ...]``: whole samples, which takes a collective where a sample is cut in pieces."""
    if not is_distributed(tensor):
        return _arrived(tensor), OWN
    whole: Any = tensor.detach()
    if any(not placement.is_replicate() and not placement.is_shard(0) for placement in whole.placements):
        whole = whole.redistribute(placements=[_replicate()] * len(whole.placements))
    return _local(whole)


def local_gradient(tensor: Tensor) -> tuple[Tensor, int]:
    """What is here of the gradient of a batch, in whatever pieces."""
    return _local(_summed(tensor)) if is_distributed(tensor) else (_arrived(tensor), OWN)


def _local(tensor: Any) -> tuple[Tensor, int]:
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    kept = [0 if placement.is_replicate() else c for c, placement in zip(coordinate, tensor.placements, strict=True)]
    with torch.no_grad():
        return _arrived(tensor.detach().to_local()), int(mesh.mesh[tuple(kept)])


def _summed(tensor: Any) -> Any:
    if not any(placement.is_partial() for placement in tensor.placements):
        return tensor
    wanted = [_replicate() if placement.is_partial() else placement for placement in tensor.placements]
    return tensor.detach().redistribute(placements=wanted)


def _replicate() -> Any:
    return sys.modules["torch.distributed.tensor"].Replicate()


def _arrived(tensor: Tensor) -> Tensor:
    """The tensor itself, where it is one that a collective is still to fill."""
    wait = getattr(tensor, "trigger_wait", None) if type(tensor) is not Tensor else None
    return tensor if wait is None else wait()
