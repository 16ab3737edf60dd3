"""Can one batch be fitted, with this optimizer?"""

import math
from collections.abc import Iterator
from dataclasses import replace

from ...diagnosis import Evidence, Finding, Remedy
from ...diagnosis.symptoms.optimizer import NoProgress, StepTooLarge
from ...store.types import ERROR, INFO, WARNING
from .batch_fit import BatchFit
from .facts import ModelFacts
from .wording import finding

FALL, RISE = 0.02, 2.0
"""The loss of one batch must fall by the share ``FALL``, and must not rise to ``RISE`` times the first loss,"""
OVERSHOT, BACK = 10.0, 0.5
"""unless it rises to less than ``OVERSHOT`` times and ends below ``BACK`` times the first loss: first steps may
overshoot."""
FEWEST_STEPS = 10
"""With fewer steps, whether the batch can be fitted is not judged."""
FASTER = 10.0, 100.0, 1000.0
"""Factors for the learning rate when the fit is tried again; needing the last one means the rate is too small."""
USUAL_UPDATE = 1e-3
"""The usual change of a weight in a step, relative to its norm."""


def check_fit(facts: ModelFacts) -> Iterator[Finding]:
    """Find out whether this batch can be fitted."""
    fit = facts.fit
    if fit is None or facts.is_fitted:
        return
    first, steps = fit.losses[0], facts.fit_steps
    curve = Evidence("loss", None, tuple(range(len(fit.losses))), tuple(fit.losses))
    if not fit.is_finite or (facts.optimizers and fit.rise > RISE and (fit.late > first or _changes_too_much(fit))):
        worst = max((loss for loss in fit.losses if math.isfinite(loss)), default=first)
        text = (
            f"On this batch alone the loss goes from {first:.3g} to {worst:.3g} within {steps} steps"
            f"{'' if fit.is_finite else ', then becomes non-finite'}. The learning rate is too large."
        )
        remedy = Remedy("Divide the learning rate by 10, or warm it up.", "scale_lr", {"factor": 0.1})
        is_back = fit.is_finite and fit.rise < OVERSHOT and fit.late < BACK * first
        severity = INFO if is_back else ERROR
        yield replace(finding("step_too_large", severity, None, text, remedy), evidence=(curve,))
    elif steps >= FEWEST_STEPS and fit.fall < FALL:
        yield replace(_no_progress(facts, fit), evidence=(curve,))


def _changes_too_much(fit: BatchFit) -> bool:
    large = [change for change in fit.updates.values() if change > StepTooLarge.ratio]
    return len(large) >= max(1, StepTooLarge.layers * len(fit.updates))


def _falls(fit: BatchFit | None) -> bool:
    return fit is not None and fit.is_finite and fit.fall >= FALL


def _no_progress(facts: ModelFacts, fit: BatchFit) -> Finding:
    losses = f"{fit.losses[0]:.4g} to {min(fit.losses):.4g}"
    seen = f"In {facts.fit_steps} steps on this batch alone the loss falls only from {losses}."
    largest = max(fit.updates.values(), default=0.0)
    if facts.optimizers and 0 < largest < NoProgress.ratio:
        factor = 10.0 ** round(math.log10(USUAL_UPDATE / largest))
        text = f"{seen} A step changes weights by {largest:.1e} of their size at most: the learning rate is too small."
        remedy = Remedy(f"Multiply the learning rate by {factor:g}.", "scale_lr", {"factor": factor})
        return finding("no_progress", WARNING, None, text, remedy)
    for factor in FASTER:
        faster = facts.fit_with(facts.optimizers, factor)
        if _falls(faster):
            text = f"{seen} With {factor:g} times the learning rate it falls enough."
            remedy = Remedy("Try a larger learning rate.", "scale_lr", {"factor": factor})
            return finding("no_progress", WARNING if factor == FASTER[-1] else INFO, None, text, remedy)
    if facts.optimizers and (_falls(facts.fit_with(())) or _falls(facts.fit_with((), FASTER[0]))):
        text = f"{seen} With Adam it falls enough, so the batch can be fitted."
        return finding("no_progress", INFO, None, text, Remedy("Try Adam, or wait: it may only be slow."))
    text = f"{seen} A model that cannot fit one batch cannot learn."
    return finding("no_progress", ERROR, None, text, Remedy("Look at what else was found; check targets and loss."))
