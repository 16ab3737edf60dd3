"""Trains a copy of a model on one batch, and looks at its gradients and updates on the way."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...engine.torch_private import Convolution
from ...inspector.model_copy import ModelCopy

DEFAULT_RATE = 1e-3
"""The learning rate of Adam, which is used if no optimizer is given."""

FIRST_STEPS = 10
"""Updates are measured for this many steps."""

EQUAL, ROUNDING = 1e-5, 1e-6
"""Rows that differ by no more than this are equal: relative to their largest element, or to the largest of all
gradients."""

GATES = ("weight_ih", "weight_hh")
PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass
class BatchFit:
    """What happened while a copy was trained on one batch."""

    losses: list[float] = field(default_factory=list)
    """Before each step, and after the last one."""
    with_gradient: set[str] = field(default_factory=set)
    """Parameters whose gradient was not 0 at some step."""
    symmetric: set[str] = field(default_factory=set)
    """Weights that start the same for all units, and get the same gradient for all of them in every step."""
    updates: dict[str, float] = field(default_factory=dict)
    """The median change of each weight in the first steps, relative to its norm."""

    @property
    def fall(self) -> float:
        """The largest fall of the loss, relative to the first loss."""
        return (self.losses[0] - min(self.losses)) / max(abs(self.losses[0]), math.ulp(0.0))

    @property
    def rise(self) -> float:
        """The largest loss divided by the first one, or by the lowest if that is farther from 0."""
        return max(self.losses) / max(abs(self.losses[0]), abs(min(self.losses)), math.ulp(0.0))

    @property
    def late(self) -> float:
        """The median loss of the last third."""
        return median(self.losses[-max(1, len(self.losses) // 3) :])

    @property
    def is_finite(self) -> bool:
        """Whether all losses are finite."""
        return all(map(math.isfinite, self.losses))


def fit_batch(
    twin: ModelCopy, batch: tuple[Any, Any], given: Sequence[Optimizer], steps: int, *, factor: float = 1.0
) -> BatchFit | None:
    """Train ``steps`` steps, with optimizers like the given ones or with Adam; None if nothing is trainable.

    Rates are multiplied by ``factor``. Where a schedule has made them small for a warm-up, they rise to their initial
    value during the fit.
    """
    made = [own for one in given if (own := twin.optimizer(one)) is not None]
    trained = {name: own for name, own in twin.model.named_parameters() if own.requires_grad}
    if not made and not twin.trained:
        return None
    optimizers: list[Optimizer] = [*made] or [torch.optim.Adam(twin.trained, DEFAULT_RATE)]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups if "lr" in group]
    ramps = [
        (group, float(group["lr"]), max(float(group.get("initial_lr", 0)), float(group["lr"]))) for group in groups
    ]
    found, before, changes = BatchFit(), dict[str, Tensor](), dict[str, list[float]]()

    def look(step: int) -> None:
        for group, start, end in ramps:
            set_rate(group, factor * (start + (end - start) * (step + 1) / steps))
        gradients = {name: own.grad.detach().to_dense() for name, own in trained.items() if own.grad is not None}
        found.with_gradient |= {
            name for name, own in gradients.items() if name not in found.with_gradient and bool(own.any())
        }
        if step == 0:
            found.symmetric = alike(twin.model, trained)
        found.symmetric &= alike(twin.model, gradients, rounding=largest_of(gradients)) if found.symmetric else set()
        if step <= FIRST_STEPS:
            for name, own in trained.items():
                now = own.detach()
                if now.dim() > 1 and name in before and bool(before[name].any()):
                    change = torch.linalg.vector_norm(now - before[name]) / torch.linalg.vector_norm(before[name])
                    changes.setdefault(name, []).append(float(change))
            before.update((name, own.detach().clone()) for name, own in trained.items() if own.dim() > 1)

    found.losses = twin.fit(batch, optimizers, steps, look)
    found.updates = {name: median(own) for name, own in changes.items()}
    return found


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Change the learning rate of a group; it may be a tensor."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def alike(model: nn.Module, tensors: Mapping[str, Tensor], *, rounding: float = 0.0) -> set[str]:
    """The weights, or gradients of weights, that are the same for all units of their layer.

    Gates of recurrent layers, and the three projections of attention, are looked at one by one. Differences below
    ``ROUNDING`` times ``rounding`` do not count.

    >>> alike(nn.Linear(2, 3), {"weight": torch.ones(3, 2), "bias": torch.ones(3)})
    {'weight'}
    """
    return {name for name, own in tensors.items() if _is_alike(model, name, own.detach(), ROUNDING * rounding)}


def largest_of(tensors: Mapping[str, Tensor]) -> float:
    """The largest absolute number in some tensors."""
    return max((float(own.abs().amax()) for own in tensors.values() if own.numel()), default=0.0)


def _is_alike(model: nn.Module, name: str, values: Tensor, slack: float) -> bool:
    layer, _, own = name.rpartition(".")
    parts = list(_parts(model.get_submodule(layer), own, values))
    return bool(parts) and all(_rows_are_equal(rows, slack) for rows in parts)


def _parts(module: nn.Module, own: str, values: Tensor) -> Iterable[Tensor]:
    size = 0
    if isinstance(module, (nn.Linear, Convolution)) and own == "weight":
        values = values.transpose(0, 1) if getattr(module, "transposed", False) else values
        size = len(values)
    elif isinstance(module, (nn.RNNBase, nn.RNNCellBase)) and own.startswith(GATES):
        size = module.hidden_size
    elif isinstance(module, nn.MultiheadAttention) and own in ("in_proj_weight", *PROJECTIONS):
        size = module.embed_dim
    return () if size < 2 or len(values) % size else values.reshape(len(values) // size, size, -1)


def _rows_are_equal(rows: Tensor, slack: float) -> bool:
    return float((rows - rows[:1]).abs().amax()) <= max(EQUAL * float(rows.abs().amax()), slack)
