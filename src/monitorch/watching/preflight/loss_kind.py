"""Which loss a function computes, and the loss of a model with constant output."""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from ...engine.torch_private import tree_leaves
from ...numerical.precision import in_full, wide_dtype
from ...preprocessor.loss_inputs import class_dimension

CROSS_ENTROPY, NLL = "cross entropy", "negative log likelihood"
LOGIT_BCE, BCE = "binary cross entropy of logits", "binary cross entropy"
MSE, L1, SMOOTH = "squared error", "absolute error", "smooth error"

REGRESSION = (MSE, L1, SMOOTH)
ELEMENTWISE = (*REGRESSION, LOGIT_BCE, BCE)
"""Losses whose output and target have the same shape."""

KINDS: dict[Any, str] = {
    **dict.fromkeys((nn.CrossEntropyLoss, functional.cross_entropy), CROSS_ENTROPY),
    **dict.fromkeys((nn.NLLLoss, functional.nll_loss), NLL),
    **dict.fromkeys((nn.BCEWithLogitsLoss, functional.binary_cross_entropy_with_logits), LOGIT_BCE),
    **dict.fromkeys((nn.BCELoss, functional.binary_cross_entropy), BCE),
    **dict.fromkeys((nn.MSELoss, functional.mse_loss), MSE),
    **dict.fromkeys((nn.L1Loss, functional.l1_loss), L1),
    **dict.fromkeys((nn.SmoothL1Loss, nn.HuberLoss, functional.smooth_l1_loss, functional.huber_loss), SMOOTH),
}

EXACTNESS = 1e-4
"""A function is taken for a known loss if its result agrees to this relative precision."""


class LossInput(NamedTuple):
    """The inputs of the loss, and which loss it is."""

    kind: str | None
    """One of the names above; None for a loss that is not known."""
    output: Tensor
    target: Tensor
    class_dim: int | None
    """The dimension of the output that holds the classes, if targets are classes."""
    mean: float | None
    """The mean loss, without weights or smoothing."""
    trivial: float | None
    """The loss of the best constant output."""

    @property
    def classes(self) -> int:
        """The number of classes; 0 if targets are not classes."""
        return 0 if self.class_dim is None else self.output.shape[self.class_dim]


def loss_input(loss_fn: Any, output: Tensor | None, inputs: Any, targets: Any, loss: float) -> LossInput | None:
    """Find out which loss was computed; None if there is no target to compare the output with.

    A torch loss is recognised by its type, the user's own function by its result.
    """
    target = _target(inputs, targets)
    if output is None or target is None:
        return None
    output, target = output.detach(), target.detach().to(output.device)
    output = in_full(output)
    dim = class_dimension(output, target)
    kind = KINDS.get(loss_fn if loss_fn in KINDS else type(loss_fn)) if loss_fn.__hash__ else None
    possible = (CROSS_ENTROPY, NLL) if dim is not None else ELEMENTWISE if target.is_floating_point() else ()
    ignored = getattr(loss_fn, "ignore_index", -100)
    means = {name: _mean(name, output, target, dim, ignored) for name in possible}
    if kind is None and loss_fn is None and dim is not None:  # the model computed it itself, maybe for shifted targets
        kind, means = CROSS_ENTROPY, {CROSS_ENTROPY: loss}
    elif kind is None:
        kind = next((name for name, mean in means.items() if mean is not None and _agree(loss, mean, target)), None)
    trivial = None if kind is None else _trivial(kind, target, 0 if dim is None else output.shape[dim])
    return LossInput(kind, output, target, dim, means.get(kind or ""), trivial)


def _target(inputs: Any, targets: Any) -> Tensor | None:
    """The first tensor of the targets, or the labels that the model gets as an argument."""
    if targets is None and isinstance(inputs, dict):
        targets = inputs.get("labels")
    return next((leaf for leaf in tree_leaves(targets) if isinstance(leaf, Tensor) and leaf.numel()), None)


def _mean(kind: str, output: Tensor, target: Tensor, dim: int | None, ignored: int) -> float | None:
    if dim is not None:
        matters = (target >= 0) & (target < output.shape[dim]) & (target != ignored)
        scores = output.log_softmax(dim) if kind == CROSS_ENTROPY else output
        picked = scores.gather(dim, target.long().where(matters, 0).unsqueeze(dim)).squeeze(dim)
        return float(-picked[matters].mean()) if bool(matters.any()) else None
    functions: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        MSE: functional.mse_loss,
        L1: functional.l1_loss,
        SMOOTH: functional.smooth_l1_loss,
        LOGIT_BCE: functional.binary_cross_entropy_with_logits,
        BCE: functional.binary_cross_entropy,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of shapes that differ
            return float(functions[kind](output, target.to(output.dtype)))
    except (RuntimeError, ValueError):  # shapes, or numbers that are no probabilities
        return None


def _agree(loss: float, mean: float, target: Tensor) -> bool:
    """Whether a loss equals this mean, or the corresponding sum."""
    return any(math.isclose(loss, whole, rel_tol=EXACTNESS) for whole in (mean, mean * target.numel()))


def _trivial(kind: str, target: Tensor, classes: int) -> float | None:
    if kind in (CROSS_ENTROPY, NLL):
        return math.log(classes) if classes > 1 else None
    wide = target.to(wide_dtype(target))
    if kind in (LOGIT_BCE, BCE):
        return math.log(2) if bool(((wide == 0) | (wide == 1)).all()) else None
    return float((wide - wide.mean()).square().mean()) if kind == MSE else float((wide - wide.median()).abs().mean())
