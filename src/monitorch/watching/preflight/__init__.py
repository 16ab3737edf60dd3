"""Mistakes that can be found before the first step."""

from .examine import preflight
from .report import Preflight

__all__ = ["Preflight", "preflight"]
