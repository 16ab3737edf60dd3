"""Is everything finite, does every parameter get a gradient, and does the optimizer have it?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

import torch
from torch import Tensor

from ...diagnosis import Finding, Remedy, remedies
from ...engine.optimizers import Owned
from ...engine.torch_private import tree_leaves
from ...inspector.hidden_parameters import hidden_parameters
from ...store.types import ERROR, INFO, WARNING, layer_text
from .batch_fit import DEFAULT_RATE
from .facts import ModelFacts
from .first_pass import FirstPass, SeenLayer
from .wording import finding, listed


def check_finite(facts: ModelFacts) -> Iterator[Finding]:
    """Find where numbers stop being finite."""
    if facts.is_finite:
        return
    layer, text = _origin(facts)
    remedy = Remedy("Look for a division by 0, a root or logarithm of 0, or numbers too large for their type there.")
    yield finding("nonfinite", ERROR, layer, f"{text} One step would make every weight NaN.", remedy)


def _origin(facts: ModelFacts) -> tuple[str | None, str]:
    first = facts.first
    bad = [name for name, own in first.parameters.items() if not bool(torch.isfinite(own).all())]
    if bad:
        return first.layer_of[bad[0]], f"The parameter {bad[0]} holds numbers that are not finite."
    return _backward_origin(first) if math.isfinite(first.loss) else _forward_origin(facts)


def _forward_origin(facts: ModelFacts) -> tuple[str | None, str]:
    """The first layer whose output is not finite although its input is."""
    leaves = [leaf for leaf in tree_leaves(facts.batch[0]) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if any(bool(leaf.isnan().any()) for leaf in leaves):
        return None, "The inputs hold NaN."
    before: SeenLayer | None = None
    for layer in facts.first.layers.values():
        if not layer.gives_finite and layer.takes_finite:
            return layer.name, f"The output of {layer_text(layer.name)} is not finite, although its input is."
        if not layer.takes_finite and before is not None:
            return before.name, f"Right after {layer_text(before.name)} something computes numbers that are not finite."
        before = layer
    last = None if before is None else before.name
    return last, f"The loss is {facts.first.loss}, although the outputs of all layers are finite."


def _backward_origin(first: FirstPass) -> tuple[str | None, str]:
    """Backward runs from the last layer to the first, so it began in the last one with a non-finite gradient."""
    for layer in reversed(first.layers.values()):
        if not layer.gradient_is_finite:
            return (
                layer.name,
                f"The gradient that arrives at {layer_text(layer.name)} is not finite, although the loss is.",
            )
    name = next(name for name, own in reversed(first.gradients.items()) if not bool(torch.isfinite(own).all()))
    return first.layer_of[name], f"The gradient of {name} is not finite, although the loss is."


def check_gradients(facts: ModelFacts) -> Iterator[Finding]:
    """Find parameters that get no gradient."""
    first = facts.first
    if not facts.is_finite:
        return
    if not first.trained:
        remedy = Remedy("Call requires_grad_() on the layers to train.")
        yield finding("no_gradient", ERROR, None, "No parameter requires a gradient. Nothing can learn.", remedy)
        return
    is_judged = facts.fit is not None  # a gradient of 0 may come from weights that are 0 only at first
    lacking = [
        name for name in first.trained if name not in facts.with_gradient and (is_judged or name not in first.gradients)
    ]
    if len(lacking) == len(first.trained):
        text = f"None of the {len(lacking)} trained parameters gets a gradient other than 0. Nothing can learn."
        remedy = Remedy("Look for detach(), no_grad(), item() or argmax() between the model and the loss.")
        yield finding("no_gradient", ERROR, None, text, remedy)
    elif lacking:
        yield from _lacking(facts, lacking)


def _lacking(facts: ModelFacts, lacking: list[str]) -> Iterator[Finding]:
    """Layers that the gradient does not reach are an error; those that the loss does not depend on are not."""
    first, layers = facts.first, dict[str, list[str]]()
    for name in lacking:
        layers.setdefault(first.layer_of[name], []).append(name)
    blocked = [layer for layer, own in layers.items() if facts.reaches(own)] if facts.reaches(lacking) else []
    trained = {first.layer_of[name] for name in first.trained}
    ran = [name for name in first.layers if name in trained]
    cause: Finding | None = None
    for layer in reversed([*(name for name in blocked if name not in ran), *ran]):
        if layer not in blocked:
            cause = None  # layers further back are cut off by something else
            continue
        names = layers[layer]
        is_cut = any(name not in first.gradients for name in names)
        what = "but gets no gradient" if is_cut else "but its gradient is exactly 0 in every step"
        text = (
            f"The loss depends on {listed(names)}, {what}. "
            f"Something after {layer_text(layer)} passes values on but blocks gradients."
        )
        remedy = Remedy("Look for detach(), no_grad(), numpy(), argmax() or round() after this layer.")
        found = finding("no_gradient", ERROR, layer, text, remedy)
        yield found if cause is None else replace(found, caused_by=cause.id)
        cause = cause or found
    unused = [name for name in lacking if first.layer_of[name] not in blocked and name not in first.gradients]
    if unused:
        text = f"The loss of this batch does not depend on {listed(unused)}. That is fine if it is intended."
        remedy = Remedy("None, if that is intended; otherwise use its output in the loss.")
        yield finding("no_gradient", INFO, _common_layer(facts, unused), text, remedy)


def check_hidden(facts: ModelFacts) -> Iterator[Finding]:
    """Find parameters that torch does not know."""
    owned, own = Owned(*facts.optimizers), hidden_parameters(facts.model)
    lost = [name for name in facts.first.hidden if name in own and own[name] not in owned]
    if lost:
        yield finding("no_update", WARNING, None, remedies.of_hidden(lost), remedies.REGISTER)


def check_optimizer(facts: ModelFacts) -> Iterator[Finding]:
    """Find parameters that the optimizer will not change."""
    if not facts.optimizers:
        return
    owned, trained = Owned(*facts.optimizers), facts.first.trained
    own = {name: parameter for name, parameter in facts.model.named_parameters() if name in trained}
    missing = [name for name, parameter in own.items() if parameter not in owned and name in facts.with_gradient]
    if missing:
        is_all = not any(parameter in owned for parameter in own.values())
        why = (
            "It was made for other parameters, maybe before the model was changed." if is_all else "They never change."
        )
        text = f"The optimizer does not have {listed(missing)}, which get{'s' * (len(missing) == 1)} a gradient. {why}"
        remedy = Remedy(
            "Give them to the optimizer, or freeze them with requires_grad_(False).",
            "add_to_optimizer",
            {"parameters": missing},
        )
        yield finding("no_update", ERROR if is_all else WARNING, _common_layer(facts, missing), text, remedy)
        return
    groups = [group for optimizer in facts.optimizers for group in optimizer.param_groups if "lr" in group]
    still = [group for group in groups if float(group["lr"]) == 0 and not float(group.get("initial_lr", 0))]
    ids = {id(parameter) for group in still for parameter in group["params"]}
    stuck = [name for name, parameter in own.items() if id(parameter) in ids]
    if stuck:
        rate = max((float(group["lr"]) for group in groups), default=0.0) or DEFAULT_RATE
        text = f"The learning rate of {listed(stuck)} is 0, and no schedule will raise it. They never change."
        remedy = Remedy(f"Set it to {rate:g}.", "set_group_lr", {"parameters": stuck, "lr": rate})
        severity = ERROR if len(still) == len(groups) else WARNING
        yield finding("no_update", severity, _common_layer(facts, stuck), text, remedy)


def _common_layer(facts: ModelFacts, parameters: Sequence[str]) -> str | None:
    """The innermost module that all these parameters are in; None for the model itself."""
    paths = [facts.first.layer_of[name].split(".") for name in parameters]
    levels = zip(*paths, strict=False)
    return ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)) or None
