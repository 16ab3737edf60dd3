"""What a diagnosis could not judge; without these notes, "healthy" would say too much."""

from collections.abc import Iterator
from itertools import islice

from . import signals
from .history import SampleHistory
from .run import FEWEST, SHORT, RunView

MOST_NOTES = 3


def notes_of(history: SampleHistory) -> list[str]:
    """Notes on how little a diagnosis rests on, the most important first."""
    return list(islice(_notes(RunView(history)), MOST_NOTES))


def _notes(run: RunView) -> Iterator[str]:
    observed = run.table(signals.GRADIENT)
    if not run.loss:
        yield "No loss was seen, so it is not judged: pass loss_fn= or call push_loss(loss)."
    elif not run.is_long:
        yield f"{len(run.loss)} losses: too few to judge the loss; that needs {SHORT}."
    if len(observed.steps) < FEWEST:
        yield f"{len(observed.steps)} steps were observed: too few to judge layers; that needs {FEWEST}."
    elif not run.is_fresh(observed):
        last = f"step {observed.steps[-1]:,} of {run.step:,}"
        yield f"No step was observed after {last}: later ones are judged by their losses only."
    frozen = [name for name, own in run.facts.parameters.items() if not own.trainable]
    if 0 < len(frozen) < len(run.facts.parameters):
        more = len(frozen) - 1
        others = f" and {more:,} other{'s' * (more > 1)}" if more else ""
        yield f"{frozen[0]}{others} {'are' if more else 'is'} not trained (requires_grad=False)."
