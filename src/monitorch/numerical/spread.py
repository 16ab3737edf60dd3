"""How much numbers differ along a dimension of a tensor.

On the CPU NumPy does the work, for several tensors of one shape at once: its calls take a fraction of the time of
torch's, and for small tensors the calls take all the time.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .precision import computable, in_full, wide_dtype

Array = NDArray[Any]

LONG = 1 << 13
"""Up to this length, float32 sums are precise enough."""

LOW, HIGH = 1e-24, 1e36
"""Between these a sum of squares in float32 has neither overflowed nor lost digits."""


LEAST = 1e-16
"""Smaller deviations may have lost digits in float32."""


def relative_spreads(x: Tensor, dim: int) -> Tensor | list[float]:
    """The mean standard deviation along a dimension over the root mean square of all elements, for stacked tensors.

    It is 0 if all elements are 0. On the CPU these are numbers.

    >>> relative_spreads(torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0]]), 1)
    [0.0, 1.0]
    """
    if x.device.type == "cpu":
        numbers = host_numbers(x)
        found: list[float] = host_spreads(numbers, dim, norms_of_each(numbers)).tolist()
        return found
    norms = torch.linalg.vector_norm(computable(x).flatten(1), dim=1, dtype=wide_dtype(x))
    scale = (norms / math.sqrt(x[0].numel())).clamp_min(torch.finfo(torch.float32).tiny)
    spreads: Tensor = device_deviations(x, dim) / scale
    return spreads


def device_deviations(x: Tensor, dim: int) -> Tensor:
    """The mean of the standard deviations along a dimension, for each of stacked tensors.

    >>> device_deviations(torch.tensor([[[1.0, 0.0], [3.0, 0.0]]]), 1)
    tensor([0.5000], dtype=torch.float64)
    """
    x = in_full(x)
    return x.std(dim, correction=0).reshape(len(x), -1).mean(1, dtype=wide_dtype(x))


def host_numbers(x: Tensor) -> Array:
    """The numbers of a tensor on the CPU: its own memory, or float32 in the place of shorter floats."""
    numbers: Array = in_full(x.detach()).numpy()
    return numbers


@np.errstate(all="ignore")
def host_spreads(x: Array, axis: int, norms: Array) -> Array:
    """The relative spreads of stacked arrays with these norms."""
    deviations = host_deviations(x, axis)
    return np.divide(deviations * math.sqrt(x[0].size), norms, out=deviations, where=norms != 0)


@np.errstate(all="ignore")
def norms_of_each(x: Array) -> Array:
    """The Euclidean norms of stacked arrays.

    >>> norms_of_each(np.array([[[3.0, 0.0], [0.0, 4.0]], [[1e200, 0.0], [0.0, 0.0]]]))
    array([5.e+000, 1.e+200])
    """
    rows = x.reshape(len(x), -1)
    parts = [rows[:, start : start + LONG] for start in range(0, rows.shape[1], LONG)]
    squares = squares_by_row(parts[0]).astype(np.float64)
    for part in parts[1:]:
        squares += squares_by_row(part)
    norms: Array = np.sqrt(squares)
    for index in np.flatnonzero(~((squares > LOW) & (squares < HIGH))).tolist():
        norms[index] = _careful_norm(rows[index])
    return norms


def _careful_norm(row: Array) -> float:
    largest = float(np.abs(row).max())
    if not 0 < largest < math.inf:
        return largest
    wide = row.astype(np.float64) / largest
    return largest * math.sqrt(wide.dot(wide))


@np.errstate(all="ignore")
def host_deviations(x: Array, axis: int) -> Array:
    """The mean of the standard deviations along an axis, for each of stacked arrays.

    >>> host_deviations(np.array([[[1.0, 0.0], [3.0, 0.0]]]), 1)
    array([0.5])
    """
    length, wide = x.shape[axis], np.float64 if x.shape[axis] > LONG else None
    mean: Array = np.add.reduce(x, axis, wide, keepdims=True)
    mean /= length
    off = np.subtract(x, mean, dtype=x.dtype)
    if wide is None and axis in (-1, x.ndim - 1):
        squares = squares_by_row(off)
    else:
        squares = np.add.reduce(np.multiply(off, off, off), axis, wide)
    rows = np.sqrt(squares, squares).reshape(len(x), -1)
    found: Array = np.add.reduce(rows, 1, np.float64)
    found /= rows.shape[1] * math.sqrt(length)
    if x.dtype != np.float64 and not ((found > LEAST) & (found < math.inf)).all():
        return host_deviations(x.astype(np.float64), axis)
    return found


def squares_by_row(rows: Array, out: Array | None = None) -> Array:
    """Sums of squares along the last axis."""
    if hasattr(np, "vecdot"):
        found: Array = np.vecdot(rows, rows, out)
        return found
    return np.einsum("...i,...i->...", rows, rows, out=out)  # before NumPy 2
