"""Estimate of an inner product on the host from sketches a few thousand numbers long instead of whole tensors."""

from functools import lru_cache

import numpy as np
import torch

from .host_pieces import PIECE, Array
from .reference import SIGNS, SKETCH, offset, rotation

BLOCKS = PIECE // SKETCH


@lru_cache
def _windows() -> Array:
    """The signs of a block by where they begin in the pool."""
    pool = torch.cat([SIGNS, SIGNS[:SKETCH]]).to(torch.float32).numpy()
    return np.lib.stride_tricks.sliding_window_view(pool, SKETCH)


@lru_cache(maxsize=4096)
def _plan(first: int) -> tuple[Array, list[int]]:
    """Signs and rotations of some blocks from ``first`` on."""
    block = torch.arange(first, first + BLOCKS)
    return offset(block).numpy(), rotation(block).tolist()


class Sketch:
    """Sum of elements into buckets, under signs that depend on the place of an element only."""

    def __init__(self) -> None:
        # rotated blocks reach beyond the last bucket, what lies there is folded back in the end
        self.buckets = np.zeros(2 * SKETCH, np.float32)

    def add(self, piece: Array, start: int) -> None:
        """Add a piece that begins with a block."""
        begins, rotations = _plan(start // SKETCH)
        whole = piece.size // SKETCH
        signed = _windows()[begins[: -(-piece.size // SKETCH)]]
        np.multiply(piece[: whole * SKETCH].reshape(whole, SKETCH), signed[:whole], out=signed[:whole])
        for part, shift in zip(signed[:whole], rotations, strict=False):
            target = self.buckets[shift : shift + SKETCH]
            np.add(target, part, out=target)
        if rest := piece.size - whole * SKETCH:
            shift = rotations[whole]
            self.buckets[shift : shift + rest] += piece[whole * SKETCH :] * signed[whole, :rest]

    def folded(self) -> Array:
        """The finished sketch."""
        return self.buckets[:SKETCH] + self.buckets[SKETCH:]
