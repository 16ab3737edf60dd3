"""What a diagnosis could not judge; without these notes, "healthy" would say too much."""

from collections.abc import Iterator, Sequence
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
    if not run.loss and run.validation and observed:
        yield "All losses were seen in eval mode, so none counts as training: call model.train() before training."
    elif not run.loss:
        yield "No loss was seen, so it is not judged: pass loss_fn= or call push_loss(loss)."
    elif not run.is_long:
        losses = "1 loss" if len(run.loss) == 1 else f"{len(run.loss)} losses"
        yield f"{losses}: too few to judge the loss; that needs {SHORT}."
    if len(observed.steps) < FEWEST:
        steps = "1 step was" if len(observed.steps) == 1 else f"{len(observed.steps)} steps were"
        yield f"{steps} observed: too few to judge layers; that needs {FEWEST}."
    elif not run.is_fresh(observed):
        last = f"step {observed.steps[-1]:,} of {run.step:,}"
        yield f"No step was observed after {last}: later ones are judged by their losses only; every=10 sees more."
    left_out = _left_out(run)
    if left_out:
        is_one = len(left_out) == 1
        what = "its layer does not run, runs" if is_one else "their layers do not run, run"
        why = f"in training {what} only under no_grad(), or without reaching the loss"
        yield f"{_together(left_out)} never got a gradient: {why}."
    frozen = [name for name, own in run.facts.parameters.items() if not own.trainable]
    if 0 < len(frozen) < len(run.facts.parameters):
        yield f"{_together(frozen)} {'are' if len(frozen) > 1 else 'is'} not trained (requires_grad=False)."


def _left_out(run: RunView) -> list[str]:
    """Parameters that should learn, but whose layers have no pass that is known to teach them.

    A layer that is called under ``no_grad()`` looks like one that is not called, which may be intended; and of layers
    such as normalisations, whose outputs are not kept, it is not known whether they are called.
    """
    changed, observed = run.table(signals.CHANGED), run.table(signals.GRADIENT)
    if len(observed.steps) < FEWEST:
        return []
    seen = {*run.table(signals.OUTPUT).places, *observed.places}
    known = ((name, run.facts.parameters[name]) for name in changed.places if name in run.facts.parameters)
    return [
        name
        for name, own in known
        if own.trainable and own.optimized and name not in seen and own.layer not in seen
        if not (changed.column(name) > 0).any()
    ]


def _together(names: Sequence[str]) -> str:
    """The first name, and how many others."""
    more = len(names) - 1
    return f"{names[0]} and {more:,} other{'s' * (more > 1)}" if more else names[0]
