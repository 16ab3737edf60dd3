"""How findings before training are made and worded."""

from collections.abc import Sequence

from ...diagnosis import Evidence, Finding, Remedy
from ...store.types import layer_text

SHOWN = 4
"""The most names listed in a sentence."""


def finding(
    symptom: str,
    severity: str,
    layer: str | None,
    text: str,
    remedy: Remedy,
    *evidence: tuple[str, float, float | None],
) -> Finding:
    """A finding before the first step; evidence is name, value and threshold."""
    shown = tuple(Evidence(series, layer, (0,), (value,), threshold) for series, value, threshold in evidence)
    return Finding(symptom, severity, layer or None, 0, 0, text, remedy, shown)


def listed(names: Sequence[str]) -> str:
    """Names for a sentence."""
    more = len(names) - SHOWN
    shown = ", ".join(map(layer_text, names[:SHOWN]))
    return shown if more < 1 else f"{shown} and {more} more"
