"""Estimates an inner product on the CPU from sketches of a few thousand numbers instead of whole tensors."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ...numerical.precision import HOST
from .host_pieces import PIECE, Array
from .reference import SIGNS, SKETCH, drawn

BLOCKS = PIECE // SKETCH


@lru_cache
def _windows() -> Array:
    """The signs of a block, by their start in the pool."""
    pool = torch.cat([SIGNS, SIGNS[:SKETCH]]).to(torch.float32).numpy()
    return np.lib.stride_tricks.sliding_window_view(pool, SKETCH)


@lru_cache(maxsize=4096)
def _plan(first: int) -> tuple[Array, list[tuple[int, np.ufunc]]]:
    """For blocks from ``first`` on: the start of their signs, their shift, and how they are joined."""
    shifts, begins, own = drawn(torch.arange(first, first + BLOCKS, dtype=torch.int64, device=HOST))
    joins = [np.add if sign > 0 else np.subtract for sign in own.tolist()]
    return begins.numpy(), list(zip(shifts.tolist(), joins, strict=True))


class Sketch:
    """Sums of elements in buckets, with signs that depend only on the position of an element.

    Args:
        dtype: of the sums.
    """

    def __init__(self, dtype: type[np.floating[Any]] = np.float32) -> None:
        # shifted blocks reach beyond the last bucket; that part is folded back at the end
        self.buckets = np.zeros(2 * SKETCH, dtype)

    def add(self, piece: Array, start: int) -> None:
        """Add a piece that begins with a block."""
        begins, ways = _plan(start // SKETCH)
        whole = piece.size // SKETCH
        signed = _windows()[begins[: -(-piece.size // SKETCH)]]
        np.multiply(piece[: whole * SKETCH].reshape(whole, SKETCH), signed[:whole], out=signed[:whole])
        for part, (shift, join) in zip(signed[:whole], ways, strict=False):
            target = self.buckets[shift : shift + SKETCH]
            join(target, part, out=target)
        if rest := piece.size - whole * SKETCH:
            shift, join = ways[whole]
            target = self.buckets[shift : shift + rest]
            join(target, piece[whole * SKETCH :] * signed[whole, :rest], out=target)

    def folded(self) -> Array:
        """The finished sketch."""
        return self.buckets[:SKETCH] + self.buckets[SKETCH:]
