"""The base of gatherers: hooks on modules, tensors or optimizers that pass on what they see."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Protocol, TypeVar

from torch import nn

from ..engine.engine import Engine
from ..engine.meter import Subscription, is_measured
from ..engine.module_hook import ModuleHook
from ..engine.reports import cause_of, is_news, tell
from ..engine.tensors import has_no_numbers, tensors_in
from ..engine.torch_private import is_traced, without_modes_of_others
from ..errors import SkippedSample, warn

Method = TypeVar("Method", bound=Callable[..., Any])


class GathererState(Protocol):
    """What a gatherer reads from its inspector's state."""

    @property
    def is_active(self) -> bool:
        """Whether to record now."""

    @property
    def on_error(self) -> str:
        """``"warn"`` or ``"raise"``."""

    @property
    def loss_share(self) -> float:
        """The share of the global loss that this process computes."""


class AbstractGatherer(ABC):
    """Base of all gatherers: knows whether its inspector wants data, and how to detach."""

    def __init__(self, inspector_state: GathererState) -> None:
        self.inspector_state: GathererState | None = inspector_state
        self._handles: list[Any] = []

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Called by PyTorch as a hook, or by the user."""

    def detach(self) -> None:
        """Remove the hooks; calling it afterwards is an error."""
        self.inspector_state = None
        while self._handles:
            self._handles.pop().remove()

    @staticmethod
    def requires_active_inspector_state(method: Method) -> Method:
        """Decorator: do nothing while the inspector is inactive."""

        @wraps(method)
        def guarded(self: "AbstractGatherer", *args: Any, **kwargs: Any) -> Any:
            return method(self, *args, **kwargs) if self.inspector_state.is_active else None  # type: ignore[union-attr]

        return guarded  # type: ignore[return-value]


class Gatherer(AbstractGatherer):
    """A gatherer that hands over to preprocessors and never breaks the training that calls it.

    A subclass registers its hooks, calls :meth:`_hand_over` from them and writes :meth:`_process`. Hooks on modules
    that it registers with :meth:`_hook_module` are off while the engine of its inspector records nothing.

    Args:
        preprocessors: receive the data.
        name: the layer's name, passed with the data.
        inspector_state: says whether to record.
    """

    def __init__(self, preprocessors: Sequence[Any], name: str, inspector_state: GathererState) -> None:
        super().__init__(inspector_state)
        self._preprocessors = list(preprocessors)
        self.name = name
        """The name passed with the data; a lens may choose a longer one than the layer's."""
        self.module_name = name
        """The name of the module that data come from."""
        self.owner = next((type(p).__name__ for p in self._preprocessors), type(self).__name__)
        """The name that warnings begin with; a lens sets its own name here."""
        self._in_gap = self._failed = self._warned = False
        self._hooks: list[ModuleHook] = []
        self._rests_in: Engine | None = None
        self.is_eager = False
        """Whether the module is called, instead of being part of a compiled graph."""

    def _hook_module(self, module: nn.Module, hook: Callable[..., Any], *, before: bool = False) -> None:
        """Put a hook on a module; it is off in steps that are not observed."""
        self._hooks.append(ModuleHook(module, hook, before=before))
        self._handles.append(self._hooks[-1])
        self._rest_when_idle()

    def _rest_when_idle(self) -> None:
        """Let the engine call :meth:`rest` and :meth:`wake`, unless all preprocessors want every step."""
        engine: Engine | None = getattr(self.inspector_state, "engine", None)
        wants_all_steps = all(getattr(preprocessor, "every_step", False) for preprocessor in self._preprocessors)
        if engine is not None and self._rests_in is None and not wants_all_steps:
            self._rests_in = engine
            engine.module_taps.append(self)

    def rest(self) -> None:
        """Take the hooks off until :meth:`wake`."""
        self._begin_gap()
        for hook in self._hooks:
            hook.rest()

    def wake(self) -> None:
        """Put them back."""
        for hook in self._hooks:
            hook.wake()

    def detach(self) -> None:
        """Remove the hooks; calling it afterwards is an error."""
        super().detach()
        engine, self._rests_in = self._rests_in, None
        if engine is not None:
            engine.forget(self)
            engine.module_taps.remove(self)

    def rename(self, name: str) -> None:
        """Pass data with another name from now on."""
        self.name = name
        for handle in self._handles:
            if isinstance(handle, Subscription):
                handle.rename()

    def refresh(self) -> None:
        """Look again at what may have changed in the model without any hook noticing; most gatherers need not."""

    @abstractmethod
    def _process(self, preprocessor: Any, *data: Any) -> None:
        """Call the matching method of the preprocessor."""

    def _engine(self) -> Engine | None:
        """The engine of the inspector, if it measures for all preprocessors; None if the gatherer needs own hooks."""
        engine: Engine | None = getattr(self.inspector_state, "engine", None)
        return engine if self._preprocessors and all(map(is_measured, self._preprocessors)) else None

    def _wants_data(self) -> bool:
        """Whether to record; at the first inactive call, tells preprocessors that there is a gap."""
        if self.inspector_state is None:
            return False
        self.is_eager = True
        active = self.inspector_state.is_active and not self._failed and self._is_step_observed()
        if active:
            self._in_gap = False
            return not is_traced()
        self._begin_gap()
        if self._rests_in is not None and not self._rests_in.is_awake:  # the first pass was idle
            self._rests_in.send_to_rest(self)
        return False

    def _begin_gap(self) -> None:
        if not self._in_gap:
            for preprocessor in self._preprocessors:
                self.guarded(preprocessor.interrupt, self.name)
        self._in_gap = True

    def _is_step_observed(self) -> bool:
        """Whether this step is observed; preprocessors can ask for others as well."""
        if getattr(self.inspector_state, "is_baseline", False):  # a baseline step
            return any(getattr(preprocessor, "compares", True) for preprocessor in self._preprocessors)
        phase = getattr(self.inspector_state, "phase", True)
        return bool(phase) or all(getattr(preprocessor, "every_step", False) for preprocessor in self._preprocessors)

    def _hand_over(self, *data: Any) -> None:
        """Pass data to the preprocessors; this is the end of a hook, so no error may leave it."""
        if self.inspector_state is None:
            raise AttributeError(f"this gatherer was detached from {self.name!r}")
        try:
            if self._wants_data() and not has_no_numbers(data):
                with without_modes_of_others():
                    for preprocessor in self._preprocessors:
                        self.guarded(self._process, preprocessor, *data)
        except Exception as error:
            tell(self.inspector_state, f"looking at layer {self.name!r}", error)

    def guarded(self, action: Callable[..., Any], *data: Any) -> Any:
        """Call ``action``; an error is reported once and never reaches the training loop."""
        try:
            return action(*data)
        except Exception as error:
            self.report(error, data)
        return None

    def report(self, error: Exception, data: Any) -> None:
        """Warn once about an error with ``data``; then stop, unless only a sample is left out."""
        if isinstance(error, SkippedSample):
            if not self._warned and is_news(self.inspector_state, cause_of(error)):
                rest = "Further samples left out for this reason are not reported"
                warn(f"{self.owner} leaves out a sample of layer {self.name!r}: {error}. {rest}")
            self._warned = True
            return
        if self.inspector_state is not None and self.inspector_state.on_error == "raise":
            raise error
        if self._failed:
            return
        self._failed = True
        cause = cause_of(error)
        if is_news(self.inspector_state, cause):
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors_in(data))
            seen = f" (shapes: {shapes})" if shapes else ""
            rest = "Training goes on. Other layers and lenses that stop for this reason are not reported"
            cure = "PyTorchInspector(on_error='raise') shows where it happened"
            text = f"{self.owner} stops watching layer {self.name!r}: {cause}{seen}. {rest}; {cure}"
            warn(text)
