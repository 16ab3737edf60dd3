"""A handler for PyTorch-Ignite: one line attaches it to a trainer, and to its evaluators."""

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from torch import Tensor, nn

from ..engine.reports import tell
from ..errors import MissingExtraError, OptionError
from ..watching.model_watch import Watch, check_options
from .position import Position, begin, settled_position_of, validation_loss_in

try:
    from ignite.engine import Engine, Events
except ImportError as error:
    raise MissingExtraError.needed_by("MonitorchHandler", "pytorch-ignite", extra="ignite") from error

VALIDATION = "val"
"""The prefix for numbers of an evaluator without a name."""


class MonitorchHandler:
    """Watches the model that an Ignite trainer trains, from the beginning to the end of its run.

    A step is a step of the optimizer, so with accumulated gradients it is not an iteration. The loss is the output of
    the trainer, which is a number by default. Metrics of evaluators are logged at the step after which they ran.

    Put it among ``to_save`` and ``to_load`` of a ``Checkpoint``: a resumed trainer then continues the same run.

    Args:
        model: the model that is trained, including its wrapper.
        optimizer: the optimizer, or all of them.
        output_transform: takes the output of the trainer and returns the loss. None: the output if it is a number, or
            its ``"loss"``.
        validation_loss: the metric that is the validation loss. None: of those with "loss" in their names the one with
            the shortest name. It comes from the first evaluator.
        **options: options of :func:`monitorch.watch`. With ``loss_fn=`` the loss comes from that module instead.

    >>> model = nn.Linear(2, 1)
    >>> MonitorchHandler(model, None, every=10, run="first try")
    MonitorchHandler(Linear, every=10, run='first try')
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        output_transform: Callable[[Any], Any] | None = None,
        validation_loss: str | None = None,
        **options: Any,
    ) -> None:
        check_options(options)
        if output_transform is not None and not callable(output_transform):
            raise OptionError(f"output_transform takes a function of the trainer's output, not {output_transform!r}")
        self.watched: Watch | None = None
        """What watches the model, from the beginning of a run on; stays after it."""
        self._model, self._optimizer, self._options = model, optimizer, options
        self._loss_in = output_transform or _loss_in
        self._validation_loss = validation_loss
        self._open: Watch | None = None
        self._loaded: Position = {}
        self._left: Position = {}
        """The step at which the last run ended."""
        self._running: Engine | None = None

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self._options.items())
        return f"MonitorchHandler({type(self._model).__name__}{options})"

    def attach(self, trainer: Engine, *evaluators: Engine, **named: Engine) -> "MonitorchHandler":
        """Watch the runs of a trainer.

        Args:
            trainer: what trains the model.
            *evaluators: log the metrics of these as ``val.accuracy`` and so on.
            **named: the same under other names: ``train=train_evaluator`` logs ``train.accuracy``. An engine that
                evaluates two sets of data in turn logs both under one name, so take one engine for each.
        """
        if not isinstance(trainer, Engine):
            raise OptionError(f"attach() takes an ignite Engine, not {trainer!r}")
        names = [VALIDATION, *(f"{VALIDATION} {number}" for number in range(2, len(evaluators) + 1))]
        all_named = dict(zip(names, evaluators, strict=False)) | named
        for name, evaluator in all_named.items():
            if not isinstance(evaluator, Engine):
                raise OptionError(f"attach() takes ignite Engines, but {name} is {evaluator!r}")
        if len(all_named) < len(evaluators) + len(named):
            raise OptionError(
                f"attach(): the evaluator without a name is called {VALIDATION!r} as well: give it another name"
            )
        trainer.add_event_handler(Events.STARTED, self._start)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self._take_loss)
        trainer.add_event_handler(Events.TERMINATE, self._terminate)
        trainer.add_event_handler(Events.EXCEPTION_RAISED, self._fail)
        handlers = _exception_handlers(trainer)
        handlers.insert(0, handlers.pop())  # a handler that re-raises would be the last to run
        for place, (name, evaluator) in enumerate(all_named.items()):
            evaluator.add_event_handler(Events.COMPLETED, self._take_metrics, name, gives_loss=place == 0)
        return self

    def state_dict(self) -> Position:
        """The run and its position, for a checkpoint."""
        if self._open is None:
            return self._loaded or self._left
        try:
            return settled_position_of(self._open)
        except Exception as error:
            tell(self._open.inspector.state, "saving the position of the run", error)
            return {}

    def load_state_dict(self, state: Position) -> None:
        """Continue from there when the trainer starts."""
        self._loaded = state

    def _start(self, trainer: Engine) -> None:
        """Watch the model, which is already restored from a checkpoint by now."""
        self._close(None)
        saved = self._loaded or (self._left if trainer.state.iteration else {})
        self._loaded = {}
        self.watched = self._open = begin(self._model, self._optimizer, self._options, saved, trainer.state.iteration)
        if self._open is not None and self._options.get("loss_fn") is None:
            self._open.wait_for_reports()  # the output comes after the step
        self._running = trainer
        trainer.add_event_handler(Events.COMPLETED, self._complete)  # now, to come after those of the user

    def _take_loss(self, trainer: Engine) -> None:
        if self._open is None or self._options.get("loss_fn") is not None:
            return
        try:
            loss = self._loss_in(trainer.state.output)
        except Exception as error:
            tell(self._open.inspector.state, "finding the loss in the output of the trainer", error)
            return
        if loss is not None:
            self._open.push_loss(loss)

    def _take_metrics(self, evaluator: Engine, name: str, *, gives_loss: bool) -> None:
        if self._open is None:
            return
        metrics = {str(metric): value for metric, value in evaluator.state.metrics.items() if _is_number(value)}
        self._open.log({name: metrics})
        loss = metrics.get(validation_loss_in(metrics, self._validation_loss))
        if gives_loss and loss is not None:
            self._open.push_loss(loss, train=False)

    def _terminate(self, trainer: Engine) -> None:
        if trainer.should_terminate == "skip_completed":
            self._close(None)

    def _complete(self, trainer: Engine) -> None:
        self._close(None)

    def _fail(self, trainer: Engine, error: BaseException) -> None:
        self._close(error)
        handlers = [getattr(handler, "__func__", None) for handler, *_ in _exception_handlers(trainer)]
        if all(handler is MonitorchHandler._fail for handler in handlers):
            raise error  # the engine does not re-raise once there is a handler; if there are others, they decide

    def _close(self, error: BaseException | None) -> None:
        watched = self._open
        if watched is None:
            return
        self._left, self._open = self.state_dict(), None
        if self._running is not None:
            self._running.remove_event_handler(self._complete, Events.COMPLETED)
            self._running = None
        # close() would look at sys.exc_info(), which holds an exception after terminate()
        watched.__exit__(None if error is None else type(error), error, None)


def _exception_handlers(trainer: Engine) -> list[Any]:
    """The handlers an engine calls for an error, in order; there is no public way to get them."""
    found: list[Any] = trainer._event_handlers[Events.EXCEPTION_RAISED]
    return found


def _loss_in(output: Any) -> Any:
    """The output of a trainer, if it is a number, or the one named loss in it."""
    found = output.get("loss") if isinstance(output, Mapping) else output
    return found if _is_number(found) else None


def _is_number(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, Real) and not isinstance(value, bool)
