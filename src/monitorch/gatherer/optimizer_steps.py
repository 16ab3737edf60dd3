"""Notices the steps of an optimizer, each exactly once."""

import sys
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from .compilation import outside_graph
from .reports import tell

Listener = Callable[[tuple[Any, ...], dict[str, Any]], None]
"""Called with the arguments of ``step``, the optimizer first."""

_STEP = Optimizer.profile_hook_step(lambda *_: None).__code__
"""The wrapper around every ``step`` that calls its hooks."""


class OptimizerSteps:
    """Tells listeners when a step begins and when it has ended.

    A ``step`` that calls the one of its base class is one step, though torch calls its hooks twice. Listeners are
    called after all other hooks, since these may still change the gradients that the optimizer gets.

    Args:
        state: the state of the inspector, which reports errors.
    """

    def __init__(self, optimizer: Optimizer, state: Any) -> None:
        self.optimizer, self._state = optimizer, state
        self.before: list[Listener] = []
        self.after: list[Listener] = []
        self.count = 0
        """How many steps have ended."""
        self._depth = 0
        self._stand_in: _StandIn | None = None
        self._pre_hook = optimizer.register_step_pre_hook(self._begin)
        self._post_hook = optimizer.register_step_post_hook(self._end)

    def remove(self) -> None:
        """Remove the hooks from the optimizer."""
        self._leave_place()
        self._pre_hook.remove()
        self._post_hook.remove()
        self.before, self.after = [], []

    @property
    def is_running(self) -> bool:
        """Whether a step has begun and not ended, as while it calls a closure."""
        return self._depth > 0

    def come_last(self) -> None:
        """Move behind hooks that others have registered since."""
        self._leave_place()
        hooks: Any = self.optimizer._optimizer_step_pre_hooks
        if self._pre_hook.id in hooks and next(reversed(hooks)) != self._pre_hook.id:
            hooks.move_to_end(self._pre_hook.id)

    @outside_graph
    def _begin(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self._leave_place()
            hooks: Any = self.optimizer._optimizer_step_pre_hooks
            last = next(reversed(hooks))
            if last == self._pre_hook.id:
                self._step_begins(args, kwargs)
            else:  # somebody came since the last step, and the order is fixed while hooks are being called
                self._stand_in = _StandIn(hooks, last, self._step_begins)
        except Exception as error:
            tell(self._state, "noticing that a step begins", error)

    def _leave_place(self) -> None:
        if self._stand_in is not None:
            self._stand_in.remove()
            self._stand_in = None

    def _step_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self._depth += 1
            if self._depth == 1 or self._is_outermost():
                self._depth = 1
                self._tell(self.before, args, kwargs)
        except Exception as error:
            tell(self._state, "noticing that a step begins", error)

    @outside_graph
    def _end(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self._depth -= 1
            if self._depth <= 0 or self._is_outermost():
                self._depth = 0
                self.count += 1
                self.come_last()  # not while these hooks are being called
                self._tell(self.after, args, kwargs)
        except Exception as error:
            tell(self._state, "noticing that a step has ended", error)

    def _tell(self, listeners: list[Listener], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for listener in listeners:
            try:
                listener(args, kwargs)
            except Exception as error:  # the other listeners must be called anyway
                tell(self._state, "measuring a step of the optimizer", error)

    def _is_outermost(self) -> bool:
        """Whether this is the outermost running step; a step that has failed never reports its end."""
        frame, running = sys._getframe(), 0
        while frame is not None:
            if frame.f_code is _STEP and frame.f_locals["args"][0] is self.optimizer:
                running += 1
            frame = frame.f_back  # type: ignore[assignment]
        return running <= 1


class _StandIn:
    """Replaces the last hook for one call: calls it, and then what has to come after it."""

    def __init__(self, hooks: dict[int, Any], place: int, action: Listener) -> None:
        self._hooks, self._place, self._hook, self._action = hooks, place, hooks[place], action
        hooks[place] = self

    @outside_graph
    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Be that hook."""
        self.remove()
        result = self._hook(optimizer, args, kwargs)
        is_changed = isinstance(result, tuple) and len(result) == 2  # the arguments of the step
        self._action(*(result if is_changed else (args, kwargs)))
        return result

    def remove(self) -> None:
        """Give the place back."""
        if self._hooks.get(self._place) is self:
            self._hooks[self._place] = self._hook
