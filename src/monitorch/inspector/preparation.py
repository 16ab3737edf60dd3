"""Notices what is done to a model between watching it and training it."""

import sys
import weakref
from types import FrameType

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..engine.engine import Engine
from ..engine.reports import tell
from ..engine.torch_private import running_parallel
from ..errors import warn
from .inspector_state import InspectorState
from .module_tree import averaging_processes, taken_over
from .run_statistics import RunStatistics

TRAINERS = {
    "transformers.trainer": "Trainer(..., callbacks=[MonitorchCallback()]) with monitorch.integration.transformers"
}
"""Modules whose code trains models in a way that a watch does not see, and what to write instead."""


def running_trainer() -> str | None:
    """The module in ``TRAINERS`` whose code is running now; None if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") in TRAINERS:
            return str(frame.f_globals["__name__"])
        frame = frame.f_back
    return None


class Preparation:
    """Checks the model when training passes begin: it may have been wrapped, sharded, frozen or extended.

    Args:
        run_statistics: told how many processes train, each on its own batches.
    """

    def __init__(self, state: InspectorState, engine: Engine, model: nn.Module, run_statistics: RunStatistics) -> None:
        self._state, self._engine, self._run_statistics = state, engine, run_statistics
        self._model = weakref.ref(model)
        self.has_looked = False
        self._kind: type | None = None  # fully_shard gives a module another class
        self._began_in = running_trainer()

    def look(self) -> None:
        """A training pass begins."""
        self.has_looked = True
        model = self._model()
        if model is None:
            return
        try:
            parallel = None if self._state.averages else running_parallel()
            if parallel is not None:
                self._look_around(model, parallel)
            if type(model) is not self._kind:
                is_first, self._kind = self._kind is None, type(model)
                if is_first:
                    self._look_at_parameters(model)
                    self._look_for_a_trainer()
                if not self._state.averages:
                    self._average_over(averaging_processes(model))
        except Exception as error:
            tell(self._state, "finding out how the model is trained", error)

    def _look_around(self, model: nn.Module, parallel: DistributedDataParallel) -> None:
        """A DistributedDataParallel module is running: find out whether it trains this model."""
        own = next(model.parameters(), None)
        if any(own is parameter for parameter in parallel.parameters()):
            self._average_over(dist.get_world_size(parallel.process_group))

    def _average_over(self, processes: int) -> None:
        if not processes:
            return
        self._state.average_over(processes)
        self._engine.average(self._state.loss_share)
        self._run_statistics.processes = processes
        if self._state.observed and processes > 1:
            warn(
                f"the model was made parallel after {self._state.observed} passes were watched: this tick shows the "
                f"output gradients of these passes divided by {processes}. Make the model parallel before watching it"
            )

    def _look_for_a_trainer(self) -> None:
        """Warn if a Trainer trains the model; not if the watch was started inside it, as our callback does."""
        trainer = running_trainer()
        if trainer is not None and trainer != self._began_in:
            text = f"{trainer} trains this model, and this watch cannot see its losses and steps"
            warn(f"{text}; write {TRAINERS[trainer]} instead of watch()")

    def _look_at_parameters(self, model: nn.Module) -> None:
        if taken := taken_over(model):
            self._state.stop_recording()
            warn(f"nothing is recorded any more: {taken.found}")
            return
        watched = {id(parameter): parameter.requires_grad for parameter in self._engine.gradients.parameters}
        others = [parameter for parameter in model.parameters() if id(parameter) not in watched]
        if watched and not any(watched.values()) and any(parameter.requires_grad for parameter in others):
            warn(
                "all watched parameters are frozen, but others are trained. If layers were added after watching began, "
                "as get_peft_model() does, watch the model that it returns"
            )
