"""See inside any PyTorch training run: every layer, every step."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import MonitorchError, MonitorchWarning

if TYPE_CHECKING:
    from . import (
        dashboard,
        diagnosis,
        errors,
        gatherer,
        inspector,
        integration,
        lens,
        numerical,
        observe,
        preprocessor,
        store,
        testing,
        visualizer,
        watching,
    )
    from .inspector import PyTorchInspector
    from .watching import Watch, watch
    from .watching.preflight import preflight

__version__ = "0.3.0"

__all__ = [
    "MonitorchError",
    "MonitorchWarning",
    "PyTorchInspector",
    "Watch",
    "__version__",
    "dashboard",
    "diagnosis",
    "errors",
    "gatherer",
    "inspector",
    "integration",
    "lens",
    "numerical",
    "observe",
    "preflight",
    "preprocessor",
    "store",
    "testing",
    "visualizer",
    "watch",
    "watching",
]

# name -> the module that defines it; other names are packages
_LAZY = {
    "PyTorchInspector": ".inspector",
    "Watch": ".watching",
    "preflight": ".watching.preflight",
    "watch": ".watching",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Resolve names on first use, so that importing the package does not import torch."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
