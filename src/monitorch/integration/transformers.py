"""A callback for Hugging Face's Trainer and those built on it, such as TRL's: watch a model with one line."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import MissingExtraError
from ..watching.model_watch import Watch
from .position import begin, check_callback_options, save_position, saved_position

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
except ImportError as error:
    raise MissingExtraError.needed_by("MonitorchCallback", "transformers", extra="transformers") from error

FROM_TRAINER = ("model", "optimizer", "grad_scaler", "loss_fn")
"""Arguments of ``watch`` that the Trainer knows."""


class MonitorchCallback(TrainerCallback):
    """Watches the model that a Trainer trains: ``Trainer(..., callbacks=[MonitorchCallback()])``.

    A step is what ``state.global_step`` counts. Its loss is the one that the Trainer itself adds up and logs, wherever
    it is computed. Everything the Trainer logs is also logged here, and ``eval_loss`` is the validation loss. A run is
    named after ``run_name`` of the TrainingArguments, which are its config. Training resumed from a checkpoint
    continues the same run.

    Args:
        **options: options of :func:`monitorch.watch`; model, optimizer, scaler and loss come from the Trainer.

    >>> MonitorchCallback(every=10, run="first try")
    MonitorchCallback(every=10, run='first try')
    """

    def __init__(self, **options: Any) -> None:
        check_callback_options(options, FROM_TRAINER)
        self.watched: Watch | None = None
        """What watches the model, from the beginning of training on; stays when training is over."""
        self._options = options
        self._open: Watch | None = None
        self._loss: Tensor | None = None
        self._folder = Path()

    def __repr__(self) -> str:
        return f"MonitorchCallback({', '.join(f'{name}={value!r}' for name, value in self._options.items())})"

    def __getstate__(self) -> dict[str, Any]:
        """A copy watches nothing yet."""
        return {**vars(self), "watched": None, "_open": None, "_loss": None}

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any) -> None:
        """A Trainer was made: make it report how its training ends."""
        _let_tell(_calling_trainer()[0])

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        optimizer: Any = None,
        **known: Any,
    ) -> None:
        """Watch the model: it is wrapped, and its optimizer is made and restored."""
        self.end(None)  # training was restarted
        trainer, checkpoint = _calling_trainer()
        self._folder, self._loss = Path(args.output_dir or "."), None
        model = model if trainer is None else trainer.model_wrapped
        saved = {} if checkpoint is None else saved_position(checkpoint)
        of_run = {"run": args.run_name, "config": args.to_dict()}  # type: ignore[no-untyped-call]
        self.watched = self._open = begin(model, optimizer, self._options, saved, state.global_step, **of_run)
        _let_tell(trainer)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any
    ) -> None:
        """All micro-batches of a step have been trained."""
        loss, self._loss = self._loss, None
        if self._open is not None and loss is not None:
            self._open.push_loss(loss)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **known: Any,
    ) -> None:
        """Log the same numbers."""
        if self._open is not None:
            self._open.log({name: number for name, number in (logs or {}).items() if isinstance(number, Real | Tensor)})

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **known: Any,
    ) -> None:
        """An evaluation has ended; its numbers are logged already."""
        loss = _evaluation_loss(metrics or {})
        if self._open is not None and loss is not None:
            self._open.push_loss(loss, train=False)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any) -> None:
        """Keep the position of the run beside the weights."""
        folder = self._folder / f"checkpoint-{state.global_step}"
        if self._open is not None:
            save_position(self._open, folder, writes=args.should_save and folder.is_dir())

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any) -> None:
        """Training is over."""
        self.end(None)

    def add_loss(self, loss: Any) -> None:
        """Add the loss of a micro-batch to that of the step."""
        if isinstance(loss, Tensor) and self._open is not None:
            part = loss.detach().to(torch.promote_types(loss.dtype, torch.float32))
            self._loss = part if self._loss is None else self._loss + part

    def end(self, error: BaseException | None) -> None:
        """Training has ended, maybe by an error."""
        watched, self._open = self._open, None
        if watched is not None and error is not None:
            watched.__exit__(type(error), error, error.__traceback__)
        elif watched is not None:
            watched.close()


class _TellingTrainer(Trainer):
    """A Trainer that also tells its callbacks the loss of each micro-batch, and errors, which no event does.

    The loss cannot be read elsewhere: the model's output may hold a different one, or none.
    """

    def train(self, *args: Any, **named: Any) -> Any:
        try:
            return super().train(*args, **named)
        except BaseException as error:
            self._tell(error)
            raise

    def training_step(self, *args: Any, **named: Any) -> Tensor:
        try:
            loss = super().training_step(*args, **named)
        except BaseException as error:  # train() may catch it, and begin again with smaller batches
            self._tell(error)
            raise
        for callback in self._watching():
            callback.add_loss(loss)
        return loss

    def __reduce_ex__(self, protocol: Any) -> Any:
        user_class = type(self).__bases__[1]  # copies have the public class
        return user_class.__new__, (user_class,), *super().__reduce_ex__(protocol)[2:]

    def _tell(self, error: BaseException) -> None:
        for callback in self._watching():
            callback.end(error)

    def _watching(self) -> list[MonitorchCallback]:
        return [one for one in self.callback_handler.callbacks if isinstance(one, MonitorchCallback)]


def _let_tell(trainer: Trainer | None) -> None:
    """Add the methods of _TellingTrainer to a Trainer of any class."""
    kind = type(trainer)
    if trainer is not None and not issubclass(kind, _TellingTrainer):
        names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
        trainer.__class__ = type(kind.__name__, (_TellingTrainer, kind), names)


def _calling_trainer() -> tuple[Trainer | None, str | None]:
    """The Trainer that calls a callback, and the checkpoint that it resumes from; no event passes these."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer):
            checkpoint = frame.f_locals.get("resume_from_checkpoint")
            return found, checkpoint if isinstance(checkpoint, str) else None
        frame = frame.f_back
    return None, None


def _evaluation_loss(metrics: Mapping[str, Any]) -> Any:
    """The loss among the metrics of an evaluation: they all begin with its name, and there is always its time.

    >>> _evaluation_loss({"eval_math_loss": 2.0, "eval_math_aux_loss": 0.1, "eval_math_runtime": 3.0})
    2.0
    """
    names = [name.removesuffix("_runtime") for name in metrics if name.endswith("_runtime")]
    losses = [metrics[f"{name}_loss"] for name in names if f"{name}_loss" in metrics]
    return losses[0] if losses else None


INTEGRATION_TO_CALLBACK.setdefault("monitorch", MonitorchCallback)  # for report_to="monitorch"
