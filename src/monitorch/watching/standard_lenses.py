"""The lenses to start with."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..engine.parameters import own_parameters
from ..inspector.module_tree import walk
from ..lens import (
    AbstractLens,
    GradientNorm,
    LossMetrics,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
    UpdateRatio,
)
from ..lens.module_distinction import isactivation, isdropout, isnotactivation
from ..lens.options import ALL


def standard_lenses(
    model: nn.Module,
    optimizers: Iterable[Optimizer] = (),
    loss_fn: nn.Module | None = None,
    depth: Any = -1,
    correlation: str = "auto",
) -> list[AbstractLens]:
    r"""The lenses of ``lenses="standard"``: those that have something to show for this model.

    ``correlation`` says how they compare tensors: by default exactly, while copies of all of them take little memory.

    >>> print(*(type(lens).__name__ for lens in standard_lenses(nn.Linear(2, 1))), sep="\n")
    LossMetrics
    GradientNorm
    OutputNorm
    OutputGradientGeometry
    ParameterGradientGeometry
    ParameterNorm
    """
    layers = walk(model, depth if isinstance(depth, int) else -1)
    leaves = [layer.module for layer in layers if layer.is_leaf]
    # of any class: outputs of layers with own parameters are shown beside outputs of activations
    weighted = dict.fromkeys(type(layer.module) for layer in layers if own_parameters(layer.module))
    chosen: list[AbstractLens] = [LossMetrics(loss_fn=loss_fn), *([GradientNorm()] if weighted else [])]
    if weighted or any(map(isactivation, leaves)):
        chosen.append(OutputNorm(include=weighted))
    if any(isactivation(leaf) or isdropout(leaf) for leaf in leaves):
        chosen.append(OutputActivation())
    if any(map(isnotactivation, leaves)):
        chosen.append(OutputGradientGeometry(correlation=correlation))
    if weighted:
        options: dict[str, Any] = {"parameters": ALL, "correlation": correlation}
        chosen.append(ParameterGradientGeometry(**options))
        for optimizer in optimizers:
            chosen.append(ParameterUpdateGeometry(optimizer, **options))
            chosen.append(UpdateRatio(optimizer, parameters=ALL, updates=correlation))
        chosen.append(ParameterNorm(parameters=ALL))
    return chosen
