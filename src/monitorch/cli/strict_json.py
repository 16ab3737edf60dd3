"""What commands answer to programs: JSON that every program can read.

JSON has no NaN and no infinity. They are the strings ``"nan"``, ``"inf"`` and ``"-inf"``; what was not measured is
``null``. A number has as many digits as it takes to be the same float32 again.
"""

import json
import math
from typing import Any

import numpy as np

from ..store import is_absent

SCHEMA = 1
"""The version of all answers: greater when a field is removed or means something else, not when one is added."""


def answer(**facts: Any) -> dict[str, Any]:
    """An answer, made of JSON types only.

    >>> answer(loss=[np.float32(0.1), float("nan")])
    {'schema': 1, 'loss': [0.1, 'nan']}
    """
    return {"schema": SCHEMA, **plain(facts)}


def print_answer(**facts: Any) -> None:
    """Print an answer as JSON."""
    print(json.dumps(answer(**facts), indent=2, allow_nan=False))


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
