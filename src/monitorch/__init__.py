"""See inside any PyTorch training run: every layer, every step."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import MonitorchError, MonitorchWarning

if TYPE_CHECKING:
    from .inspector import PyTorchInspector
    from .model_watch import watch

__version__ = "0.2.0"

__all__ = ["MonitorchError", "MonitorchWarning", "PyTorchInspector", "__version__", "watch"]

# name -> the module that defines it
_LAZY = {"PyTorchInspector": ".inspector", "watch": ".model_watch"}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Resolve names on first use, so that importing the package does not import torch."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
