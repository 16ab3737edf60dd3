"""For tests of models: does it train?"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .errors import OptionError
from .store.types import SEVERITIES
from .watching.preflight import preflight
from .watching.preflight.report import EXPLAINS

__all__ = ["assert_trains"]


def assert_trains(
    model: nn.Module,
    batch: Any,
    loss_fn: Callable[..., Any] | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    fit_steps: int = 30,
    ignore: Iterable[str] = (),
    fail_on: str = "warning",
) -> None:
    """Raise an AssertionError that names what :func:`monitorch.preflight` finds wrong with a model.

    Args:
        model: the model, as it will be trained.
        batch: ``(inputs, targets)``.
        loss_fn: computes the loss from output and targets. None: the output of the model has a field ``loss``.
        optimizer: what will train the model, or a list of optimizers.
        fit_steps: how many steps a copy of the model is trained on this batch.
        ignore: symptoms that are fine here, such as ``"input_scale"``; with a layer, ``"dead_units:fc1"``. What follows
            from them is ignored, too.
        fail_on: the lowest severity that fails, ``"warning"`` or ``"error"``, or ``"info"``.

    >>> import torch
    >>> assert_trains(nn.Linear(2, 1), (torch.randn(8, 2), torch.randn(8, 1)), nn.MSELoss())
    """
    if fail_on not in SEVERITIES:
        raise OptionError.unknown("fail_on", fail_on, SEVERITIES)
    ignored = {ignore} if isinstance(ignore, str) else set(ignore)
    for one in ignored:
        if one.partition(":")[0] not in EXPLAINS:
            raise OptionError.unknown("ignore", one, EXPLAINS)
    found = preflight(model, batch, loss_fn, optimizer, fit_steps=fit_steps)
    bad = [
        finding
        for finding in found
        if SEVERITIES.index(finding.severity) >= SEVERITIES.index(fail_on)
        and not any({one, one.partition(":")[0]} & ignored for one in (finding.id, finding.caused_by or ""))
    ]
    if bad:
        lines = [f"{finding.line}\n  try: {finding.remedy.text}" for finding in bad]
        raise AssertionError("\n".join([f"{type(model).__name__} will not train well:", *lines]))
