"""Monitors: hooks that pass samples to a reducer."""

import copy
import inspect
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from ..engine.torch_private import inside_backward, is_traced, without_operator_modes
from ..errors import LifecycleError, SkippedSample, warn
from ..numerical.waiting import ReentrantLock
from .hook import ContextualHook, Notice
from .module import Module, nested
from .reducer import Reducer
from .sample import has_no_numbers

# replicas of a module run in several threads and share its monitors, and a fold reads the state that it replaces
_FOLDING = ReentrantLock()


class MonitorConstructor(Protocol):
    """Makes a monitor of the attribute ``attr`` of ``module``, and registers it."""

    def __call__(self, attr: str, module: nn.Module) -> "Monitor":
        """Make it."""


def accept(*values: Any) -> bool:
    """A filter that lets every sample pass."""
    return True


def is_given(value: Any) -> bool:
    """A filter that rejects None."""
    return value is not None


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A tuple as it is, anything else as a 1-tuple."""
    return value if isinstance(value, tuple) else (value,)


def is_rehearsal() -> bool:
    """Whether this pass has no real values (tracing, export) or is a repeat of an earlier one.

    Tensors of export, tracing and functional transforms must not be kept. A pass inside backward is one that activation
    checkpointing repeats.
    """
    return is_traced() or inside_backward()


def checked_function(option: str, value: Any) -> Any:
    """The value, checked to be callable."""
    if not callable(value):
        raise TypeError(f"{option} must be a function, not {value!r}")
    return value


def checked_reducer(reducer: Reducer) -> Reducer:
    """The reducer, checked for its type."""
    if not isinstance(reducer, Reducer):
        raise TypeError(f"a monitor needs a Reducer such as PassthroughReducer(1.0), not {type(reducer).__name__}")
    return reducer


def _construct(kind: Any, options: dict[str, Any], attr: str, module: nn.Module) -> Any:
    own = {**options, "reducer": copy.deepcopy(options["reducer"])}
    if "attr" in inspect.signature(kind).parameters:
        return kind(attr=attr, module=module, **own)
    return kind(module=nested(module, attr), **own)


class Monitor(Module, ContextualHook):
    """Passes samples of a module, taken before or after its forward pass, to a reducer.

    A subclass names its own methods as hooks, and these call :meth:`record`. Passes that activation checkpointing
    repeats are not recorded. Neither are passes of export, tracing, fake or meta tensors and functional transforms.

    Args:
        reducer: reduces samples over time and stores them.
        module: the module to watch; may also be given to :meth:`register` later.
        prehook: name of the method to call before the forward pass.
        posthook: name of the method to call after it.
        prehook_kwargs: passed to ``register_forward_pre_hook``.
        posthook_kwargs: passed to ``register_forward_hook``.
        train_update: record when the module is in train mode.
        eval_update: record when it is in eval mode.
    """

    _family = "Monitor"
    on_error = "raise"
    """With ``"warn"`` an error while recording gives a warning and stops this monitor, not the forward pass."""

    def __init__(
        self,
        reducer: Reducer,
        module: nn.Module | None = None,
        prehook: str | None = None,
        posthook: str | None = None,
        prehook_kwargs: dict[str, Any] | None = None,
        posthook_kwargs: dict[str, Any] | None = None,
        train_update: bool = True,
        eval_update: bool = True,
    ) -> None:
        Module.__init__(self)
        ContextualHook.__init__(
            self,
            prehook,
            posthook,
            prehook_kwargs=prehook_kwargs,
            posthook_kwargs=posthook_kwargs,
            train_update=train_update,
            eval_update=eval_update,
        )
        self.reducer_ = checked_reducer(reducer)
        self.filter_: Any = accept
        self.map_: Any = None
        self.tags: dict[str, Any] = {}
        """The key of this monitor in a pool."""
        if module is not None:
            self.register(module)

    def __init_subclass__(cls) -> None:
        """Give ``partialconstructor`` of each class a signature that shows its options."""
        super().__init_subclass__()
        constructor = cls.partialconstructor.__func__  # type: ignore[attr-defined]

        def partialconstructor(cls: type["Monitor"], *args: Any, **kwargs: Any) -> MonitorConstructor:
            return cast(MonitorConstructor, constructor(cls, *args, **kwargs))

        if "partialconstructor" not in cls.__dict__:
            own = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)
            shown = inspect.Signature([own, *_partial_signature(cls).parameters.values()])
            partialconstructor.__signature__ = shown  # type: ignore[attr-defined]
            partialconstructor.__doc__ = constructor.__doc__
            cls.partialconstructor = classmethod(partialconstructor)  # type: ignore[assignment, method-assign]

    @classmethod
    def partialconstructor(cls, *args: Any, **kwargs: Any) -> MonitorConstructor:
        """A function ``(attr, module)`` that makes monitors with these options, each with its own copy of the reducer.

        Takes the options of the class, except ``attr`` and ``module``.
        """
        if cls is Monitor:
            raise NotImplementedError("Monitor takes no samples: call partialconstructor() of a subclass")
        options = _partial_signature(cls).bind(*args, **kwargs).arguments
        checked_reducer(options["reducer"])
        return cast(MonitorConstructor, partial(_construct, cls, options))

    @property
    def reducer(self) -> Reducer:
        """The reducer that gets the samples."""
        return self.reducer_

    @property
    def latest(self) -> Tensor | None:
        """The reducer's current state."""
        return self.reducer.latest

    def clear(self, **kwargs: Any) -> None:
        """Forget all samples."""
        self.reducer.clear(**kwargs)

    def view(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """The reducer's state at a given time."""
        return self.reducer.view(*args, **kwargs)

    def dump(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """The reducer's states over time."""
        return self.reducer.dump(*args, **kwargs)

    def peek(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """The reducer's current state."""
        return self.reducer.peek(*args, **kwargs)

    def register(self, module: nn.Module | None = None) -> None:
        """Watch ``module``; without one, the last watched module again, unless it is still watched."""
        if module is None and self.registered:
            return
        known = self._known_module() if module is None else module
        if known is None:
            raise LifecycleError("there is no module to watch again: pass one to register()")
        super().register(known)

    def record(self, *values: Any) -> None:
        """Pass the mapped values to the reducer, if the filter accepts them."""
        if has_no_numbers(values):
            return
        keep_graph = getattr(self.reducer, "differentiable", True)
        with torch.set_grad_enabled(keep_graph and torch.is_grad_enabled()):
            try:
                if self.filter_(*values):
                    sample = values if self.map_ is None else as_tuple(self.map_(*values))
                    with _FOLDING:
                        self.reducer(*sample)
            except SkippedSample as reason:
                self.reducer.skip(str(reason))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **self._unregistered()}  # type: ignore[no-untyped-call]

    def _wants(self, module: nn.Module) -> bool:
        return super()._wants(module) and not is_rehearsal()

    def _fire(self, side: str, module: nn.Module, *args: Any) -> None:
        self._notice.text = None  # the monitor has seen a pass, so deleting it is not a mistake
        try:
            # modes tell what is a rehearsal
            with nullcontext() if is_rehearsal() else without_operator_modes():
                super()._fire(side, module, *args)
        except Exception as error:
            if self.on_error == "raise":
                raise
            self.deregister()
            text = f"{type(self).__name__} stops watching {type(module).__name__}: {type(error).__name__}: {error}"
            warn(text)

    def _new_notice(self, module: nn.Module) -> Notice:
        return Notice(
            f"{type(self).__name__} of {type(module).__name__} was dropped before its first sample. A monitor lives "
            "only as long as something refers to it: keep it in a variable",
            module,
        )


def _partial_signature(kind: type[Monitor]) -> inspect.Signature:
    signature = inspect.signature(kind)
    return signature.replace(
        parameters=[p for name, p in signature.parameters.items() if name not in ("attr", "module")],
        return_annotation=MonitorConstructor,
    )
