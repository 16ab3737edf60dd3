"""The same diagnosis for a run on disk."""

import os
from collections.abc import Iterable

from ..errors import StoreError
from ..store import Run, open_run
from .diagnose import chosen, diagnose
from .finding import Finding
from .history import RunFacts, SampleHistory
from .symptoms import Symptom

FACTS = "diagnosis"
"""The name of what is known of a run beside its samples, among the facts of a stored one."""


def stored_history(run: Run) -> SampleHistory:
    """What a stored run has kept for a diagnosis."""
    facts = run.meta.get(FACTS)
    if facts is None:
        raise StoreError(
            f"{run.path} cannot be diagnosed: nothing was kept for it. Runs are diagnosed if they were watched with "
            "monitorch.watch(...), of this release or later, and without diagnose=False"
        )
    history = SampleHistory(RunFacts.from_json(facts))
    stored, had = run.samples(), dict(history.facts.first_steps)
    for signal, parts in stored.items():
        for names, samples in parts:
            history.add(signal, names, samples.places, samples.steps, samples.values)
        first = min(int(samples.steps.min(initial=history.step)) for _, samples in parts)
        if first > had.get(signal, first):  # a run that may not grow has forgotten its first samples
            history.facts.since = max(history.facts.since, first - 1)
    return history


def check(run: Run | str | os.PathLike[str], symptoms: Iterable[Symptom] | None = None) -> list[Finding]:
    """What is wrong in a stored run, first causes first.

    Args:
        run: the run, or its folder.
        symptoms: thresholds other than the usual ones, and symptoms of your own.
    """
    if isinstance(run, Run):
        return diagnose(stored_history(run), chosen(symptoms))
    with open_run(run) as opened:
        return diagnose(stored_history(opened), chosen(symptoms))
