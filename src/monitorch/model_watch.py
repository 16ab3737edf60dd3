"""One call that watches a model: lenses are chosen, ticks come by themselves."""

# not called watch.py: importing that file would put a module in the place of the function monitorch.watch

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from .errors import LifecycleError, OptionError, warn
from .gatherer.recomputation import inside_backward
from .inspector import PyTorchInspector
from .inspector.arguments import optimizers
from .inspector.display import DisplaysRun
from .inspector.module_tree import unwrap
from .inspector.standard_lenses import standard_lenses
from .lens import AbstractLens
from .model_pin import Pin, step_counter
from .model_run import RunOptions, check_options, close_at_exit, hint_at_loss
from .store import DEFAULT_FOLDER
from .visualizer.dummy_visualizer import DummyVisualizer
from .visualizer.store_visualizer import StoreVisualizer

FEW, MANY = 10, 100
"""Steps of a tick when nothing else is said: at the beginning and later on."""

COUNTS = ("steps", "ticks", "total")


def watch(
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    *,
    loss_fn: nn.Module | None = None,
    lenses: str | Iterable[AbstractLens] = "standard",
    every: int | Callable[[int], bool] = 1,
    budget: float | None = None,
    tick_every: int | None = None,
    visualizer: Any = None,
    run: str | None = None,
    folder: str | os.PathLike[str] = DEFAULT_FOLDER,
    config: Mapping[str, Any] | None = None,
    capture: bool = True,
    resume: bool = False,
    max_size: int | None = None,
    **inspector_options: Any,
) -> "Watch":
    """Watch a model in training; the training loop stays as it is.

    Numbers go to a run on disk, which ``monitorch ui`` shows while it grows; one line says so.

    A step is one step of the (first) optimizer, without one a training call of the model. The watch lasts until the end
    of the ``with`` block; without a block until :meth:`Watch.close`, or as long as the model. Watching a model again
    closes its first watch. With ``MONITORCH=off`` in the environment nothing is watched.

    Args:
        model: what to watch.
        optimizer: what trains it, one or several; with a GradScaler pass that as ``grad_scaler=``.
        loss_fn: the module that computes the loss; without it the loss is the ``loss`` field of the model's output, or
            what ``watch.inspector.push_loss`` is given.
        lenses: what to look at: ``"standard"``, or a list of lenses.
        every: observe every n-th step, or those for which this function of the step's number is true.
        budget: the share of time that observing may cost, such as 0.02; it chooses which steps are observed.
        tick_every: show numbers after so many steps; if None every 10 steps at first, every 100 later on.
        visualizer: where to show them instead of storing a run, as in PyTorchInspector.
        run: name of the run; the date and time if None. A name that is taken gets a number.
        folder: of all runs.
        config: what to keep beside the numbers; anything JSON can say.
        capture: keep the size of the model, the optimizers' options, the git commit, versions and the machine, too.
        resume: continue the run of that name, if there is one; :meth:`Watch.load_state_dict` says from which step.
        max_size: how many bytes a run may take: then its oldest ticks are kept as averages only.
        **inspector_options: further options of PyTorchInspector.

    >>> model, loss_fn = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)), nn.MSELoss()
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with watch(model, optimizer, loss_fn=loss_fn, tick_every=2, visualizer="dummy") as watched:
    ...     for step in range(5):
    ...         loss_fn(model(torch.ones(3, 2)), torch.ones(3, 1)).backward()
    ...         optimizer.step()
    ...     watched
    Watch(Sequential, tick_every=2, ticks=2)
    """
    check_options(watch, inspector_options)
    root, trained_by = unwrap(model), optimizers(optimizer)
    if tick_every is not None and (not isinstance(tick_every, int) or isinstance(tick_every, bool) or tick_every < 1):
        raise OptionError(f"tick_every={tick_every!r} must be a whole number of steps, at least 1, or None")
    stored = RunOptions(run, folder, config, capture, resume, max_size)
    if visualizer is not None and stored.is_asked_for:
        raise OptionError(
            "run, folder, config, capture, resume and max_size are for the stored run: no visualizer then"
        )
    if isinstance(lenses, str) and lenses != "standard":
        raise OptionError(f"lenses={lenses!r} is unknown; choose 'standard' or pass a list such as [OutputNorm()]")
    if loss_fn is not None and not isinstance(lenses, str):
        raise OptionError("loss_fn is for lenses='standard'; put LossMetrics(loss_fn=...) into your list instead")
    for pin in [hook for hook in root._forward_pre_hooks.values() if isinstance(hook, Pin)]:
        pin.close()
    is_standard = isinstance(lenses, str)
    if isinstance(lenses, str):
        lenses = standard_lenses(root, trained_by, loss_fn, inspector_options.get("depth", -1))
    is_stored, owns_visualizer = visualizer is None, visualizer is None or isinstance(visualizer, str)
    if visualizer is None:
        visualizer = stored.open(root, trained_by, per_rank=bool(inspector_options.get("per_rank")))
    options = {"optimizer": trained_by, "every": every, "budget": budget, "visualizer": visualizer}
    inspector = PyTorchInspector(lenses, module=model, **options, **inspector_options)
    if is_stored and (hint := stored.begin(visualizer, inspector)):
        print(hint)
    hints = is_standard and is_stored and inspector.is_main_process
    return Watch(inspector, root, trained_by, tick_every, owns_visualizer=owns_visualizer, hints=hints)


class Watch(DisplaysRun):
    """A model that is being watched; what :func:`watch` returns.

    Args:
        inspector: has the model attached.
        root: the model itself, without wrappers.
        optimizers: the steps of the first one count.
        tick_every: how many steps a tick lasts; None for few at first.
        owns_visualizer: close it in the end.
        hints: say in a line what would make more visible.
    """

    def __init__(
        self,
        inspector: PyTorchInspector,
        root: nn.Module,
        optimizers: Sequence[Optimizer],
        tick_every: int | None,
        *,
        owns_visualizer: bool = False,
        hints: bool = False,
    ) -> None:
        self.inspector = inspector
        self._name, self._tick_every, self._owns_visualizer = type(root).__name__, tick_every, owns_visualizer
        self._counts_calls = not optimizers
        self._steps, self._ticks, self._total = 0, 0, 0
        self._known_overhead: float | None = None
        self._has_news = self._closed = self._warned = False
        self._status, self._hints = "finished", hints
        tensor = next(chain(root.parameters(), root.buffers()), None)
        self._pin = Pin(self, torch.device("cpu") if tensor is None else tensor.device, inspector.state)
        self._handles: list[RemovableHandle] = []
        if not inspector.state.paused:  # so it is at birth if the environment switches monitoring off
            # before the inspector's own: a tick at the beginning of a call belongs to the steps before it
            self._handles.append(root.register_forward_pre_hook(self._pin, prepend=True))
            if optimizers and inspector._steps is not None:
                inspector._steps.after_step.append(step_counter(self))
        weakref.finalize(self, _remove, self._handles).atexit = False
        self._call_off = close_at_exit(self)

    def __repr__(self) -> str:
        return f"Watch({self._name}, tick_every={self._tick_every}, ticks={self._ticks}{', closed' * self._closed})"

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        self.end("crashed")

    @property
    def visualizer(self) -> Any:
        """Where numbers are shown."""
        return self.inspector.visualizer

    def tick(self) -> None:
        """Show what was seen since the last tick, and begin a new one now."""
        self._check_open()
        self._total, self._steps, self._has_news = self._total + self._steps, 0, False
        self.inspector.tick_epoch()
        self._ticks += 1
        self._note_overhead()
        if self._ticks == 1 and self._hints:
            hint_at_loss(self.inspector)

    def log(self, **values: Any) -> None:
        """Add any numbers by name; the next tick shows them."""
        self._check_open()
        self._has_news = True
        self.inspector.log(**values)

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, to be saved with a checkpoint."""
        own = {name: getattr(self, f"_{name}") for name in COUNTS}
        return {"inspector": self.inspector.state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state as if there had been no interruption."""
        self.inspector.load_state_dict(state["inspector"])
        for name in COUNTS:
            setattr(self, f"_{name}", state[name])

    def close(self) -> None:
        """Show what is left and leave the model as it was; calling it again does nothing."""
        if self._closed:
            return
        # what else than steps may be left, such as an evaluation, differs between processes, but a tick needs them all
        is_left = self._steps > 0 or (self._has_news and not _has_peers())
        try:
            if is_left and self.inspector.state.attached:
                self.tick()
        finally:
            self._closed = True
            self._leave()

    def end(self, status: str) -> None:
        """Close when the program ends or fails: nothing that goes wrong may hide the reason, or wait for others."""
        self._status = status
        if _has_peers():
            self._steps = 0  # the other processes do not come to this tick
        try:
            self.close()
        except Exception as failure:
            self._warn(failure)

    def count_call(self, trains: bool) -> None:
        """A call of the model begins."""
        if self._counts_calls and trains and not inside_backward():
            self._tick_if_due()
            self._steps += 1
        self._has_news = True

    def count_step(self) -> None:
        """A step of the optimizer has ended."""
        self._steps += 1
        self._tick_if_due()

    def _tick_if_due(self) -> None:
        few = min(max(self._total // 10, FEW), MANY)
        if self._steps < (few if self._tick_every is None else self._tick_every):
            return
        try:
            self.tick()
        except Exception as error:
            if self.inspector.state.on_error == "raise":
                raise
            self._warn(error)

    def _note_overhead(self) -> None:
        """Keep beside the run what observing it costs, whenever that has changed."""
        overhead = self.inspector.overhead
        overhead = None if overhead is None else round(overhead, 3)
        if overhead != self._known_overhead and isinstance(self.inspector.visualizer, StoreVisualizer):
            self._known_overhead = overhead
            self.inspector.visualizer.note(overhead=overhead)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            text = f"a tick failed: {type(error).__name__}: {error}. Training goes on; on_error='raise' shows where"
            warn(text, stacklevel=3)
        self._warned = True

    def _check_open(self) -> None:
        if self._closed:
            raise LifecycleError("this watch is closed: call monitorch.watch(model) again")

    def _leave(self) -> None:
        _remove(self._handles)
        self._call_off()
        self._pin.watch = None
        visualizer = self.inspector.visualizer
        if self.inspector.state.attached:
            self.inspector._visualizer = DummyVisualizer()  # detaching clears figures, and now they are wanted
            try:
                self.inspector.detach()
            finally:
                self.inspector._visualizer = visualizer
        if self._owns_visualizer and isinstance(visualizer, StoreVisualizer):
            visualizer.close(self._status)
        elif self._owns_visualizer and hasattr(visualizer, "close"):
            visualizer.close()


def _remove(handles: list[RemovableHandle]) -> None:
    while handles:
        handles.pop().remove()


def _has_peers() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
