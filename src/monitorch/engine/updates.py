"""How far an optimizer step moves parameters: all of them are measured together."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import SkippedSample
from .allocation import is_like
from .buffers import BASELINE, NOWHERE, Entry, Info
from .distributed_tensors import local_part
from .meter import UPDATE, Measured, Meter, Reporter, Subscription
from .optimizers import Owned
from .parameters import ParameterRef
from .torch_private import copy_all

if TYPE_CHECKING:
    from .engine import Engine


class _Watched(ParameterRef):
    """A parameter whose updates are measured."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        self.meters: list[Meter] = []
        self.before: Tensor | None = None
        """The parameter as it was before the step, if a meter needs a copy."""

    def copy_of(self, local: Tensor) -> Tensor:
        """Memory for a copy of the local part of the parameter."""
        if self.before is None or not is_like(self.before, local):
            self.before = torch.empty_like(local, requires_grad=False)
        return self.before


class UpdateTap:
    """Measures parameters from just before to just after each step.

    They are read before every step that is measured, because a parameter may have changed unnoticed since the last
    step: neither fused steps nor changes of ``.data`` raise its version. What is kept of them is a copy or a sketch.
    """

    def __init__(self, engine: "Engine", optimizer: Optimizer) -> None:
        self.state, self._engine, self._optimizer = engine.state, engine, optimizer
        self._watched: dict[tuple[int, str], _Watched] = {}
        self._tag: int | None = None
        self._moving: list[tuple[Tensor, list[Meter]]] = []
        """The parameters of this step, and what measures each."""

    @property
    def meters(self) -> list[Meter]:
        """All that is measured here."""
        return [meter for watched in self._watched.values() for meter in watched.meters]

    def watch(
        self, module: nn.Module, parameter: str, name: str, gatherer: Reporter, preprocessor: Measured
    ) -> Subscription:
        """Measure the updates of a parameter for a preprocessor from now on."""
        watched = self._watched.get((id(module), parameter))
        if watched is None or not watched.belongs_to(module):
            watched = self._watched[id(module), parameter] = _Watched(module, parameter)
        subscription = self._engine.subscribe(watched.meters, name, gatherer, preprocessor, UPDATE, parameter)
        subscription.meter.measure_updates()
        return subscription

    def close(self) -> None:
        """Forget everything."""
        self._watched, self._moving = {}, []

    def refresh(self) -> None:
        """Drop parameters that no preprocessor needs any more."""
        self._watched = {place: watched for place, watched in self._watched.items() if watched.meters}

    def before_step(self, *_: Any) -> None:
        """Keep each parameter of the optimizer, or its sketch, as it is before the step."""
        self._moving = []
        if not self.state.wants_data():
            self.rest()
            return
        self._tag = BASELINE if self.state.is_baseline else 0
        owned, copies, originals = Owned(self._optimizer), list[Tensor](), list[Tensor]()
        sketched, weighed = list[Entry](), list[Entry]()
        for watched in self._watched.values():
            tensor = watched.find()
            if tensor is None or tensor not in owned:  # its steps do not change other parameters
                continue
            local = local_part(tensor)[0]
            kept = [meter for meter in watched.meters if self._keeps(meter, local)]
            before: Tensor | None = None
            for meter in kept:
                if meter.comparison.sketched:
                    sketched.append((meter, NOWHERE, local, False))
                    meter.before = None
                else:
                    meter.before = before = watched.copy_of(local)
                if meter.weighs and not self._tag:
                    weighed.append((meter, NOWHERE, local, False))
            watched.before = before
            if before is not None:
                copies.append(before)
                originals.append(local)
            self._moving.append((tensor, kept))
        if copies:
            with torch.no_grad():
                copy_all(copies, originals)
        self._engine.measure_together("keep_sketches", sketched)
        self._engine.measure_together("weigh", weighed)

    def _keeps(self, meter: Meter, local: Tensor) -> bool:
        """Whether a meter measures this step; makes room for what it keeps."""
        if meter.failed or (self._tag and not meter.compares):
            return False
        if meter.comparison.knows(local):
            return True  # nearly always
        meter.guarded(meter.before_step, local)
        return not meter.failed

    def after_step(self, *_: Any) -> None:
        """Measure each parameter against what was kept of it."""
        if self._tag is None:
            return
        entries: list[Entry] = []
        moved, self._moving = self._moving, []
        tag, step, gaps = self._tag, self.state.step, self.state.gaps
        for tensor, meters in moved:
            local, part = local_part(tensor)
            for meter in meters:
                if meter.failed:
                    continue
                try:
                    if meter.comparison.sketched and not meter.comparison.knows(local):
                        meter.interrupt()
                        raise SkippedSample("the layout of its memory has changed during a step")
                    entries.append((meter, Info(meter.number, step, tag, part), local, meter.follows(local, gaps)))
                except Exception as error:
                    meter.fail(error, local)
        self._engine.measure_together("updates", entries, self._engine.step_scales.of(self._optimizer).of_unscaled)

    def rest(self) -> None:
        """Steps are not measured from now on."""
        if self._tag is not None:
            self.skip_step()
        self._tag = None

    def skip_step(self) -> None:
        """A step is skipped: do not compare the next update with the last one."""
        for meter in self.meters:
            meter.interrupt()
