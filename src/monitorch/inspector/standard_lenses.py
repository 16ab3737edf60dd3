"""The lenses to look through first."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

from ..lens import (
    AbstractLens,
    LossMetrics,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
)
from ..lens.module_distinction import isactivation, isdropout, isnotactivation
from ..lens.options import ALL
from ..preprocessor.parameters import own_parameters
from .module_tree import walk

WEIGHTED = (
    *(nn.Linear, nn.Embedding, nn.MultiheadAttention, nn.RNNBase),
    *(nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _BatchNorm, _ConvNd),
)
"""Layers with weights, whose outputs are shown beside those of activation functions."""


def standard_lenses(
    model: nn.Module, optimizers: Iterable[Optimizer] = (), loss_fn: nn.Module | None = None, depth: Any = -1
) -> list[AbstractLens]:
    """The lenses that ``lenses="standard"`` stands for: those that find something to look at in this model.

    >>> [type(lens).__name__ for lens in standard_lenses(nn.Linear(2, 1))]
    ['LossMetrics', 'OutputNorm', 'OutputGradientGeometry', 'ParameterGradientGeometry', 'ParameterNorm']
    """
    layers = walk(model, depth if isinstance(depth, int) else -1)
    leaves = [layer.module for layer in layers if layer.is_leaf]
    chosen: list[AbstractLens] = [LossMetrics(loss_fn=loss_fn)]
    if any(isactivation(leaf) or isinstance(leaf, WEIGHTED) for leaf in leaves):
        chosen.append(OutputNorm(include=WEIGHTED))
    if any(isactivation(leaf) or isdropout(leaf) for leaf in leaves):
        chosen.append(OutputActivation())
    if any(map(isnotactivation, leaves)):
        chosen.append(OutputGradientGeometry())
    if any(own_parameters(layer.module) for layer in layers):
        updates = (ParameterUpdateGeometry(optimizer, parameters=ALL) for optimizer in optimizers)
        chosen += [ParameterGradientGeometry(parameters=ALL), *updates, ParameterNorm(parameters=ALL)]
    return chosen
