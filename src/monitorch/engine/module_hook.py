"""A hook on a module that can be taken off for a while."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from torch import nn

from .torch_private import put_back_hook


class Resting(Protocol):
    """Something with hooks on modules, which are taken off while nothing is recorded."""

    @property
    def is_eager(self) -> bool:
        """Whether modules are called, instead of being parts of compiled graphs."""

    def rest(self) -> None:
        """Take the hooks off."""

    def wake(self) -> None:
        """Put them back."""


class ModuleHook:
    """A hook on a module; one that was taken off is put back in its place among the other hooks.

    Args:
        hook: called with the module, its arguments, its keyword arguments and, after it has run, its output.
        before: whether to call it before the module runs instead of after it.
        first: whether to call it before other hooks.

    >>> seen = []
    >>> linear = nn.Linear(2, 2)
    >>> hook = ModuleHook(linear, lambda module, args, kwargs, output: seen.append("ours"))
    >>> _ = linear.register_forward_hook(lambda *_: seen.append("theirs"))
    >>> hook.rest(), hook.wake()
    (None, None)
    >>> _ = linear(linear.bias)
    >>> seen
    ['ours', 'theirs']
    """

    def __init__(
        self, module: nn.Module, hook: Callable[..., Any], *, before: bool = False, first: bool = False
    ) -> None:
        self._module, self._hook, self._before = weakref.ref(module), hook, before
        register = module.register_forward_pre_hook if before else module.register_forward_hook
        others = list(self._hooks(module))
        self._handle = register(hook, with_kwargs=True)
        self._earlier, self._later = ([], others) if first else (others, [])
        self._move_behind(module, self._later)

    def rest(self) -> None:
        """Take it off until :meth:`wake`."""
        module, own = self._module(), self._handle.id
        if module is not None:
            hooks = list(self._hooks(module))
            if own in hooks:  # somebody may clear all hooks
                place = hooks.index(own)
                self._earlier, self._later = hooks[:place], hooks[place + 1 :]
            self._handle.remove()

    def wake(self) -> None:
        """Put it back."""
        module = self._module()
        if module is not None:
            others = list(self._hooks(module))
            put_back_hook(module, self._handle.id, self._hook, before=self._before)
            self._move_behind(module, others[self._place_among(others) :])

    def _place_among(self, others: Sequence[int]) -> int:
        """Where it belongs among the other hooks, some of which may have come or gone while it was off."""
        earlier = [place for place, other in enumerate(others) if other in self._earlier]
        later = [place for place, other in enumerate(others) if other in self._later]
        if not earlier and not later:
            earlier = [place for place, other in enumerate(others) if other < self._handle.id]
        return earlier[-1] + 1 if earlier else min(later, default=0)

    def remove(self) -> None:
        """Take it off for good."""
        self._handle.remove()

    def _move_behind(self, module: nn.Module, others: Iterable[int]) -> None:
        """Let these hooks be called after this one; they are all that follow its place, so they keep their order."""
        hooks = self._hooks(module)
        for other in others:
            # not move_to_end, nor torch's prepend=True: torch.compile finds hooks by the order of insertion
            hooks[other] = hooks.pop(other)

    def _hooks(self, module: nn.Module) -> Any:
        return module._forward_pre_hooks if self._before else module._forward_hooks
