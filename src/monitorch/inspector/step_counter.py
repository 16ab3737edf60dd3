"""Where steps begin and end."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..gatherer.abstract_gatherer import first_input
from ..gatherer.compilation import inside_graph, is_compiled, is_traced
from ..gatherer.doorway import Door
from ..gatherer.hook_on_module import HookedMethod
from ..gatherer.house import House
from ..gatherer.loss_scale import LossScale
from ..gatherer.recomputation import RecomputationFilter, inside_backward
from ..preprocessor.outputs import kind_of_pass
from .arguments import Trainer
from .inspector_state import InspectorState
from .scaler_steps import ScalerSteps
from .vitals import Vitals

TRAINING = 3
"""What ``kind_of_pass`` says of a pass in train mode with gradients on."""


class StepCounter:
    """Counts the steps of the first optimizer, skipped ones too; without one, the training passes of the model.

    Args:
        model: the root of the watched modules.
        trainer: whose steps to count; gradients of its parameters are measured at its steps.
    """

    def __init__(self, state: InspectorState, house: House, model: nn.Module, trainer: Trainer) -> None:
        self._state, self._house, self._optimizers = state, house, trainer.optimizers
        state.gradient = trainer.gradient
        scaler = trainer.grad_scaler
        state.loss_scale = LossScale(scaler) if scaler is not None and scaler.is_enabled() else None
        self.after_skip: list[Callable[[], None]] = []
        """Called when the first optimizer's step was skipped by a scaler."""
        self._door = Door(house.device, self._receive)
        self._passes = RecomputationFilter()
        self._is_uncollected = True
        self.vitals = Vitals(self._optimizers, 1 / state.loss_share)
        self.handles: list[Any] = [model.register_forward_pre_hook(HookedMethod(self.hook), with_kwargs=True)]
        for optimizer in self._optimizers:
            self.handles.append(optimizer.register_step_pre_hook(self._before_step))
            self.handles.append(optimizer.register_step_post_hook(self._after_step))
        if scaler is not None:
            self.vitals.count_skipped(0)
            self.handles.append(ScalerSteps(scaler, self._optimizers, self._skip_step))

    @inside_graph
    def hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Be called before each pass; while the model is being compiled, leave an operator that will be."""
        kind = kind_of_pass(module)
        if is_compiled():
            self._door.pass_outside(kind)
        elif not is_traced():
            self._begin_pass(kind)
            if kind == TRAINING:
                self.vitals.count(first_input(args, kwargs))

    def _receive(self, _: torch.Tensor, kind: int) -> None:
        self._begin_pass(kind, in_graph=True)

    def _begin_pass(self, kind: int, *, in_graph: bool = False) -> None:
        if not self._passes.counts(has_grad=kind >= 2):
            return
        if self._is_uncollected:
            self._house.collect()
        self._is_uncollected = True
        if kind == TRAINING:
            if not self._optimizers:
                self._state.next_step(begins=1, in_graph=in_graph)
            self._state.begin_pass()
            self._house.gradients.begin_pass()

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _has_closure(args, kwargs):
            self._house.gradients.take_step(optimizer)

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _has_closure(args, kwargs):  # it has computed the gradients anew: what was consumed is there only now
            self._house.gradients.take_step(optimizer)
        works = self._house.step_scales.of(optimizer).works
        if works is not None:
            self.vitals.count_skipped(1 - works)
        self._end_step(optimizer)

    def _skip_step(self, optimizer: Optimizer) -> None:
        self._house.skip_step(optimizer)
        self.vitals.count_skipped(1)
        self._end_step(optimizer)
        for tell in self.after_skip if optimizer is self._optimizers[0] else ():
            tell()

    def _end_step(self, optimizer: Optimizer) -> None:
        is_first = optimizer is self._optimizers[0]
        if is_first or not inside_backward():  # there may be one for each parameter
            self._house.collect()
        if is_first:
            self._is_uncollected = False
            self._state.next_step()


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(callable(argument) for argument in (*args[1:], kwargs.get("closure")))
