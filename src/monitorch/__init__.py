"""See inside any PyTorch training run: every layer, every step."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import MonitorchError, MonitorchWarning

if TYPE_CHECKING:
    from .inspector import PyTorchInspector

__version__ = "0.2.0"

__all__ = ["MonitorchError", "MonitorchWarning", "PyTorchInspector", "__version__"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Resolve names on first use, so that importing the package does not import torch."""
    if name == "PyTorchInspector":
        return import_module(".inspector", __name__).PyTorchInspector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
