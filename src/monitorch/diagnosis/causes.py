"""Which finding explains which: causes come first, with their consequences below them."""

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ..store.types import INFO, SEVERITIES
from . import signals
from .finding import Finding
from .run import RunView
from .symptoms import SYMPTOMS

STATIC = {
    "no_update",
    "stale_gradient",
    "output_loss_mismatch",
    "input_scale",
    "unrepresentative_batches",
    "symmetric_units",
    "exploding_signal",
    "bad_initial_loss",
    "underflow",
    "no_label_signal",
    "saturated_activation",
    "expert_collapse",
}
"""Symptoms that follow from how things are set up, whatever happens later."""

HARMFUL = {
    "nonfinite",
    "no_progress",
    "step_too_large",
    "dead_units",
    "saturated_activation",
    "vanishing_gradient",
    "no_gradient",
    "rank_collapse",
    "attention_collapse",
    "oscillation",
    "loss_spike",
    "gradient_noise",
    "over_regularised",
    "unrepresentative_batches",
    "bad_initial_loss",
    "exploding_signal",
    "overfitting",
    "expert_collapse",
    "underflow",
    "train_eval_mismatch",
}
"""Symptoms that can be consequences."""

NEVER = {
    ("attention_collapse", "nonfinite"),
    ("dead_units", "nonfinite"),
    ("rank_collapse", "nonfinite"),
    ("vanishing_gradient", "nonfinite"),
    ("no_update", "nonfinite"),
    ("no_update", "step_too_large"),
    ("no_update", "exploding_signal"),
    ("unrepresentative_batches", "saturated_activation"),
    ("bad_initial_loss", "exploding_signal"),
    ("input_scale", "unrepresentative_batches"),
    ("symmetric_units", "unrepresentative_batches"),
}
"""Pairs in which the first does not cause the second, whatever the order."""

ALWAYS = {
    ("train_eval_mismatch", "overfitting"),
    ("no_label_signal", "overfitting"),
    ("over_regularised", "step_too_large"),
    ("step_too_large", "saturated_activation"),
    ("expert_collapse", "no_gradient"),
}
"""Pairs in which the first explains the second, whichever was seen first."""

EXACT = {"nonfinite"}
"""Symptoms whose exact step is known, so that nothing seen before it can be a consequence."""

VAGUE = 0.65
"""Findings with less confidence than this explain nothing if there are others."""

SLACK = 10
"""Findings that began within this many steps of each other, or within three observed steps, began at the same time."""

LINGERING = {
    "underflow",
    "exploding_signal",
    "no_gradient",
    "stale_gradient",
    "no_update",
    "dead_units",
    "step_too_large",
}
"""Symptoms whose harm can last after they are over."""

WEARING = {"vanishing_gradient"}
"""The same if it lasted for most of the run."""

SILENT = {
    ("step_too_large", "dead_units"),
    ("step_too_large", "loss_spike"),
    ("step_too_large", "no_gradient"),
    ("step_too_large", "rank_collapse"),
    ("step_too_large", "saturated_activation"),
}
"""Pairs in which the first explains the second, although it does no harm by itself."""

ACTING = {"step_too_large", "over_regularised"}
"""Symptoms that do harm through steps, so that what the first pass shows cannot be their consequence."""

SEEN_AT_ONCE = {
    "dead_units",
    "saturated_activation",
    "vanishing_gradient",
    "no_gradient",
    "rank_collapse",
    "attention_collapse",
}
"""Symptoms visible in a single pass, so that the step at which they began is known."""

_ORDER = {symptom.id: number for number, symptom in enumerate(SYMPTOMS)}


def ranked(findings: Iterable[Finding], run: RunView) -> list[Finding]:
    """First causes first, each followed by its consequences.

    Harmful findings come before ones that only look odd. Then what is set up wrong comes before what happened later,
    earlier before later, and of findings that began at the same time the one whose symptom explains others.
    """
    found, slack = list(findings), _slack(run)
    late = {second for first, second in ALWAYS for one in found if one.symptom == first}
    if any(_is_cut(one, found, slack) for one in found):
        late.add("rank_collapse")
    moments = _moments([one.step for one in found], slack)
    ordered = sorted(
        found,
        key=lambda one: (
            _is_calm(one, found, slack, run),
            one.symptom in late,
            *_key(one, run, moments[one.step], slack),
        ),
    )
    placed: list[Finding] = []
    for one in ordered:
        causes = (other for other in placed if other.caused_by is None and _explains(other, one, slack, run))
        cause = next(causes, None)
        if cause is not None:
            begin = max(one.step, cause.step) if one.confidence < VAGUE else one.step
            one = replace(one, caused_by=cause.id, step=begin)
        placed.append(one)
    found = []
    for root in (one for one in placed if one.caused_by is None):
        rest = [one for one in placed if one.caused_by == root.id]
        begin = min(one.step for one in (root, *rest))  # the cause was there when its first consequence was seen
        found += [replace(root, step=begin), *rest]
    return found


def _slack(run: RunView) -> int:
    """Within how many steps findings began at the same time."""
    observed = run.table(signals.GRADIENT).steps
    apart = int(np.median(np.diff(observed))) if len(observed) > 1 else 1
    return max(SLACK, 3 * apart)


def _moments(steps: Iterable[int], slack: int) -> dict[int, int]:
    """The number of the group that each step belongs to; steps close to each other share one.

    >>> _moments([3, 12, 15, 40], 10)
    {3: 0, 12: 0, 15: 1, 40: 2}
    """
    found: dict[int, int] = {}
    first, number = -math.inf, -1
    for step in sorted(set(steps)):
        if step > first + slack:
            first, number = step, number + 1
        found[step] = number
    return found


def _is_calm(one: Finding, others: Iterable[Finding], slack: int, run: RunView) -> bool:
    """Whether it is harmless, and did no harm just before something harmful began."""
    if one.severity != INFO:
        return False
    harmful = [other for other in others if other.severity != INFO and not _was_there(one, other, run)]
    end = run.step if one.resolved_at is None else one.resolved_at + 2 * slack
    due = [other for other in harmful if one.step - slack <= other.step <= end]
    is_silent = any((one.symptom, other.symptom) in SILENT for other in due)
    return not is_silent and not (due and _lingers(one, run.step))


def _is_cut(one: Finding, others: Iterable[Finding], slack: int) -> bool:
    """Whether no gradient arrives at all, not even one of 0: outputs that are all alike cannot do that.

    But layers whose results are not used leave outputs that are all alike.
    """
    seen = {shown.series for shown in one.evidence}
    if one.symptom != "no_gradient" or one.severity == INFO or not seen or signals.GRADIENT in seen:
        return False
    return any(other.symptom == "rank_collapse" and one.step <= other.step + slack for other in others)


def _was_there(cause: Finding, other: Finding, run: RunView) -> bool:
    """Whether ``other`` was there in the first pass, although ``cause`` acts only through steps."""
    return cause.symptom in ACTING and other.symptom in SEEN_AT_ONCE and other.step <= run.facts.since + 1


def _lingers(one: Finding, now: int) -> bool:
    """Whether it is over but its harm lasts."""
    if one.resolved_at is None:
        return False
    lasted_long = one.resolved_at - one.step > (now - one.step) / 2
    return one.symptom in LINGERING or (one.symptom in WEARING and lasted_long)


def _key(one: Finding, run: RunView, moment: int, slack: int) -> tuple[object, ...]:
    is_static = one.symptom in STATIC and one.step <= run.facts.since + slack
    order = _ORDER.get(one.symptom, len(_ORDER))
    return one.confidence < VAGUE, not is_static, 0 if is_static else moment, order, run.place(one.layer)


def _explains(cause: Finding, other: Finding, slack: int, run: RunView) -> bool:
    if (cause.symptom, other.symptom) in NEVER or other.symptom not in HARMFUL or _was_there(cause, other, run):
        return False
    is_odd = cause.severity == INFO and not _lingers(cause, run.step)
    if is_odd and (cause.symptom, other.symptom) not in SILENT and other.severity != INFO:
        return False
    begin = cause.step - (0 if cause.symptom in EXACT else slack)
    since = other.detected_at if other.confidence < VAGUE else other.step  # when learning stopped is not known exactly
    is_later = since >= begin or (cause.symptom, other.symptom) in ALWAYS
    is_over = cause.resolved_at is not None and other.step > cause.resolved_at + 2 * slack
    return is_later and not is_over


def strongest(findings: Iterable[Finding]) -> str | None:
    """The worst severity of the open findings; None if there is none."""
    known = [SEVERITIES.index(one.severity) for one in findings if one.is_open]
    return SEVERITIES[max(known)] if known else None
