"""Watching a model that Accelerate has prepared, and a tracker for what ``accelerator.log`` gets."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from numbers import Real
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from ..errors import MissingExtraError, OptionError, warn
from ..store import DEFAULT_FOLDER
from ..watching.model_watch import Watch, check_options
from ..watching.model_watch import watch as watch_model
from .position import go_on, save_position, saved_position

try:
    from accelerate import Accelerator, tracking  # type: ignore[import-untyped]
    from accelerate.optimizer import AcceleratedOptimizer  # type: ignore[import-untyped]
    from accelerate.tracking import GeneralTracker  # type: ignore[import-untyped]
except ImportError as error:
    raise MissingExtraError.needed_by("monitorch.integration.accelerate", "accelerate", extra="accelerate") from error

PREPARED = "call watch() after accelerator.prepare(), with the model and the optimizer that it returned"

_watches: WeakKeyDictionary[Accelerator, list[Watch]] = WeakKeyDictionary()
"""The watches of each accelerator, the first one first; those that are closed are dropped when another one comes."""


def watch(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: AcceleratedOptimizer | Iterable[AcceleratedOptimizer],
    **options: Any,
) -> Watch:
    """Watch a model that Accelerate has prepared, with the GradScaler that it may use.

    ``accelerator.save_state`` saves the position of the run, and ``load_state`` continues from there. If the
    accelerator has a :class:`MonitorchTracker`, what is logged also goes to the run.

    Args:
        accelerator: the accelerator that prepared them.
        model: the prepared model.
        optimizer: the prepared optimizer, or several.
        **options: options of :func:`monitorch.watch`, such as ``loss_fn`` and ``run``.

    >>> accelerator, model = Accelerator(cpu=True), nn.Linear(2, 1)
    >>> model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> watch(accelerator, model, optimizer, visualizer="dummy")
    Watch(Linear, tick_every=None, ticks=0)
    """
    if not isinstance(accelerator, Accelerator):
        raise OptionError(f"accelerator takes an accelerate.Accelerator, not {accelerator!r}")
    optimizers = [optimizer] if isinstance(optimizer, AcceleratedOptimizer) else optimizer
    optimizers = list(optimizers) if isinstance(optimizers, Iterable) else [optimizers]
    if not optimizers or not all(isinstance(one, AcceleratedOptimizer) for one in optimizers):
        raise OptionError(f"optimizer={optimizer!r} was not prepared: {PREPARED}")
    check_options(options)
    tracker = _tracker_of(accelerator)
    if tracker is not None and options.get("visualizer") is None:
        options = tracker.options | options
    watched = watch_model(model, optimizers, grad_scaler=accelerator.scaler, **options)
    if tracker is not None:
        tracker.follow(watched)
    if accelerator not in _watches:
        accelerator.register_save_state_pre_hook(partial(_save, accelerator))
        accelerator.register_load_state_pre_hook(partial(_load, accelerator))
    _watches[accelerator] = [*_open_watches(accelerator), watched]
    return watched


def _tracker_of(accelerator: Accelerator) -> MonitorchTracker | None:
    """The tracker of this accelerator, if it has one; a new one in processes where Accelerate makes none."""
    known = next((one for one in accelerator.trackers if isinstance(one, MonitorchTracker)), None)
    asked = next((one for one in accelerator.log_with if isinstance(one, MonitorchTracker)), None)
    by_name = any(str(one) == MonitorchTracker.name for one in accelerator.log_with)
    if accelerator.is_main_process or not (asked or by_name):
        return known or asked
    tracker = asked or MonitorchTracker()
    accelerator.trackers.append(tracker)  # end_training() closes the watches of all processes together
    return tracker


def _save(accelerator: Accelerator, models: Any, weights: Any, folder: str) -> None:
    for number, watched in enumerate(_open_watches(accelerator)):
        save_position(watched, folder, writes=accelerator.is_main_process, number=number)


def _load(accelerator: Accelerator, models: Any, folder: str) -> None:
    """We do not use ``register_for_checkpointing``: it refuses checkpoints made without a watch."""
    for number, watched in enumerate(_open_watches(accelerator)):
        go_on(watched, saved_position(folder, number), step=0)


def _open_watches(accelerator: Accelerator) -> list[Watch]:
    return [watched for watched in _watches.get(accelerator, ()) if watched.inspector.state.attached]


class MonitorchTracker(GeneralTracker):  # type: ignore[misc]
    """Puts what ``accelerator.log`` gets into the run of :func:`watch`, and closes it at ``end_training``.

    ``Accelerator(log_with=MonitorchTracker())``, or ``log_with="monitorch"`` after an import of this module. Numbers
    belong to the last finished step, whatever ``step=`` says: that is where the gradients and loss of the same moment
    are.

    Args:
        run: the name of the run; with ``log_with="monitorch"`` that of the project.
        folder: the folder that holds all runs.
    """

    name = "monitorch"
    requires_logging_directory = False
    main_process_only = False  # all processes close their watches together

    def __init__(self, run: str | None = None, folder: str | os.PathLike[str] = DEFAULT_FOLDER) -> None:
        super().__init__()
        self.options: dict[str, Any] = {"run": run, "folder": folder}
        """What :func:`watch` gets."""
        self._watched: Watch | None = None
        self._was_told = False

    @property
    def tracker(self) -> Watch | None:
        """What watches the model; None before :func:`watch` was called."""
        return self._watched

    def follow(self, watched: Watch) -> None:
        """Log there from now on."""
        self._watched = watched

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the settings with the run."""
        if self._watched is None:
            self.options["config"] = values
        elif hasattr(self._watched.visualizer, "note"):
            self._watched.visualizer.note(config=values)

    def log(self, values: dict[str, Any], step: int | None = None, **known: Any) -> None:
        """Log numbers; other values are left out."""
        if self._watched is not None:
            self._watched.log({name: value for name, value in values.items() if isinstance(value, Real | Tensor)})
        elif not self._was_told:
            self._was_told = True
            text = "nothing is logged before monitorch.integration.accelerate.watch(accelerator, model, optimizer)"
            warn(text)

    def finish(self) -> None:
        """Close the watch."""
        if self._watched is not None:
            self._watched.close()


if hasattr(tracking, "register_tracker_class"):  # since 1.15
    tracking.register_tracker_class(MonitorchTracker)
