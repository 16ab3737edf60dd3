"""Facts about a model before training, measured on copies when first needed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ...engine.torch_private import BatchNorm, tree_leaves
from ...inspector.model_copy import copied
from ...numerical.precision import HOST
from .batch_fit import BatchFit, fit_batch
from .first_pass import FEW, FirstPass, first_pass, is_one_layer, rms
from .loss_kind import LossInput, loss_input

FITTED = 0.1
"""A first loss below this share of that of a constant output means the batch is already fitted."""
REACHES = 1e-4
"""A layer affects the loss if perturbing its weights changes the loss by this share."""


@dataclass
class ModelFacts:
    """What is known about a model, measured when it is asked for."""

    model: nn.Module
    batch: tuple[Any, Any]
    loss_fn: Callable[..., Any] | None
    optimizers: tuple[Optimizer, ...]
    fit_steps: int

    def __post_init__(self) -> None:
        self.notes: list[str] = []

    @cached_property
    def first(self) -> FirstPass:
        """The first training pass."""
        with copied(self.model, self.loss_fn) as twin:
            return first_pass(twin, self.batch)

    @cached_property
    def loss(self) -> LossInput | None:
        """What the loss gets."""
        inputs, targets = self.batch
        with torch.no_grad():
            return loss_input(self.loss_fn, self.first.output, inputs, targets, self.first.loss)

    @cached_property
    def fit(self) -> BatchFit | None:
        """The result of training on this batch; None if not known."""
        if not self.fit_steps or not self.is_finite or not self.first.has_gradient:
            return None
        return self.fit_with(self.optimizers)

    def fit_with(self, optimizers: Sequence[Optimizer], factor: float = 1.0) -> BatchFit | None:
        """The same with other optimizers, Adam if there are none, and rates multiplied by ``factor``."""
        try:
            with copied(self.model, self.loss_fn) as twin:
                return fit_batch(twin, self.batch, optimizers, self.fit_steps, factor=factor)
        except Exception as error:  # the first pass worked, so the optimizer or a later pass is to blame
            self.notes.append(f"the batch was not fitted: {type(error).__name__}: {error}")
            return None

    @cached_property
    def is_finite(self) -> bool:
        """Whether the loss and all gradients are finite."""
        gradients = self.first.gradients.values()
        return math.isfinite(self.first.loss) and all(bool(torch.isfinite(own).all()) for own in gradients)

    @property
    def is_fitted(self) -> bool:
        """Whether the loss is already so small that it need not fall."""
        known = self.loss
        if known is None or known.trivial is None or known.mean is None:
            return False
        return known.mean < FITTED * known.trivial

    @cached_property
    def is_tiny(self) -> bool:
        """Whether BatchNorm has so few samples that its gradients say little."""
        sizes = [len(leaf) for leaf in tree_leaves(self.batch[0]) if isinstance(leaf, Tensor) and leaf.dim()]
        has_norms = any(isinstance(part, BatchNorm) for part in self.model.modules())
        return has_norms and min(sizes, default=0) < FEW

    @cached_property
    def with_gradient(self) -> set[str]:
        """Trained parameters that got a gradient other than 0, in the first pass or later."""
        later = set() if self.fit is None else self.fit.with_gradient
        return later | {name for name, own in self.first.gradients.items() if bool(own.any())}

    @cached_property
    def weights(self) -> list[str]:
        """Weights that got a gradient in the first pass, in the order in which their layers ran."""
        order = {name: place for place, name in enumerate(self.first.layers)}
        found = [
            name
            for name, own in self.first.gradients.items()
            if own.dim() > 1 and self.first.layer_of[name] in order and bool(own.any())
        ]
        return sorted(found, key=lambda name: order[self.first.layer_of[name]])

    @cached_property
    def last_layer(self) -> str | None:
        """The last layer with a weight that ran, usually the output layer."""
        names = [
            layer.name
            for layer in self.first.layers.values()
            if is_one_layer(layer.module) and any(own.dim() > 1 for own in layer.module.parameters())
        ]
        return names[-1] if names else None

    def reaches(self, parameters: Sequence[str]) -> bool:
        """Whether the loss changes if these parameters do: then it depends on them, whatever gradients say."""
        with copied(self.model, self.loss_fn) as twin, torch.no_grad():
            draws = torch.Generator(HOST).manual_seed(0)
            own = dict(twin.model.named_parameters())
            for parameter in (own[name] for name in parameters):
                if not is_lazy(parameter):
                    noise = torch.randn(parameter.shape, generator=draws, device=HOST, dtype=torch.float32)
                    parameter.add_(noise.to(parameter), alpha=max(float(rms(parameter)), 0.1))
            change = abs(float(twin.loss(self.batch)) - self.first.loss)
        return not change <= REACHES * max(abs(self.first.loss), REACHES)  # what is not finite counts as a change
