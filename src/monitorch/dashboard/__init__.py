"""Runs in a browser: a live local page, and reports as one HTML file. Never imports torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import create_app
    from .notebook import Report, report_html
    from .serving import serve

__all__ = ["Report", "create_app", "report_html", "serve"]

# name -> the module that defines it; a report needs no server
_LAZY = {"Report": ".notebook", "report_html": ".notebook", "create_app": ".app", "serve": ".serving"}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Resolve names on first use."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
