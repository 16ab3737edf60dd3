"""Histograms as small blobs, and which of them a run keeps."""

import json
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .types import Counts

MOST_KEPT = 512
"""A tag keeps the histograms of its newest tick and of at most this many earlier ones, evenly spread over the run."""

_SIZES = struct.Struct("<II")  # bytes of the names, and counts that are not 0


def pack(layers: Sequence[str], counts: Counts) -> bytes:
    """The counts that are not 0, ``counts[layer, bin]``: their places as distances, and the numbers; compressed.

    >>> layers, counts = unpack(pack(["fc"], np.array([[0, 7, 0, 300]])), bins=4)
    >>> layers, counts.tolist()
    (('fc',), [[0, 7, 0, 300]])
    """
    names = json.dumps(list(layers)).encode()
    flat = counts.reshape(-1)
    places = np.flatnonzero(flat)
    numbers = _planes(np.diff(places, prepend=0), "<u4") + _planes(flat[places], "<u8")
    return zlib.compress(_SIZES.pack(len(names), len(places)) + names + numbers, 1)  # more is slower, for a tenth


def unpack(data: bytes, bins: int) -> tuple[tuple[str, ...], Counts]:
    """Layers, and counts ``[layer, bin]``; ``bins`` is how many bins each layer has."""
    content = zlib.decompress(data)
    length, size = _SIZES.unpack_from(content)
    start = _SIZES.size + length
    layers = tuple(json.loads(content[_SIZES.size : start]))
    counts = np.zeros(len(layers) * bins, np.int64)
    counts[np.cumsum(_numbers(content, start, size, "<u4"))] = _numbers(content, start + 4 * size, size, "<u8")
    return layers, counts.reshape(len(layers), bins)


def stride(number: int) -> int:
    """Every how many histograms one is kept, when there are this many before the newest; a power of two.

    >>> stride(0), stride(511), stride(512), stride(5000)
    (1, 1, 2, 16)
    """
    found = 1
    while number >= MOST_KEPT * found:
        found *= 2
    return found


def _planes(numbers: NDArray[np.int64], kind: str) -> bytes:
    """The first bytes of all numbers, then the second ones: high bytes are 0, and long runs of these take no room."""
    stored = numbers.astype(kind)
    return bytes(stored.view(np.uint8).reshape(-1, stored.itemsize).T.tobytes())


def _numbers(content: bytes, start: int, size: int, kind: str) -> NDArray[np.int64]:
    width = np.dtype(kind).itemsize
    planes = np.frombuffer(content, np.uint8, size * width, start).reshape(width, size)
    return np.ascontiguousarray(planes.T).view(kind).reshape(-1).astype(np.int64)
