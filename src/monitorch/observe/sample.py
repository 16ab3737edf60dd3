"""The tensors of samples, in a dtype that can hold the results."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engine.torch_private import FakeTensor
from ..numerical.precision import wide_dtype

NUMBERS = bool, int, float, complex, np.number, np.bool_


def as_tensor(value: Any) -> Tensor | None:
    """A tensor as it is, a number as a CPU tensor that holds it exactly; None for anything else.

    >>> as_tensor(1e300)
    tensor(1.0000e+300, dtype=torch.float64)
    """
    if isinstance(value, Tensor):
        return value
    # NumPy keeps all digits of a number; torch would round it to the default dtype
    return torch.from_numpy(np.array(value)) if isinstance(value, NUMBERS) else None


def has_no_numbers(value: Any) -> bool:
    """Whether a tensor in ``value`` has no data, such as a fake or meta tensor: there is nothing to record.

    >>> has_no_numbers((torch.ones(1), [torch.ones(1, device="meta")]))
    True
    """
    if isinstance(value, Tensor):
        return value.is_meta or isinstance(value, FakeTensor)
    if isinstance(value, (tuple, list)):
        return any(map(has_no_numbers, value))
    return isinstance(value, dict) and any(map(has_no_numbers, value.values()))


def is_whole(data: Tensor) -> bool:
    """Whether a tensor holds whole numbers or bools."""
    return not (data.is_floating_point() or data.is_complex())


def running_dtype(data: Tensor) -> torch.dtype:
    """The dtype for a running state of samples like ``data``: integers and half precision would lose digits.

    >>> [running_dtype(torch.ones(1).to(dtype)) for dtype in (torch.float16, torch.bool, torch.int64)]
    [torch.float32, torch.float32, torch.float64]
    """
    if data.dtype == torch.complex32:
        return torch.complex64
    if is_whole(data):
        return wide_dtype(data) if data.element_size() > 2 else torch.float32  # float32 has 24 bits
    return data.dtype if data.element_size() > 2 else torch.float32


def floating(data: Tensor) -> Tensor:
    """``data`` in the dtype of a running state."""
    return data.to(running_dtype(data))


def common_dtype(first: Tensor, second: Tensor) -> torch.dtype:
    """The dtype that holds the values of both, integers as exactly as possible."""
    if is_whole(first) == is_whole(second):
        return torch.promote_types(first.dtype, second.dtype)
    return torch.promote_types(*(running_dtype(data) if is_whole(data) else data.dtype for data in (first, second)))
