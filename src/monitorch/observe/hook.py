"""Hooks that are removed when the object that made them is deleted."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from ..engine.compilation import HookOnModule, drop_graphs, inside_graph, outside_graph
from ..engine.torch_private import has_compiled_call, is_exported
from ..errors import LifecycleError, warn


class Notice:
    """The warning for a hook that is deleted too early. The finalizer holds this, because it cannot hold the hook."""

    def __init__(self, text: str | None = None, module: nn.Module | None = None) -> None:
        self.text, self._module = text, None if module is None else weakref.ref(module)

    def give(self) -> None:
        """Warn, unless the module is gone as well: then nothing was missed."""
        if self.text is not None and self._module is not None and self._module() is not None:
            warn(self.text)


def _let_go(handles: list[Any], notice: Notice) -> None:
    while handles:
        handles.pop().remove()
    notice.give()


class Relay(HookOnModule):
    """The callable that PyTorch holds: it calls the hook, but does not keep it alive."""

    def __init__(self, hook: "Hook", side: str) -> None:
        self._hook, self._side = weakref.ref(hook), side

    @inside_graph
    def __call__(self, module: nn.Module, *args: Any) -> Any:
        """Call the hook, except while the program is being exported."""
        return None if is_exported() else self._pass_on(module, *args)

    @outside_graph
    def _pass_on(self, module: nn.Module, *args: Any) -> Any:
        hook = self._hook()
        return None if hook is None else hook._fire(self._side, module, *args)


class Hook:
    """Functions that are called before and after the forward pass of a module.

    Hook and module do not keep each other alive: a hook that is deleted is removed from the module at once.

    Args:
        prehook: called as ``(module, args)``; may return other args.
        posthook: called as ``(module, args, output)``; may return another output.
        prehook_kwargs: passed to ``register_forward_pre_hook``.
        posthook_kwargs: passed to ``register_forward_hook``.
        train_update: call them when the module is in train mode.
        eval_update: call them when it is in eval mode.
    """

    _family = "Hook"
    """The name of this kind of object in messages."""

    def __init__(
        self,
        prehook: Callable[..., Any] | None = None,
        posthook: Callable[..., Any] | None = None,
        *,
        prehook_kwargs: dict[str, Any] | None = None,
        posthook_kwargs: dict[str, Any] | None = None,
        train_update: bool = True,
        eval_update: bool = True,
    ) -> None:
        sides = {"pre": prehook, "post": posthook}
        self._sides = {side: self._checked(call) for side, call in sides.items() if call is not None}
        if not self._sides:
            raise LifecycleError(f"{type(self).__name__} has nothing to call: give it a prehook, a posthook or both")
        self._kwargs = {"pre": dict(prehook_kwargs or {}), "post": dict(posthook_kwargs or {})}
        self.trainexec, self.evalexec = train_update, eval_update
        self._handles: list[Any] = []
        self._notice = Notice()
        self._finalizer: Any = None
        self._observed: weakref.ref[nn.Module] | None = None

    @property
    def trainexec(self) -> bool:
        """Whether the hook runs while the module is in train mode."""
        return self._trainexec

    @trainexec.setter
    def trainexec(self, value: bool) -> None:
        self._trainexec = bool(value)

    @property
    def evalexec(self) -> bool:
        """Whether the hook runs while the module is in eval mode."""
        return self._evalexec

    @evalexec.setter
    def evalexec(self, value: bool) -> None:
        self._evalexec = bool(value)

    @property
    def registered(self) -> bool:
        """Whether the hook is registered on a module, even if that module is gone."""
        return bool(self._handles)

    def register(self, module: nn.Module) -> None:
        """Register the hook on a module. If that fails, no part of it stays there.

        A hook is on one module at a time: call :meth:`deregister` first, unless the other module is gone.
        """
        if not isinstance(module, nn.Module):
            raise TypeError(f"register() takes a torch.nn.Module, not {type(module).__name__}")
        if self.registered and self._known_module() is not None:
            raise LifecycleError(
                f"{type(self).__name__}({self._family}) is already registered to a module so register() was ignored; "
                "call deregister() first"
            )
        self.deregister()
        handles: list[Any] = []
        put_on = {"pre": module.register_forward_pre_hook, "post": module.register_forward_hook}
        try:
            for side in self._sides:
                handles.append(cast(Any, put_on[side])(Relay(self, side), **self._kwargs[side]))
        except BaseException:
            _let_go(handles, Notice())
            raise
        self._handles, self._observed, self._notice = handles, weakref.ref(module), self._new_notice(module)
        self._finalizer = weakref.finalize(self, _let_go, handles, self._notice)
        self._finalizer.atexit = False
        if has_compiled_call(module):
            drop_graphs(module)

    def deregister(self) -> None:
        """Remove the hook from its module; does nothing if it is on none."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = None
        _let_go(self._handles, Notice())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **self._unregistered()}

    @staticmethod
    def _unregistered() -> dict[str, Any]:
        """The attributes of a copy, which is registered on no module."""
        return {"_handles": [], "_notice": Notice(), "_finalizer": None, "_observed": None}

    def _known_module(self) -> nn.Module | None:
        """The current or last module of the hook, if it still exists."""
        return None if self._observed is None else self._observed()

    def _new_notice(self, module: nn.Module) -> Notice:
        """The warning in case the hook is deleted now."""
        return Notice()

    def _checked(self, call: Any) -> Any:
        if not callable(call):
            raise TypeError(f"a hook must be a function, not {call!r}")
        return call

    def _wants(self, module: nn.Module) -> bool:
        """Whether to run now."""
        return self._trainexec if module.training else self._evalexec

    def _fire(self, side: str, module: nn.Module, *args: Any) -> Any:
        return self._sides[side](module, *args) if self._wants(module) else None


class ContextualHook(Hook):
    """A hook that calls methods of its own, given by name; what they return is ignored.

    Args:
        prehook: name of the method to call before the forward pass.
        posthook: name of the method to call after it.
        **kwargs: as for :class:`Hook`.
    """

    def __init__(self, prehook: str | None = None, posthook: str | None = None, **kwargs: Any) -> None:
        super().__init__(cast(Any, prehook), cast(Any, posthook), **kwargs)

    def _checked(self, call: Any) -> Any:
        if not isinstance(call, str):
            raise TypeError(f"{type(self).__name__} takes names of its methods, not {call!r}")
        return call

    def _fire(self, side: str, module: nn.Module, *args: Any) -> None:
        if self._wants(module):
            getattr(self, self._sides[side])(module, *args)


class StateHook(ContextualHook, ABC):
    """A hook for one module that can also be called manually; a subclass writes :meth:`hook`.

    Args:
        module: the module, kept alive by this object.
        train_update: run when the module is in train mode.
        eval_update: run when it is in eval mode.
        as_prehook: run before the forward pass instead of after it.
        prepend: run before hooks that are already registered.
        always_call: also run after a forward pass that failed.
    """

    def __init__(
        self,
        module: nn.Module,
        train_update: bool = True,
        eval_update: bool = True,
        *,
        as_prehook: bool = False,
        prepend: bool = False,
        always_call: bool = False,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"StateHook takes a torch.nn.Module, not {type(module).__name__}")
        name = "_call_hook"
        super().__init__(
            name if as_prehook else None,
            None if as_prehook else name,
            prehook_kwargs={"prepend": prepend},
            posthook_kwargs={"prepend": prepend, "always_call": always_call},
            train_update=train_update,
            eval_update=eval_update,
        )
        self.module = module

    @abstractmethod
    def hook(self, module: nn.Module) -> None:
        """Do something with the module."""

    def register(self, module: nn.Module | None = None) -> None:
        """Register the hook on its module, if it is not registered."""
        if module is not None and module is not self.module:
            raise LifecycleError(f"this {type(self).__name__} was made for another module: make a new one")
        if not self.registered:
            super().register(self.module)

    def forward(self, force: bool = False, ignore_mode: bool = False) -> None:
        """Call the hook manually; ``force`` even if it is not registered, ``ignore_mode`` in train and eval mode."""
        if (self.registered or force) and (ignore_mode or self._wants(self.module)):
            self.hook(self.module)

    def __call__(self, force: bool = False, ignore_mode: bool = False) -> None:
        """Same as :meth:`forward`."""
        self.forward(force, ignore_mode)

    def _call_hook(self, module: nn.Module, *args: Any) -> None:
        self.hook(module)
