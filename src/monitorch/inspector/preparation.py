"""What scripts and frameworks do to a model between watching it and training it."""

import weakref
from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..errors import warn
from ..gatherer.house import House
from ..gatherer.wrapped_optimizer import DEEPSPEED
from .inspector_state import InspectorState
from .module_tree import averaging_processes, is_partitioned
from .vitals import Vitals

STRANGER = "no optimizer that was given holds a parameter of this model, but maybe copies of them"


class Preparation:
    """Looks at a model when training passes begin: it may be wrapped, sharded, frozen or extended by then.

    Args:
        optimizers: those that the inspector knows.
        vitals: has to know how many processes train on batches of their own.
    """

    def __init__(
        self, state: InspectorState, house: House, model: nn.Module, optimizers: Sequence[Optimizer], vitals: Vitals
    ) -> None:
        self._state, self._house, self._vitals = state, house, vitals
        own = set(map(id, model.parameters()))
        held = [
            id(member) for optimizer in optimizers for group in optimizer.param_groups for member in group["params"]
        ]
        if own and held and own.isdisjoint(held):
            warn(f"{STRANGER}: gradients are taken at backward, and updates are not seen", stacklevel=2)
        self._model: Callable[[], nn.Module | None] = weakref.ref(model)
        self._kind: type | None = None  # fully_shard gives a module another class

    def look(self) -> None:
        """A training pass begins; what goes wrong here never reaches it."""
        model = self._model()
        try:
            if model is not None:
                self._look_at(model)
        except Exception as error:
            if self._state.on_error == "raise":
                raise
            self._model = _no_model
            warn(f"it is not known how this model is trained: {type(error).__name__}: {error}", stacklevel=2)

    def _look_at(self, model: nn.Module) -> None:
        if not self._state.averages and DistributedDataParallel._active_ddp_module is not None:
            self._look_around(model, DistributedDataParallel._active_ddp_module)
        if type(model) is not self._kind:
            if self._kind is None:
                self._look_at_parameters(model)
            self._kind = type(model)
            if not self._state.averages:
                self._average_over(averaging_processes(model))

    def _look_around(self, model: nn.Module, parallel: DistributedDataParallel) -> None:
        """Something of DistributedDataParallel is running: find out whether it trains this model."""
        own = next(model.parameters(), None)
        if any(own is parameter for parameter in parallel.parameters()):
            self._average_over(dist.get_world_size(parallel.process_group))

    def _average_over(self, processes: int) -> None:
        if not processes:
            return
        self._state.average_over(processes)
        self._house.average(self._state.loss_share)
        self._vitals.processes = processes
        if self._state.observed and processes > 1:
            warn(
                f"the model was made parallel after it had been watched for {self._state.observed} passes: in this "
                f"tick gradients of their outputs are shown divided by {processes}. Make it parallel first",
                stacklevel=2,
            )

    def _look_at_parameters(self, model: nn.Module) -> None:
        if is_partitioned(model):
            self._state.stop_recording()
            warn(f"nothing is recorded any more: {DEEPSPEED}", stacklevel=2)
        watched = {id(parameter): parameter.requires_grad for parameter in self._house.gradients.parameters}
        if not watched or any(watched.values()):
            return
        if any(parameter.requires_grad and id(parameter) not in watched for parameter in model.parameters()):
            warn(
                "all parameters whose gradients are watched are frozen, and others are trained. Where layers were "
                "added after watching, as get_peft_model() does, watch the model that it returns",
                stacklevel=2,
            )


def _no_model() -> None:
    """In the place of one that is not looked at any more."""
