"""Do signals and gradients keep their size from layer to layer, and are units alive and different?"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...diagnosis import Finding, Remedy
from ...diagnosis.symptoms.activations import DeadUnits, ExplodingSignal, SaturatedActivation
from ...diagnosis.symptoms.base import others, share
from ...diagnosis.symptoms.gradients import VanishingGradient
from ...engine.torch_private import tree_leaves
from ...preprocessor.activations import ENTRIES, POSITIONS
from ...store.types import ERROR, WARNING, layer_text
from .batch_fit import alike, largest_of
from .facts import ModelFacts
from .first_pass import rms
from .wording import finding, listed

LARGE_GRADIENT = 1e3
"""The largest norm of the gradient of a weight, relative to the loss."""
FEWEST_LAYERS = 4
"""Vanishing gradients are looked for in models with at least this many layers."""
NEARLY_ALL = 0.9
"""The share of units that may be dead in a small batch; more dead or saturated ones are an error."""


def check_signal(facts: ModelFacts) -> Iterator[Finding]:
    """Find outputs or gradients that explode."""
    first = facts.first
    if not facts.is_finite:
        return
    layers = [layer for layer in first.layers.values() if layer.has_weights and layer.rms > 0]
    floating = [leaf for leaf in _floating(facts.batch[0]) if leaf.numel()]
    known = facts.loss
    targets = [known.target] if known is not None and known.target.is_floating_point() else []
    start = max([1.0, *(float(rms(one)) for one in (*floating, *targets))])
    level = max((layer.rms for layer in layers), default=0.0)
    if level > ExplodingSignal.growth * start:
        before = [start, *(layer.rms for layer in layers)]
        jumps = [
            layer
            for layer, last in zip(layers, before, strict=False)
            if layer.rms > ExplodingSignal.per_layer * max(last, start)
        ]
        jumps = jumps or [layer for layer in layers if layer.rms > ExplodingSignal.growth * start]
        text = (
            f"Outputs grow to {level:.3g}, where inputs are about {start:.3g}, and {layer_text(jumps[0].name)} is the "
            "first to add much. The weights are too large, so losses and gradients will be too."
        )
        names = [layer.name for layer in jumps]
        remedy = Remedy(
            "Initialise them smaller, or normalise between layers.", "reinit", {"layers": names, "gain": 1.0}
        )
        yield finding(
            "exploding_signal", WARNING, jumps[0].name, text, remedy, ("output", level, ExplodingSignal.growth * start)
        )
        return
    norms = {name: float(torch.linalg.vector_norm(first.gradients[name])) for name in facts.weights}
    largest = max(norms, key=norms.__getitem__, default=None)
    limit = LARGE_GRADIENT * max(abs(first.loss), 1.0)
    if largest is not None and norms[largest] > limit and not facts.is_tiny:
        text = (
            f"The gradient of {largest} has norm {norms[largest]:.3g}, with a loss of {first.loss:.3g}. One step will "
            "throw the weights far away."
        )
        remedy = Remedy("Clip gradients, or normalise between layers.", "clip", {"max_norm": 1.0})
        yield finding(
            "exploding_signal", WARNING, first.layer_of[largest], text, remedy, ("gradient", norms[largest], limit)
        )


def check_vanishing(facts: ModelFacts) -> Iterator[Finding]:
    """Find gradients that vanish on their way back."""
    first = facts.first
    if not facts.is_finite or facts.is_tiny or len(facts.weights) < FEWEST_LAYERS:
        return
    if facts.fit is not None and min(facts.fit.losses) < 0.5 * facts.fit.losses[0]:
        return  # it learns anyway
    norms = [float(torch.linalg.vector_norm(first.gradients[name])) for name in facts.weights]
    quarter = len(norms) // 4
    early, late = max(norms[:quarter]), max(norms[-quarter:])
    if early >= VanishingGradient.ratio * late:
        return
    below = [name for name, norm in zip(facts.weights, norms, strict=True) if norm < VanishingGradient.ratio * late]
    layer = first.layer_of[below[-1]]
    text = (
        f"The gradient of {below[0]} is {early / late:.1e} times that of {facts.weights[-1]}, and from "
        f"{layer_text(layer)} backwards all are below {VanishingGradient.ratio:g}. The first layers hardly learn."
    )
    bounded = list(dict.fromkeys(one.name for one in first.activations if one.saturated is not None))
    layers = [first.layer_of[name] for name in below]
    remedy = (
        Remedy("Use ReLU or GELU, normalisation or skips.", "replace_activation", {"layers": bounded, "by": "ReLU"})
        if bounded
        else Remedy("Initialise them larger, or add normalisation or skips.", "reinit", {"layers": layers, "gain": 1.4})
    )
    yield finding(
        "vanishing_gradient", WARNING, layer, text, remedy, ("gradient", early / late, VanishingGradient.ratio)
    )


def check_symmetry(facts: ModelFacts) -> Iterator[Finding]:
    """Find layers whose units are all the same."""
    first = facts.first
    if not facts.is_finite:
        return
    born = alike(facts.model, first.trained) & alike(facts.model, first.gradients, rounding=largest_of(first.gradients))
    lasting = set() if facts.fit is None else facts.fit.symmetric  # weights of 0 may become different later
    symmetric = {name for name in born if name in lasting or bool(first.parameters[name].any())}
    ran = [layer.name for layer in first.layers.values() if layer.has_weights]
    found = {first.layer_of[name] for name in symmetric} - {
        facts.last_layer
    }  # the classes of the last layer may be alike
    layers = sorted(found, key=lambda one: ran.index(one) if one in ran else len(ran))
    if layers:
        text = (
            f"All units of {listed(layers)} start with the same weights, and get the same gradients. They learn as if "
            "there were only one."
        )
        remedy = Remedy("Initialise the weights at random.", "reinit", {"layers": layers, "gain": 1.0})
        yield finding("symmetric_units", ERROR, layers[0], text, remedy)


def check_activations(facts: ModelFacts) -> Iterator[Finding]:
    """Find activations that are dead or saturated."""
    last = facts.first.last_function
    hidden = [one for one in facts.first.activations if last is None or one.name != last.name]
    dead = [
        one
        for one in hidden
        if one.dead > (DeadUnits.share if one.entries >= ENTRIES or one.positions >= POSITIONS else NEARLY_ALL)
    ]
    saturated = [one for one in hidden if one.saturated is not None and one.saturated > SaturatedActivation.share]
    if not facts.is_finite:
        return
    if dead:
        one = dead[0]
        text = (
            f"{share(one.dead)} of the units of {layer_text(one.name)} are 0 for every entry of the batch"
            f"{others([each.name for each in dead])}. No gradient passes through them, so the layers before them "
            "learn nothing."
        )
        remedy = Remedy("Re-initialise the layer before it, which keeps them below 0.", *_again(one.weights))
        severity = ERROR if one.dead > NEARLY_ALL else WARNING
        yield finding("dead_units", severity, one.name, text, remedy, ("dead units", one.dead, DeadUnits.share))
    if saturated:
        one = saturated[0]
        level = one.saturated or 0.0
        text = (
            f"{share(level)} of the outputs of {layer_text(one.name)} are at the bounds of its activation"
            f"{others([each.name for each in saturated])}. Its slope is near 0 there, so hardly any gradient passes."
        )
        remedy = Remedy("Make the weights or inputs before it smaller, or normalise them.", *_again(one.weights))
        severity = ERROR if level > NEARLY_ALL else WARNING
        yield finding(
            "saturated_activation", severity, one.name, text, remedy, ("saturation", level, SaturatedActivation.share)
        )


def _again(layer: str | None) -> tuple[Any, ...]:
    return () if layer is None else ("reinit", {"layers": [layer], "gain": 1.0})


def _floating(data: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(data) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
