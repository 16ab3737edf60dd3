"""Are inputs in scale, do samples stay apart, and is the output what the loss wants?"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...diagnosis import Finding, Remedy
from ...diagnosis.symptoms.base import share
from ...diagnosis.symptoms.data import InputScale, OutputLossMismatch
from ...diagnosis.symptoms.loss import FAR, BadInitialLoss
from ...engine.tensors import tensors_in
from ...engine.torch_private import Normalization, tree_leaves
from ...inspector.model_copy import copied, cut, fresh
from ...inspector.probe import MOST_MIXED, Probe
from ...store.types import ERROR, INFO, WARNING, layer_text
from .facts import ModelFacts
from .loss_kind import CROSS_ENTROPY, ELEMENTWISE, LOGIT_BCE, NLL, REGRESSION, LossInput
from .wording import finding

FLOOR = 0.3
"""A model must be able to get below this loss."""
OUT_OF_REACH, SLACK = 0.01, 0.01
"""The share of targets that may lie outside the range of the last activation, and by how many standard deviations."""


def check_mixing(facts: ModelFacts) -> Iterator[Finding]:
    """Find samples that influence each other."""
    inputs, targets = facts.batch
    probe = Probe(facts.model, inputs, targets, loss_fn=facts.loss_fn)
    try:
        found = probe.mixing()
        pair = found.get("mixing_pair")
        is_bad = found.get("mixing", 0.0) > 0 and _has_samples_first(facts)
    except Exception as error:  # a model may want batches of one size, or none in eval mode
        facts.notes.append(f"whether samples mix is not known: {type(error).__name__}: {error}")
        return
    facts.notes += probe.notes
    if pair is None or not is_bad:
        return
    text = (
        f"In eval mode the output of sample {pair[0]} changes with the input of sample {pair[1]}, by "
        f"{found['mixing']:.3g} for a change of 1. The model reads other samples of the batch, so its "
        "answer depends on which samples are batched together."
    )
    remedy = Remedy("Look for a view, mean, softmax or attention over dimension 0, or batch_first=False.")
    yield finding("sample_mixing", ERROR, None, text, remedy, ("mixing", found["mixing"], 0.0))


def _has_samples_first(facts: ModelFacts) -> bool:
    """Whether outputs and targets have an entry for each sample, along the first dimension.

    False if there is a row and a column per sample, as in similarity matrices or graphs, or if the first dimension may
    be time.
    """
    inputs, targets = facts.batch
    given = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    size = len(given[0])
    if any(leaf.dim() == 2 and leaf.shape == (size, size) for leaf in given) and len(given) > 1:
        return False
    few = cut(inputs, slice(0, min(size, MOST_MIXED) - 1))
    with copied(facts.model, facts.loss_fn, train=False) as twin, torch.no_grad():
        shapes = [own.shape[1:] for own in tensors_in(twin.call(fresh(few))) if own.dim()]
        if shapes != [own.shape[1:] for own in tensors_in(twin.call(fresh(inputs))) if own.dim()]:
            return False
    if not any(getattr(part, "batch_first", True) is False for part in facts.model.modules()):
        return True
    labels = [leaf for leaf in tree_leaves(targets) if isinstance(leaf, Tensor)]
    return any(leaf.dim() == 1 and len(leaf) == size for leaf in labels)


def check_input_scale(facts: ModelFacts) -> Iterator[Finding]:
    """Find inputs that are too large, or on different scales."""
    for layer in facts.first.layers.values():
        data = layer.data
        if data is None or isinstance(layer.module, (Normalization, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)):
            continue
        size = max(abs(data.mean), data.std)
        remedy = Remedy("Give every input feature mean 0 and standard deviation 1.", "standardise_input")
        harm = "Weights are initialised for inputs of size 1, so the first steps overshoot or crawl."
        if size > InputScale.size:
            text = (
                f"What enters {layer_text(layer.name)} has mean {data.mean:.3g} and standard deviation {data.std:.3g}."
            )
            yield finding("input_scale", WARNING, None, f"{text} {harm}", remedy, ("input", size, InputScale.size))
            return
        if data.apart > InputScale.features:
            text = f"An input feature of {layer_text(layer.name)} varies {data.apart:.3g} times as much as most others."
            shown = ("feature spread", data.apart, InputScale.features)
            yield finding("input_scale", WARNING, None, f"{text} {harm}", remedy, shown)
            return


def check_output(facts: ModelFacts) -> Iterator[Finding]:
    """Find an output that is not what the loss wants."""
    known, last = facts.loss, facts.first.last_function
    if known is None or not facts.is_finite:
        return
    text = _mismatch(known, facts)
    if text is not None:
        layer = None if last is None else last.name
        if known.kind in ELEMENTWISE and known.output.shape != known.target.shape:
            remedy = Remedy("Give both the same shape, such as output.squeeze(-1) or target.unsqueeze(-1).")
        elif layer is not None and known.kind != NLL:
            cure = "Remove the last activation, or use one that fits the targets."
            remedy = Remedy(cure, "drop_output_activation", {"layer": layer})
        else:
            remedy = Remedy("Return logits, and use CrossEntropyLoss.")
        yield finding("output_loss_mismatch", ERROR, layer, text, remedy)


def _mismatch(known: LossInput, facts: ModelFacts) -> str | None:
    """What is wrong with an output for a loss, in two sentences; None if nothing is."""
    output, target, last = known.output, known.target, facts.first.last_function
    if last is not None and last.is_softmax and bool((output == 1).all()):
        return "The last softmax is over a single unit. So every output is 1, and no gradient gets through."
    if known.kind in ELEMENTWISE and output.shape != target.shape and output.numel() and known.mean is not None:
        shapes = f"{list(output.shape)} and {list(target.shape)}"
        return (
            f"Output and target have different shapes, {shapes}. The loss then broadcasts: it compares every output "
            "with every target."
        )
    if known.kind in (CROSS_ENTROPY, NLL) and known.class_dim is not None and known.classes > 1:
        return _class_mismatch(known, facts)
    if known.kind == LOGIT_BCE and last is not None and (last.low, last.high) == (0.0, 1.0):
        return (
            f"The output of {layer_text(last.name)} is a probability, but the loss wants logits. Sigmoid is applied "
            "twice, so the loss cannot get below 0.31."
        )
    if known.kind in REGRESSION and last is not None and target.is_floating_point() and output.shape == target.shape:
        slack = SLACK * float(target.std(correction=0))
        outside = float(((target < last.low - slack) | (target > last.high + slack)).to(torch.float32).mean())
        if outside > OUT_OF_REACH:
            low, high = float(target.min()), float(target.max())
            return (
                f"Targets are between {low:.3g} and {high:.3g}, but the last activation only gives {last.low:.3g} to "
                f"{last.high:.3g}. The model cannot reach {share(outside)} of them, however long it trains."
            )
    return None


def _class_mismatch(known: LossInput, facts: ModelFacts) -> str | None:
    last, output, dim = facts.first.last_function, known.output, known.class_dim
    assert dim is not None
    sums = output.sum(dim)
    is_probability = bool((output >= 0).all()) and bool(((sums - 1).abs() < OutputLossMismatch.tolerance).all())
    if is_probability:
        wanted = "logits" if known.kind == CROSS_ENTROPY else "log-probabilities"
        return (
            f"All rows of the output sum to 1, so they are probabilities, but the loss wants {wanted}. Gradients are "
            "flat, and the loss cannot get near its minimum."
        )
    if known.kind == NLL and facts.loss_fn is not None:
        total = output.logsumexp(dim).abs().amax()
        if float(total) > 1e-2:
            return (
                f"The loss wants log-probabilities, but exponentials of the output sum to {float(total.exp()):.3g}, "
                "not to 1. Then the loss has no minimum and falls without limit."
            )
    if last is not None and math.isfinite(last.high - last.low):
        least = math.log1p((known.classes - 1) * math.exp(last.low - last.high))
        if least > FLOOR:
            return (
                f"Outputs are between {last.low:.3g} and {last.high:.3g} because of the last activation, and the loss "
                f"takes them for logits. It cannot get below {least:.3g}."
            )
    return None


def check_initial_loss(facts: ModelFacts) -> Iterator[Finding]:
    """Find a first loss that is larger than it should be."""
    known = facts.loss
    if known is None or known.kind in REGRESSION or known.trivial is None or known.mean is None:
        return
    if known.target.numel() < BadInitialLoss.batch:
        return  # with few samples, the loss may be high by chance
    limit = BadInitialLoss.factor * known.trivial
    if not limit < known.mean < math.inf:
        return
    text = (
        f"The first loss is {known.mean:.3g}; a model with constant output gets {known.trivial:.3g}. The outputs "
        "are too large, or the bias of the last layer is wrong."
    )
    last = facts.last_layer
    remedy = Remedy("Initialise the last layer smaller.", "reinit", {"layers": [last] if last else [], "gain": 0.1})
    severity = WARNING if known.mean > FAR * limit else INFO
    yield finding("bad_initial_loss", severity, last, text, remedy, ("loss", known.mean, limit))
