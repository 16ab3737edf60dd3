"""JSON that every program can read.

JSON has no NaN and no infinity. They are the strings ``"nan"``, ``"inf"`` and ``"-inf"``; what was not measured is
``null``. A number has as many digits as it takes to be the same float32 again.
"""

import json
import math
from typing import Any

import numpy as np

from ..store import is_absent


def json_text(value: Any) -> str:
    """A value as JSON.

    >>> print(json_text({"loss": [np.float32(0.1), float("nan")]}))
    {
      "loss": [
        0.1,
        "nan"
      ]
    }
    """
    return json.dumps(plain(value), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """The same value, made of JSON types only."""
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, np.floating):
        return _number(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _number(value: Any) -> Any:
    if not np.isfinite(value):
        absent = isinstance(value, np.float32) and bool(is_absent(np.array([value]))[0])
        return None if absent else str(float(value))
    return float(str(value))
