"""The user's optimizers: the one inside the wrappers of other libraries, its parameters, and its steps."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import UnsupportedModelError
from .compilation import outside_graph
from .reports import Reports, tell
from .state import HookClock, QuietSteps
from .torch_private import STEP_PRE_HOOKS, running_steps, step_pre_hooks, without_modes_of_others

DEEPSPEED = "DeepSpeed keeps parameters and gradients outside the model; use fully_shard (FSDP2) instead"
MEGATRON = "Megatron adds gradients up in main_grad, and .grad stays empty; use fully_shard (FSDP2) instead"

BY_HAND = "by hand"
"""Passed instead of an optimizer if there is no object for it."""

INSIDE = ("optimizer", "_optimizer", "optim")
"""The attributes under which wrappers keep the optimizer inside them."""


class MakesSteps(Protocol):
    """An optimizer, of torch or not."""

    def step(self) -> Any:
        """Make a step."""


Optimizers: TypeAlias = MakesSteps | Iterable[MakesSteps] | Mapping[str, MakesSteps] | str | None
"""What may be given as ``optimizer=``; the only string is ``"by hand"``."""


class Unwrapped(NamedTuple):
    """The optimizer that takes the steps, or what was given instead of one, and the GradScaler of its wrapper."""

    optimizer: Any
    scaler: Any = None


def unwrap_optimizer(given: Any, scaler: Any = None) -> Unwrapped:
    """The optimizer inside wrappers that only pass calls on, such as those of Accelerate and Lightning.

    A wrapper that is itself an optimizer, such as Lookahead, stays as it is.
    """
    package = type(given).__module__
    if package.startswith("deepspeed.") and not package.startswith("deepspeed.ops."):  # ops: plain optimizers
        raise UnsupportedModelError(f"{type(given).__name__} cannot be observed: {DEEPSPEED}")
    if package.startswith("megatron."):
        raise UnsupportedModelError(f"{type(given).__name__} cannot be observed: {MEGATRON}")
    own = getattr(given, "scaler", None)
    scaler = scaler if own is None else own
    for name in INSIDE:
        inner = getattr(given, name, None)
        if inner is not None and inner is not given and not isinstance(given, type) and not _is_one(given, inner):
            found = unwrap_optimizer(inner, scaler)
            if takes_steps(found.optimizer):
                return found
    return Unwrapped(given, scaler)


def takes_steps(optimizer: Any) -> bool:
    """Whether it is an optimizer whose steps can be noticed: some subclasses do not call ``Optimizer.__init__``."""
    return isinstance(optimizer, Optimizer) and step_pre_hooks(optimizer) is not None


def _is_one(wrapper: Any, inner: Any) -> bool:
    """Whether the wrapper has its own step hooks, so that it is an optimizer and not just a proxy."""
    own = vars(wrapper).get(STEP_PRE_HOOKS) if hasattr(wrapper, "__dict__") else None
    return own is not None and own is not step_pre_hooks(inner)


class StandIn(Optimizer):
    """Stands in for optimizers whose steps cannot be detected; the user says when they have stepped.

    Its parameter groups are theirs. If one of them has none, there is one group with all that is trained.

    Args:
        given: the optimizers; none if there is no object for them.
    """

    def __init__(self, *given: Any) -> None:
        self._given = given
        self._models: list[weakref.ref[nn.Module]] = []
        super().__init__([{"params": []}], {})

    @property
    def kind(self) -> str:
        """What it stands in for."""
        return " and ".join(type(one).__name__ for one in self._given) or BY_HAND

    def trains(self, *models: nn.Module) -> None:
        """Say what is trained."""
        self._models = [weakref.ref(model) for model in models]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups as they are now."""
        groups = [getattr(one, "param_groups", None) for one in self._given]
        if groups and all(map(_are_groups, groups)):
            return list(chain.from_iterable(groups))  # type: ignore[arg-type]
        models = [model for known in self._models if (model := known()) is not None]
        trained = {id(own): own for model in models for own in model.parameters() if own.requires_grad}
        return [{"params": list(trained.values())}]

    @param_groups.setter
    def param_groups(self, _: Any) -> None:
        """Torch sets them at first."""


def _are_groups(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(group, dict) and "params" in group for group in given)


class Owned:
    """The parameters of some optimizers at one moment; made again at each step, since parameter groups may change."""

    def __init__(self, *optimizers: Optimizer) -> None:
        self._ids = {
            id(parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def __contains__(self, parameter: Tensor) -> bool:
        return id(parameter) in self._ids


def has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether ``step`` gets a function that computes the gradients: then they are there when it has ended."""
    return any(callable(argument) for argument in (*args[1:], kwargs.get("closure")))


def group_numbers(optimizer: Optimizer) -> dict[int, int]:
    """The number of the parameter group of each parameter, by its id."""
    groups = enumerate(optimizer.param_groups)
    return {id(parameter): number for number, group in groups for parameter in group["params"]}


Listener = Callable[[tuple[Any, ...], dict[str, Any]], None]
"""Called with the arguments of ``step``, the optimizer first."""


class OptimizerSteps:
    """Tells listeners when a step begins and when it has ended.

    A ``step`` that calls the one of its base class is one step, though torch calls its hooks twice. Listeners are
    called after all other hooks, since these may still change the gradients that the optimizer gets.

    If no hook of the optimizer fires, :meth:`begin_by_hand` and :meth:`end_by_hand` are called instead.

    Args:
        state: the state of the inspector, which reports errors.
        clock: measures how long the listeners take.
    """

    def __init__(self, optimizer: Optimizer, state: Reports, clock: HookClock | None = None) -> None:
        self.optimizer, self._state, self._clock = optimizer, state, clock
        self.beginning: list[Listener] = []
        """Called first, before anything is read."""
        self.keeping: list[Listener] = []
        """Called next, to keep the parameters from before the step."""
        self.before: list[Listener] = []
        """Called last, to read the gradients of the step."""
        self.after: list[Listener] = []
        self.has_ended = False
        """Whether a step has ended since this was last set to False."""
        self._depth = 0
        self._last_hook: _LastHook | None = None
        self.quiet: QuietSteps | None = None
        """Counts idle steps without telling the listeners; None if nothing does."""
        self._pre_hook = optimizer.register_step_pre_hook(self._begin)
        self._post_hook = optimizer.register_step_post_hook(self._end)

    def remove(self) -> None:
        """Remove the hooks from the optimizer."""
        self._leave_place()
        self._pre_hook.remove()
        self._post_hook.remove()
        self.beginning, self.keeping, self.before, self.after = [], [], [], []

    def begin_by_hand(self) -> None:
        """Keep the parameters now, before a step that no hook announces."""
        self._tell(self.keeping, (self.optimizer,), {})

    def end_by_hand(self) -> None:
        """Such a step has ended; its gradients are still there."""
        self._tell([*self.beginning, *self.before, *self.after], (self.optimizer,), {})

    @property
    def is_running(self) -> bool:
        """Whether a step has begun and not ended, as while it calls a closure."""
        return self._depth > 0

    def come_last(self) -> None:
        """Move behind hooks that others have registered since."""
        self._leave_place()
        hooks: Any = step_pre_hooks(self.optimizer)
        if self._pre_hook.id in hooks and next(reversed(hooks)) != self._pre_hook.id:
            hooks.move_to_end(self._pre_hook.id)

    @outside_graph
    def _begin(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            if self.quiet is not None and self.quiet.is_quiet:
                self._depth += 1
                return
            self._leave_place()
            hooks: Any = step_pre_hooks(self.optimizer)
            last = next(reversed(hooks))
            if last == self._pre_hook.id:
                self._step_begins(args, kwargs)
            else:  # another hook was added since the last step, and the order cannot change while hooks run
                self._last_hook = _LastHook(hooks, last, self._step_begins)
        except Exception as error:
            tell(self._state, "noticing that a step begins", error)

    def _leave_place(self) -> None:
        if self._last_hook is not None:
            self._last_hook.remove()
            self._last_hook = None

    def _step_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self._depth += 1
            if self._depth == 1 or self._is_outermost():
                self._depth = 1
                self._tell([*self.beginning, *self.keeping, *self.before], args, kwargs)
        except Exception as error:
            tell(self._state, "noticing that a step begins", error)

    @outside_graph
    def _end(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            if self._depth == 1 and self.quiet is not None and self.quiet.end_quiet_step():
                self._depth, self.has_ended = 0, True
                return
            self._depth -= 1
            if self._depth <= 0 or self._is_outermost():
                self._depth = 0
                self.has_ended = True
                self.come_last()  # not while these hooks are being called
                self._tell(self.after, args, kwargs)
        except Exception as error:
            tell(self._state, "noticing that a step has ended", error)

    def _tell(self, listeners: list[Listener], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        begin = None if self._clock is None else self._clock.enter()
        with without_modes_of_others():
            for listener in listeners:
                try:
                    listener(args, kwargs)
                except Exception as error:  # the other listeners must be called anyway
                    tell(self._state, "measuring a step of the optimizer", error)
        if self._clock is not None:
            self._clock.leave(begin)

    def _is_outermost(self) -> bool:
        """Whether this is the outermost running step; a step that has failed never reports its end."""
        return running_steps(self.optimizer) <= 1


class _LastHook:
    """Replaces the last hook for one call: calls it, then the action that must come after it."""

    def __init__(self, hooks: dict[int, Any], place: int, action: Listener) -> None:
        self._hooks, self._place, self._hook, self._action = hooks, place, hooks[place], action
        hooks[place] = self

    @outside_graph
    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the hook, then the action."""
        self.remove()
        result = self._hook(optimizer, args, kwargs)
        is_changed = isinstance(result, tuple) and len(result) == 2  # the arguments of the step
        self._action(*(result if is_changed else (args, kwargs)))
        return result

    def remove(self) -> None:
        """Give the place back."""
        if self._hooks.get(self._place) is self:
            self._hooks[self._place] = self._hook
