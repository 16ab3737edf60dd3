"""The same diagnosis for a run on disk."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import StoreError
from ..store import Run, open_run
from .diagnose import chosen, diagnose
from .finding import Finding, findings_of
from .history import RunFacts, SampleHistory
from .notes import notes_of
from .symptoms import Symptom

FACTS = "diagnosis"
"""The key of the run facts in the metadata of a stored run."""

OF_DIAGNOSIS = ("findings", "notes", FACTS)
"""The keys of all that a diagnosis keeps there."""


def without_diagnosis(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a stored run that do not come from its diagnosis."""
    return {name: value for name, value in meta.items() if name not in OF_DIAGNOSIS}


def stored_history(run: Run) -> SampleHistory:
    """What a stored run has kept for a diagnosis."""
    facts = run.meta.get(FACTS)
    if facts is None:
        raise StoreError(
            f"{run.path} cannot be diagnosed: it has no diagnosis data. Only runs watched with monitorch.watch(...) of "
            "this release or later, without diagnose=False, have it"
        )
    history = SampleHistory(RunFacts.from_json(facts))
    stored, had = run.samples(), dict(history.facts.first_steps)
    for signal, parts in stored.items():
        for names, samples in parts:
            history.add(signal, names, samples.places, samples.steps, samples.values)
        first = min(int(samples.steps.min(initial=history.step)) for _, samples in parts)
        if first > had.get(signal, first):  # a run with a size limit has dropped its first samples
            history.facts.since = max(history.facts.since, first - 1)
    if not history.step:
        raise StoreError(f"{run.path} cannot be diagnosed: no step was stored")
    return history


def check(run: Run | str | os.PathLike[str], symptoms: Iterable[Symptom] | None = None) -> list[Finding]:
    """What is wrong in a stored run, first causes first.

    Args:
        run: the run, or its folder.
        symptoms: thresholds other than the usual ones, and symptoms of your own.
    """
    if isinstance(run, Run):
        return check_with_notes(run, symptoms)[0]
    with open_run(run) as opened:
        return check_with_notes(opened, symptoms)[0]


def check_with_notes(run: Run, symptoms: Iterable[Symptom] | None = None) -> tuple[list[Finding], list[str]]:
    """The same, and what could not be judged."""
    history = stored_history(run)
    known = _past(run) if symptoms is None else ()
    return diagnose(history, chosen(symptoms), known), notes_of(history)


def _past(run: Run) -> list[Finding]:
    """Findings that were over when the run ended; the stored numbers may no longer show them."""
    return [one for one in findings_of(run.meta) or () if not one.is_open]
