"""Single samples of signals as small blobs: what a diagnosis needs to be repeated later."""

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError

_SIZE = struct.Struct("<I")


class SampleArrays(NamedTuple):
    """Samples in the order in which they came: the step of each, its place among the names, and its value."""

    steps: NDArray[np.int64]
    places: NDArray[np.int64]
    values: NDArray[np.float64]

    @classmethod
    def joined(cls, parts: "Sequence[SampleArrays]") -> "SampleArrays":
        """All samples of some parts, one after the other."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def select(self, which: NDArray[np.bool_]) -> "SampleArrays":
        """Only some of them."""
        return SampleArrays(self.steps[which], self.places[which], self.values[which])


def pack(samples: SampleArrays) -> bytes:
    """Steps as distances, places and values in half of their bytes; compressed.

    >>> unpack(pack(SampleArrays(np.array([7, 9]), np.array([0, 1]), np.array([0.5, 2.0])))).values
    array([0.5, 2. ])
    """
    if not samples.steps.shape == samples.places.shape == samples.values.shape == (samples.values.size,):
        raise OptionError("samples have as many steps as places and values")
    if (samples.places < 0).any():
        raise OptionError(f"the places of samples are numbers of names, not {samples.places.min()}")
    with np.errstate(over="ignore"):  # what overflows float32 becomes infinite
        values = samples.values.astype("<f4")
    parts = np.diff(samples.steps, prepend=0).astype("<i8"), samples.places.astype("<u4"), values
    return zlib.compress(_SIZE.pack(len(values)) + b"".join(part.tobytes() for part in parts), 1)


def unpack(data: bytes) -> SampleArrays:
    """The samples again."""
    content = zlib.decompress(data)
    (size,) = _SIZE.unpack_from(content)
    steps = np.cumsum(np.frombuffer(content, "<i8", size, _SIZE.size))
    places = np.frombuffer(content, "<u4", size, _SIZE.size + 8 * size)
    values = np.frombuffer(content, "<f4", size, _SIZE.size + 12 * size)
    return SampleArrays(steps.astype(np.int64), places.astype(np.int64), values.astype(np.float64))
