"""A callback for PyTorch Lightning: one line in the Trainer watches the model."""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..engine.reports import tell
from ..errors import MissingExtraError
from ..watching.model_watch import Watch, failure_in
from .position import Position, begin, check_callback_options, settled_position_of, validation_loss_in


def _callback_class() -> type[Any]:
    """The base class of callbacks, from whichever of the two packages is imported, or else installed."""
    packages = sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules)
    for package in packages:
        try:
            found: type[Any] = import_module(package).Callback
        except ImportError:
            continue
        return found
    raise MissingExtraError.needed_by("MonitorchCallback", "lightning", extra="lightning")


if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = _callback_class()

FROM_TRAINER = ("model", "optimizer", "grad_scaler")
"""Arguments of ``watch`` that the Trainer provides."""


class MonitorchCallback(Callback):
    """Watches the model that a Trainer fits: ``Trainer(callbacks=[MonitorchCallback()])``.

    A step is a step of the optimizer, as counted by ``trainer.global_step``; with several optimizers, a batch in which
    any of them stepped. The loss is what ``training_step`` returns, or passes to ``manual_backward``. What the model
    logs is also logged here, at the last step. The sanity check is not recorded. A fit resumed from a checkpoint
    continues the same run.

    Args:
        validation_loss: the name under which the model logs its validation loss. None: the shortest name with
            "loss" in it that validation logs; if there is none, what ``validation_step`` returns.
        **options: options of :func:`monitorch.watch`; model, optimizers and GradScaler come from the Trainer.

    >>> MonitorchCallback(every=10, run="first try")
    MonitorchCallback(every=10, run='first try')
    """

    def __init__(self, *, validation_loss: str | None = None, **options: Any) -> None:
        super().__init__()
        check_callback_options(options, FROM_TRAINER)
        self.watched: Watch | None = None
        """What watches the model, from the beginning of the first training epoch on; stays after the fit."""
        self._options, self._validation_loss = options, validation_loss
        self._open: Watch | None = None
        self._ends_steps, self._begins_passes, self._trainer_steps = False, False, 0
        self._saved: Position = {}
        self._known: dict[str, Tensor] = {}
        self._returned: list[Tensor] = []

    def __repr__(self) -> str:
        named = {} if self._validation_loss is None else {"validation_loss": self._validation_loss}
        given = ", ".join(f"{name}={value!r}" for name, value in (named | self._options).items())
        return f"MonitorchCallback({given})"

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Watch the model: it is wrapped, its optimizers are restored, and the sanity check is over."""
        model, optimizers = trainer.strategy.model, trainer.optimizers
        options = {**self._options, "grad_scaler": getattr(trainer.precision_plugin, "scaler", None)}
        self.watched = self._open = begin(
            pl_module if model is None else model,
            optimizers,
            options,
            self._saved if trainer.global_step else {},
            trainer.global_step // max(len(optimizers), 1),
            config=dict(pl_module.hparams) or None,
        )
        self._known, self._returned, self._begins_passes = {}, [], False
        self._ends_steps, self._trainer_steps = len(optimizers) > 1, trainer.global_step
        if self._open is not None and self._ends_steps:  # they take turns in an order that only training_step knows
            self._open.inspector.end_steps_by_call()

    def on_train_batch_start(
        self, trainer: "Trainer", pl_module: "LightningModule", batch: Any, batch_idx: int
    ) -> None:
        """Log what came after the last batch, such as averages over an epoch."""
        self._log_of_step(trainer, pl_module)
        if self._open is not None and self._begins_passes:
            self._open.forward()

    def on_before_backward(self, trainer: "Trainer", pl_module: "LightningModule", loss: Tensor) -> None:
        """Take the loss before division by the number of micro-batches and before loss scaling."""
        if self._open is None:
            return
        state = self._open.inspector.state
        if state.is_between_steps:  # training_step runs in a compiled graph, or calls one, so that no pass was noticed
            self._begins_passes = True
            self._open.forward()
        micro_batches = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        unit = micro_batches if state.loss_scale is None else state.loss_scale.unit() * micro_batches
        self._open.push_loss(loss.detach() * unit)

    def on_train_batch_end(
        self, trainer: "Trainer", pl_module: "LightningModule", outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the step, unless an optimizer hook does, and log what the training step has logged."""
        if self._open is not None and self._ends_steps and trainer.global_step > self._trainer_steps:
            self._trainer_steps = trainer.global_step
            self._open.step()
        self._log_of_step(trainer, pl_module)

    def on_validation_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Drop what training has logged since the last step; a Lightning logger does not get it either."""
        self._take_new(trainer)

    def on_validation_batch_start(
        self,
        trainer: "Trainer",
        pl_module: "LightningModule",
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """An evaluation begins."""
        if self._open is not None and self._begins_passes:
            self._open.forward()

    def on_validation_batch_end(
        self,
        trainer: "Trainer",
        pl_module: "LightningModule",
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the loss of the batch; a whole number is a count of something else."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if self._open is None or not isinstance(loss, Tensor):
            return
        if loss.numel() == 1 and loss.is_floating_point():
            self._returned.append(loss.detach().flatten())

    def on_validation_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Log what validation has logged."""
        if self._open is None:
            return
        new, returned, self._returned = self._log_new(trainer), self._returned, []
        name = validation_loss_in(new, self._validation_loss)
        if name in new:
            self._open.push_loss(new[name], train=False)
        elif returned:
            self._open.push_loss(torch.cat(returned).mean(), train=False)

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """The fit is over."""
        self._log_new(trainer)
        self._close(None)

    def on_exception(self, trainer: "Trainer", pl_module: "LightningModule", exception: BaseException) -> None:
        """The fit has failed, or was interrupted."""
        self._close(exception)

    def teardown(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        """The Trainer is done."""
        self._close(None)

    def state_dict(self) -> Position:
        """The position of the run, for a checkpoint."""
        if self._open is None:
            return self._saved
        try:
            self._saved = settled_position_of(self._open)
        except Exception as error:
            tell(self._open.inspector.state, "saving the position of the run", error)
        return self._saved

    def load_state_dict(self, state_dict: Position) -> None:
        """Continue from there when training starts."""
        self._saved = state_dict

    def _log_of_step(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Log new numbers when a logger would get them: not between the micro-batches of a step."""
        if self._open is None:
            return
        if self._open.inspector.state.is_between_steps or not pl_module.automatic_optimization:
            self._log_new(trainer)

    def _log_new(self, trainer: "Trainer") -> dict[str, Tensor]:
        """Log what the model has logged since the last call."""
        new = self._take_new(trainer)
        if self._open is not None:
            self._open.log(new)
        return new

    def _take_new(self, trainer: "Trainer") -> dict[str, Tensor]:
        if self._open is None:
            return {}
        try:
            new = {name: value for name, value in trainer.logged_metrics.items() if not self._is_known(name, value)}
        except Exception as error:
            tell(self._open.inspector.state, "reading what the model has logged", error)
            return {}
        self._known |= new
        return new

    def _is_known(self, name: str, value: Tensor) -> bool:
        """Whether this very number was already there: the Trainer keeps old ones."""
        known = self._known.get(name)
        return known is not None and known.data_ptr() == value.data_ptr()

    def _close(self, error: BaseException | None) -> None:
        watched = self._open
        if watched is None:
            return
        self.state_dict()  # checkpoints may come later
        self._open, self._known, self._returned = None, {}, []
        if error is None:
            watched.close()
        else:
            watched.end(failure_in(error))
