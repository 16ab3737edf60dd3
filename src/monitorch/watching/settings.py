"""Settings of a program, from any kind of object, as JSON data."""

import argparse
import dataclasses
import enum
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from numbers import Integral, Real
from typing import Any

DEEPEST = 8
"""How many levels of nesting are kept; deeper or recursive values become text."""

MOST_NUMBERS = 64
"""Arrays and tensors with more numbers than this are stored as their shape."""

LONGEST_TEXT = 300
"""How many characters are kept of an object that is neither a number nor text."""


def settings(config: Any) -> dict[str, Any]:
    """Settings by name, from a mapping, a namespace, a dataclass, any other object, or a class.

    >>> settings(argparse.Namespace(lr=0.1, betas=(0.9, 0.99), activation=math.tanh))
    {'lr': 0.1, 'betas': [0.9, 0.99], 'activation': 'math.tanh'}
    """
    found = _named(config)
    if found is None and callable(getattr(config, "to_dict", None)) and not isinstance(config, type):
        found = _tried(lambda: _named(config.to_dict()), None)
    if found is None and isinstance(config, type):
        found = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    elif found is None and hasattr(config, "__dict__") and not callable(config):
        found = vars(config)
    return {"config": plain(config)} if found is None else _plain_mapping(found, DEEPEST)


def plain(value: Any, depth: int = DEEPEST) -> Any:
    """A value as JSON data; what is not a number, text, list or mapping of these becomes text."""
    return _tried(lambda: _plain(value, depth), f"{type(value).__module__}.{type(value).__qualname__}")


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) else value.name
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(float(value))
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        return _plain_array(value, depth)
    named = _named(value)
    if depth <= 0:
        return _text(value)
    if named is not None:
        return _plain_mapping(named, depth)
    if isinstance(value, (Sequence, Set)) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [plain(item, depth - 1) for item in value]
    return _text(value)


def _plain_mapping(named: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    return {str(plain(name)): plain(value, depth - 1) for name, value in named.items()}


def _plain_array(array: Any, depth: int) -> Any:
    if math.prod(array.shape) <= MOST_NUMBERS:
        return plain(array.tolist(), depth)
    return f"{type(array).__name__} of shape {tuple(array.shape)}"


def _named(value: Any) -> Mapping[Any, Any] | None:
    """The named parts of an object that holds settings."""
    names: Iterable[Any]
    if isinstance(value, Mapping):
        return {name: _tried(lambda name=name: value[name], "missing") for name in value}  # type: ignore[misc]
    if isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
        return vars(value)
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        names = value._fields
    elif hasattr(type(value), "model_fields"):  # pydantic
        names = type(value).model_fields
    elif hasattr(value, "__attrs_attrs__"):
        names = [field.name for field in value.__attrs_attrs__]
    else:
        return None
    return {name: _tried(lambda name=name: getattr(value, name), "missing") for name in names}  # type: ignore[misc]


def _text(value: Any) -> str:
    if hasattr(value, "__qualname__"):  # classes and functions
        return f"{value.__module__}.{value.__qualname__}"
    text = str(value)
    is_address = text.startswith("<") and " at 0x" in text  # an address means nothing in another program
    return f"{type(value).__module__}.{type(value).__qualname__}" if is_address else text[:LONGEST_TEXT]


def _tried(read: Callable[[], Any], otherwise: Any) -> Any:
    """The result of ``read``, else ``otherwise``: settings that cannot be read must not end training."""
    try:
        return read()
    except Exception:
        return otherwise
