"""Looks for mistakes before the first step, in seconds: runs copies of the model on one batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ...diagnosis import Finding
from ...engine.gradients import AT_STEP
from ...engine.optimizers import StandIn
from ...engine.torch_private import tree_leaves
from ...errors import OptionError
from ...inspector.arguments import check_loss_fn, trainer
from ...inspector.model_copy import check_can_be_copied
from ...inspector.module_tree import unwrap
from .data_checks import check_initial_loss, check_input_scale, check_mixing, check_output
from .facts import ModelFacts
from .fit_checks import check_fit
from .gradient_checks import check_finite, check_gradients, check_hidden, check_optimizer
from .layer_checks import check_activations, check_signal, check_symmetry, check_vanishing
from .report import Preflight, ranked

CHECKS: tuple[Callable[[ModelFacts], Iterator[Finding]], ...] = (
    check_finite,
    check_hidden,
    check_optimizer,
    check_output,
    check_mixing,
    check_input_scale,
    check_symmetry,
    check_signal,
    check_activations,
    check_initial_loss,
    check_vanishing,
    check_gradients,
    check_fit,
)


def preflight(
    model: nn.Module,
    batch: Any,
    loss_fn: Callable[..., Any] | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    fit_steps: int = 30,
) -> Preflight:
    """Look for mistakes before the first step: is everything connected, in scale, and can one batch be fitted?

    It runs copies of the model with one batch. The model, its gradients, the optimizer and random numbers stay exactly
    as they are. It takes some seconds, and memory for a second model in training. Errors of the model or ``loss_fn`` on
    this batch are raised.

    Args:
        model: the model, as it will be trained.
        batch: ``(inputs, targets)``, as ``loss_fn`` and the model take them. Inputs are a tensor, a tuple of arguments,
            or a dictionary of keyword arguments. A dictionary alone is inputs without targets.
        loss_fn: computes the loss from output and targets. None: the output of the model has a field ``loss``.
        optimizer: what will train the model, or a list of optimizers. None: the optimizer is not checked, and the batch
            is fitted with Adam.
        fit_steps: how many steps a copy is trained on this batch; 0 skips this. See ``docs/how_to/preflight.md`` for
            what needs it.

    Returns:
        The findings, causes first: a list that prints as a report.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> optimizer = torch.optim.Adam(model[0].parameters())
    >>> found = preflight(model, (torch.randn(16, 2), torch.arange(16) % 3), nn.CrossEntropyLoss(), optimizer)
    >>> found[0].symptom, found[0].remedy.arguments["parameters"]
    ('no_update', ['2.weight', '2.bias'])
    """
    if isinstance(fit_steps, bool) or not isinstance(fit_steps, Integral) or fit_steps < 0:
        raise OptionError(f"fit_steps={fit_steps!r} must be a whole number, 0 or more")
    check_loss_fn(loss_fn)
    own = unwrap(model)
    check_can_be_copied(own)
    optimizers = trainer(optimizer, None, AT_STEP).optimizers
    if foreign := [one.kind for one in optimizers if isinstance(one, StandIn)]:
        raise OptionError(f"preflight can only use torch.optim optimizers, not {foreign[0]!r}: leave it out")
    facts = ModelFacts(own, _parts_of(batch), loss_fn, optimizers, int(fit_steps))
    found = [finding for check in CHECKS for finding in check(facts)]
    return Preflight(ranked(found), facts.notes)


def _parts_of(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets."""
    if isinstance(batch, Mapping):
        return dict(batch), None
    if isinstance(batch, Tensor) or not isinstance(batch, (tuple, list)) or len(batch) != 2:
        kind = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, (tuple, list)) else type(batch).__name__
        cure = "If there are several inputs, put them into a tuple; without targets write (inputs, None)"
        raise OptionError(f"batch is a pair (inputs, targets), or a dictionary of inputs, not a {kind}. {cure}")
    inputs, targets = batch
    inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
    if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(inputs)):
        raise OptionError(f"there is no tensor in the inputs of the batch, only {type(inputs).__name__}: convert them")
    return inputs, targets
