"""What was found before training, in the order in which to look at it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...diagnosis import Finding
from ...store.types import INFO, SEVERITIES
from ..finding_text import finding_text

EXPLAINS: dict[str, frozenset[str]] = {
    "no_update": frozenset({"no_progress"}),
    "output_loss_mismatch": frozenset({"no_gradient", "vanishing_gradient", "bad_initial_loss", "no_progress"}),
    "sample_mixing": frozenset(),
    "input_scale": frozenset(
        {"saturated_activation", "exploding_signal", "dead_units", "bad_initial_loss", "step_too_large"}
        | {"vanishing_gradient", "no_gradient", "no_progress"}
    ),
    "symmetric_units": frozenset({"dead_units", "no_gradient", "vanishing_gradient", "no_progress"}),
    "exploding_signal": frozenset(
        {"saturated_activation", "dead_units", "bad_initial_loss", "step_too_large", "no_progress"}
    ),
    "saturated_activation": frozenset({"vanishing_gradient", "no_gradient", "no_progress"}),
    "dead_units": frozenset({"vanishing_gradient", "no_gradient", "no_progress"}),
    "bad_initial_loss": frozenset({"step_too_large"}),
    "nonfinite": frozenset({"no_gradient", "no_progress", "step_too_large"}),
    "step_too_large": frozenset({"no_progress"}),
    "vanishing_gradient": frozenset({"no_progress"}),
    "no_gradient": frozenset({"no_progress"}),
    "no_progress": frozenset(),
}
"""All symptoms, and what each can cause; the most basic ones come first."""


class Preflight(list[Finding]):
    """What was found before training, first causes first: a list of findings.

    Args:
        findings: what was found.
        notes: what could not be checked, and why.
    """

    def __init__(self, findings: Iterable[Finding] = (), notes: Iterable[str] = ()) -> None:
        super().__init__(findings)
        self.notes = tuple(notes)

    def __str__(self) -> str:
        return "\n".join([finding_text(self), *(f"  note: {text}" for text in self.notes)])

    __repr__ = __str__


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Causes first, the worst and most basic ones at the top; then consequences, then information."""
    order = list(EXPLAINS)
    ordered = sorted(findings, key=lambda one: order.index(one.symptom))
    causes = [one for one in ordered if one.severity != INFO and one.caused_by is None]
    linked = []
    for one in ordered:
        cause = next((other for other in causes if one.symptom in EXPLAINS[other.symptom]), None)
        is_placed = one.caused_by is not None or one.severity == INFO
        linked.append(one if is_placed or cause is None else replace(one, caused_by=_root(cause, causes).id))
    worst = {
        root.id: max(SEVERITIES.index(one.severity) for one in linked if root.id in (one.id, one.caused_by))
        for root in linked
    }
    return sorted(
        linked, key=lambda one: (one.severity == INFO, one.caused_by is not None, -worst[one.caused_by or one.id])
    )


def _root(cause: Finding, causes: Sequence[Finding]) -> Finding:
    """The cause of a cause."""
    above = next((other for other in causes if cause.symptom in EXPLAINS[other.symptom]), None)
    return cause if above is None else _root(above, causes)
