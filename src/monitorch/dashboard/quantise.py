"""Numbers as 16-bit codes that a general compressor can make small.

Steps are even on a logarithmic axis: every number is kept to 0.025 percent where that many codes are enough. Numbers of
both signs use the inverse hyperbolic sine instead, which is linear around 0. NaN, infinity and missing numbers have
their own codes.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..store import is_absent

ABSENT, NAN, PLUS, MINUS, ZERO, FIRST = range(6)
STEP = 5e-4
_MOST_CODES = 2**16 - FIRST


class Codes(NamedTuple):
    """A transform and its parameters: a code stands for ``inverse(low + (code - FIRST) * step)``."""

    kind: str
    low: float
    step: float
    unit: float


def plan(*planes: NDArray[np.float32]) -> Codes:
    """The codes that fit some arrays."""
    known = np.concatenate([plane[np.isfinite(plane) & (plane != 0)] for plane in planes]).astype(np.float64)
    if not known.size:
        return Codes("log", 0.0, STEP, 1.0)
    kind = "asinh" if known.min() < 0 else "log"
    unit = float(np.percentile(np.abs(known), 5)) if kind == "asinh" else 1.0
    places = _forward(known, kind, unit)
    low, high = float(places.min()), float(places.max())
    return Codes(kind, low, max(STEP, (high - low) / (_MOST_CODES - 1)), unit)


def encode(values: NDArray[np.float32], codes: Codes) -> NDArray[np.uint16]:
    """The code of each number.

    >>> numbers = np.float32([0.001, 0, 1000, np.nan, np.inf])
    >>> encode(numbers, plan(numbers)).tolist()[1:2], decode(encode(numbers, plan(numbers)), plan(numbers))[3:].tolist()
    ([4], [nan, inf])
    """
    finite = np.isfinite(values)
    ordinary = finite & (values != 0)
    result = np.full(values.shape, ZERO, np.uint16)
    places = (_forward(values[ordinary].astype(np.float64), codes.kind, codes.unit) - codes.low) / codes.step
    result[ordinary] = np.clip(np.rint(places), 0, _MOST_CODES - 1).astype(np.uint16) + FIRST
    result[~finite] = np.select(
        [is_absent(values[~finite]), np.isposinf(values[~finite]), np.isneginf(values[~finite])],
        [ABSENT, PLUS, MINUS],
        NAN,
    )
    return result


def decode(found: NDArray[np.uint16], codes: Codes) -> NDArray[np.float64]:
    """The numbers again, as the page decodes them."""
    places = codes.low + (found.astype(np.float64) - FIRST) * codes.step
    numbers = np.exp(places) if codes.kind == "log" else np.sinh(places) * codes.unit
    specials = np.array([np.nan, np.nan, np.inf, -np.inf, 0.0])
    return np.where(found < FIRST, specials[np.minimum(found, ZERO)], numbers)


def squeeze(found: NDArray[np.uint16], beside: NDArray[np.uint16] | None = None) -> bytes:
    """Bytes that compress well: differences to the column before, or to another plane; low bytes, then high ones."""
    before = np.zeros_like(found) if beside is None else beside
    if beside is None:
        before[:, 1:] = found[:, :-1]
    difference = np.ascontiguousarray(found - before, "<u2")
    return bytes(difference.view(np.uint8).reshape(-1, 2).T.tobytes())


def _forward(values: NDArray[Any], kind: str, unit: float) -> NDArray[np.float64]:
    return np.asarray(np.log(values) if kind == "log" else np.arcsinh(values / unit), np.float64)
