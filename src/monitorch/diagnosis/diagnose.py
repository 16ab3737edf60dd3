"""From the history of a run to its findings."""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace

import numpy as np

from ..errors import OptionError
from ..store.types import INFO
from .causes import ranked
from .finding import Finding
from .history import SampleHistory
from .run import RunView
from .symptoms import SYMPTOMS, Symptom


def chosen(symptoms: Iterable[Symptom] | None) -> list[Symptom]:
    """All symptoms with their usual thresholds; those that are given replace the ones with the same id, or are new.

    >>> from .symptoms import DeadUnits
    >>> [one.share for one in chosen([DeadUnits(share=0.7)]) if one.id == "dead_units"]
    [0.7]
    """
    if not isinstance(symptoms, Iterable | None):
        raise OptionError(f"symptoms takes a list of objects such as DeadUnits(share=0.7), not {symptoms!r}")
    given = list(symptoms or ())
    for one in given:
        if not isinstance(one, Symptom):
            raise OptionError(f"symptoms takes objects such as DeadUnits(share=0.7), not {one!r}")
    own = {one.id: one for one in given}
    usual = [own.pop(symptom.id) if symptom.id in own else symptom() for symptom in SYMPTOMS]
    return [*usual, *own.values()]


@np.errstate(all="ignore")
def diagnose(
    history: SampleHistory,
    symptoms: Sequence[Symptom] | None = None,
    known: Iterable[Finding] = (),
    report: Callable[[str, Exception], None] | None = None,
    rest: Callable[[], object] = lambda: None,
) -> list[Finding]:
    """All findings, first causes first.

    Args:
        history: what is known of the run.
        symptoms: what to look for; None for everything.
        known: earlier findings. A finding keeps its first step even if older samples were dropped; a warning or error
            that has gone stays at the end of the list, marked as over.
        report: called when a symptom fails, and the others continue; without it the error is raised.
        rest: called before each symptom, so that a thread may let others run.
    """
    run, earlier_ones = RunView(history), list(known)
    looked_for = chosen(None) if symptoms is None else symptoms
    found: dict[str, Finding] = {}
    judged = set[str]()
    for symptom in looked_for:
        rest()
        try:
            if symptom.is_possible(run):
                found |= {one.id: one for one in symptom.look(run)}
                judged.add(symptom.id)
        except Exception as error:
            if report is None:
                raise
            report(symptom.id, error)
    for earlier in earlier_ones:
        now = found.get(earlier.id)
        if now is not None and (earlier.is_open or not now.is_open):  # a finding that returns starts anew
            found[earlier.id] = replace(
                now, step=min(now.step, earlier.step), detected_at=min(now.detected_at, earlier.detected_at)
            )
    gone = judged - {one.symptom for one in found.values()}  # one that moved to another layer counts as the same
    return [*ranked(found.values(), run), *(_over(one, run.step) for one in earlier_ones if _stays(one, gone))]


def _stays(earlier: Finding, gone: Container[str]) -> bool:
    """Whether it stays listed after it is gone: only if it was reported as a warning or an error."""
    return earlier.symptom in gone and (not earlier.is_open or earlier.severity != INFO)


def _over(earlier: Finding, step: int) -> Finding:
    """The same, over since this step at the latest."""
    end = step if earlier.resolved_at is None else earlier.resolved_at
    return replace(earlier, severity=INFO, caused_by=None, resolved_at=end)


def switched_off(history: SampleHistory, symptoms: Sequence[Symptom] | None = None) -> list[str]:
    """The ids of symptoms that cannot be judged because data are missing."""
    run = RunView(history)
    return [one.id for one in (chosen(None) if symptoms is None else symptoms) if not one.is_possible(run)]
