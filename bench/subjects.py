"""Who watches: nobody, monitorch in this or in an earlier release, or torch-module-monitor.

A subject is imported when it is asked for, not before: two of them bear the same name.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from .cases import Case
    from .measure import Trial

LENSES = (
    "LossMetrics",
    "OutputActivation",
    "OutputNorm",
    "OutputGradientGeometry",
    "ParameterGradientGeometry",
    "ParameterGradientActivation",
    "ParameterNorm",
    "ParameterUpdateGeometry",
)
CORRELATION: dict[str, dict[str, Any]] = {
    "exact": {},
    "sketch": {"correlation": "sketch"},
    "none": {"compute_correlation": False},
}


class Watcher:
    """Nobody; and the moments of a training step at which a subject may want to be called."""

    def before_step(self) -> None:
        """Nothing has happened yet."""

    def before_update(self) -> None:
        """Gradients are there, the optimizer has not used them."""

    def after_step(self) -> None:
        """The optimizer has moved the parameters."""

    def seen(self) -> int | None:
        """How many numbers were recorded, where the subject can tell."""
        return None


class Monitorch(Watcher):
    """The inspector of whichever release is imported, with the lenses of a case."""

    def __init__(self, trial: Trial, case: Case) -> None:
        from monitorch.inspector import PyTorchInspector

        names = LENSES if case.lenses == "all" else (case.lenses,)
        options: dict[str, Any] = {} if case.every == 1 else {"every": case.every}
        if "optimizer" in inspect.signature(PyTorchInspector).parameters:
            options["optimizer"] = trial.optimizer
        lenses = [self._lens(name, trial, case) for name in names]
        self.inspector = PyTorchInspector(lenses, module=trial.model, visualizer="dummy", **options)
        self._steps, self._steps_per_tick = 0, case.tick

    @staticmethod
    def _lens(name: str, trial: Trial, case: Case) -> Any:
        from monitorch import lens

        options = dict(trial.workload.lens_options.get(name, {}))
        if name.endswith("Geometry"):
            options |= CORRELATION[case.correlation]
        if name == "LossMetrics":
            options["loss_fn"] = trial.loss_fn
        if name == "ParameterUpdateGeometry":
            options["optimizer"] = trial.optimizer
        return getattr(lens, name)(**options)

    def after_step(self) -> None:
        """Tick, if a case wants ticks."""
        self._steps += 1
        if self._steps_per_tick and self._steps % self._steps_per_tick == 0:
            self.inspector.tick_epoch()

    def seen(self) -> int | None:
        """The number of records of one tick; earlier releases have none."""
        self.inspector.tick_epoch()
        records = getattr(self.inspector, "records", None)
        return None if records is None else len(records())


class TorchModuleMonitor(Watcher):
    """Norms of outputs, parameters and gradients: less than the eight lenses see, at what users of it write."""

    def __init__(self, trial: Trial, case: Case) -> None:
        from torch_module_monitor import ModuleMonitor  # type: ignore[import-not-found]

        self.monitor = ModuleMonitor(monitor_step_fn=lambda step: True)
        self.monitor.set_module(trial.model)
        self.monitor.add_activation_metric("norm", lambda x: x.flatten(1).norm(dim=-1))
        self.monitor.add_parameter_metric("norm", Tensor.norm)
        self.monitor.add_gradient_metric("norm", Tensor.norm)
        self._step = 0

    def before_step(self) -> None:
        """Announce the step."""
        self.monitor.begin_step(self._step)
        self._step += 1

    def before_update(self) -> None:
        """Look at parameters and gradients."""
        self.monitor.monitor_parameters()
        self.monitor.monitor_gradients()

    def after_step(self) -> None:
        """Collect the numbers."""
        self.monitor.end_step()
        self.monitor.get_step_metrics()


SUBJECTS = {"monitorch": Monitorch, "upstream": Monitorch, "torch_module_monitor": TorchModuleMonitor}
