"""The named sets of lenses: "standard" and "all"."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..engine.meter import AUTO
from ..engine.parameters import ParameterBank, own_parameters
from ..errors import OptionError
from ..inspector.module_tree import walk
from ..lens import (
    AbstractLens,
    ActivationHealth,
    Attention,
    BatchNormStatistics,
    Distribution,
    GradientNorm,
    InputStatistics,
    LossMetrics,
    NonFinite,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterFacts,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
    Routing,
    SignalToNoise,
    SpectralNorm,
    TargetStatistics,
    UpdateRatio,
)
from ..lens.distribution import GRADIENT, OUTPUT, PARAMETER
from ..lens.module_distinction import (
    has_running_statistics,
    isactivation,
    isattention,
    isdropout,
    isnotactivation,
    isrouter,
)
from ..lens.options import ALL

STANDARD, EVERYTHING = "standard", "all"
"""The names of the sets."""


def standard_lenses(
    model: nn.Module,
    optimizers: Iterable[Optimizer] = (),
    loss_fn: nn.Module | None = None,
    depth: Any = -1,
    correlation: str = AUTO,
    *,
    in_graphs: bool = False,
) -> list[AbstractLens]:
    r"""The lenses of ``lenses="standard"``: those that have something to show for this model.

    ``correlation`` says how they compare tensors; by default exactly, as long as the copies need little memory.
    ``in_graphs`` lets all of them look into compiled graphs, which then have more operators.

    >>> print(*(type(lens).__name__ for lens in standard_lenses(nn.Linear(2, 1))), sep="\n")
    LossMetrics
    GradientNorm
    NonFinite
    OutputNorm
    ActivationHealth
    OutputGradientGeometry
    ParameterGradientGeometry
    ParameterNorm
    InputStatistics
    """
    optimizers = list(optimizers)
    layers = walk(model, depth if isinstance(depth, int) else -1)
    leaves = [layer.module for layer in layers if layer.is_leaf]
    # any class: show the outputs of all layers with parameters, not only of activations
    weighted = dict.fromkeys(type(layer.module) for layer in layers if own_parameters(layer.module))
    called = [kind for kind in weighted if kind is not ParameterBank]
    chosen: list[AbstractLens] = [LossMetrics(loss_fn=loss_fn), *([GradientNorm(), NonFinite()] if weighted else [])]
    if called or any(map(isactivation, leaves)):
        chosen.append(OutputNorm(include=called))
    if any(isactivation(leaf) or isdropout(leaf) for leaf in leaves):
        chosen.append(OutputActivation())
    if not isinstance(model, ParameterBank):
        # without activation modules too: functions are only seen when they are called
        chosen.append(ActivationHealth(in_graphs=in_graphs))
    if any(map(isnotactivation, leaves)):
        chosen.append(OutputGradientGeometry(correlation=correlation))
    if weighted:
        options: dict[str, Any] = {"parameters": ALL, "correlation": correlation}
        chosen.append(ParameterGradientGeometry(**options))
        for optimizer in optimizers:
            chosen.append(ParameterUpdateGeometry(optimizer, **options))
            chosen.append(UpdateRatio(optimizer, parameters=ALL, updates=correlation))
        chosen.append(ParameterNorm(parameters=ALL))
    chosen += [] if isinstance(model, ParameterBank) else [InputStatistics()]
    chosen += [] if loss_fn is None else [TargetStatistics(loss_fn)]
    chosen += [ParameterFacts(optimizers)] if weighted and optimizers else []
    modules = [layer.module for layer in layers]
    chosen += [Attention(in_graphs=in_graphs)] if any(map(isattention, modules)) else []
    chosen += [Routing()] if any(map(isrouter, modules)) else []
    chosen += [BatchNormStatistics()] if any(map(has_running_statistics, modules)) else []
    return chosen


def all_lenses(
    model: nn.Module,
    optimizers: Iterable[Optimizer] = (),
    loss_fn: nn.Module | None = None,
    depth: Any = -1,
    correlation: str = AUTO,
) -> list[AbstractLens]:
    """The lenses of ``lenses="all"``: the standard ones and every other, except those that need an SVD of each weight.

    Gradient noise is measured for the first optimizer.
    """
    optimizers = list(optimizers)
    modules = [layer.module for layer in walk(model, depth if isinstance(depth, int) else -1)]
    chosen = standard_lenses(model, optimizers, loss_fn, depth, correlation, in_graphs=True)
    if not any(isinstance(lens, Attention) for lens in chosen):
        chosen.append(Attention())
    if any(map(own_parameters, modules)):
        chosen += [SpectralNorm(), *map(Distribution, (OUTPUT, GRADIENT, PARAMETER))]
        chosen += [SignalToNoise(optimizers[0])] if optimizers else []
    return chosen


SETS = {STANDARD: standard_lenses, EVERYTHING: all_lenses}


def checked(lenses: str | Iterable[Any]) -> list[Any]:
    """The lenses that were given, and the names of sets among them, which must be known."""
    given = [lenses] if isinstance(lenses, str) or not isinstance(lenses, Iterable) else list(lenses)
    if unknown := [name for name in given if isinstance(name, str) and name not in SETS]:
        sets = " or ".join(map(repr, SETS))
        raise OptionError(
            f"lenses={unknown[0]!r} is unknown; choose {sets}, or a list such as ['standard', Attention()]"
        )
    return given


def expanded(lenses: Iterable[Any], *args: Any) -> list[AbstractLens]:
    """The lenses, with each set name replaced by its lenses; ``args`` are passed to the sets.

    A lens given by the user replaces the one in a set whose numbers have the same names.
    """
    given = list(lenses)
    own = set(map(_names_of, given))
    sets = {
        name: [lens for lens in SETS[name](*args) if _names_of(lens) not in own]
        for name in given
        if isinstance(name, str)
    }
    return [lens for one in given for lens in (sets[one] if isinstance(one, str) else [one])]


def _names_of(lens: Any) -> tuple[Any, ...]:
    """What the names of a lens's numbers depend on, besides the layers: its class, and for some an option."""
    of_one = lens.optimizer if isinstance(lens, (ParameterUpdateGeometry, UpdateRatio)) else None
    return type(lens), id(of_one), lens.what if isinstance(lens, Distribution) else ""
