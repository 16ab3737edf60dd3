"""Calls of activation functions, and which layer they belong to."""

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from ..engine.functional_calls import Content
from ..preprocessor.activations import WEIGHTS, Activations
from ..preprocessor.data import IMAGE
from .abstract_gatherer import GathererState
from .call_gatherer import CallGatherer


class Caller(Protocol):
    """A module that may call activation functions."""

    name: str
    is_activation: bool
    """Whether it is an activation function itself, so that calls are named after it."""

    def module(self) -> nn.Module | None:
        """The module, while it exists."""


class ActivationCall(NamedTuple):
    """The result of an activation function."""

    name: str
    result: Tensor
    bounds: Sequence[float]
    """The lower and the upper bound, and how near to it counts; see ``Bounds``."""
    channel_last: bool
    weights: str | None
    """The last layer with weights that ran before; its output is nearly always the input of this call."""


class ActivationLayers:
    """Names calls of activation functions, and knows where their units are.

    A call is named after the last layer with weights that ran before it in the same module, whose output it nearly
    always takes; without one, after the module itself. More calls before the next layer with weights get numbers:
    ``fc``, ``fc 2``. That layer also tells where units are, as for ``OutputActivation``: in dimension 1 after
    convolutions and batch norms, in the last after linear layers, embeddings and layer norms; if nothing like that has
    run, in dimension 1 of images and the last of others. The answer for a name never changes.

    Args:
        channel_last: where units are, if that is known; None to find out.
    """

    def __init__(self, channel_last: bool | None) -> None:
        self._channel_last = channel_last
        self.forget()

    def forget(self) -> None:
        """Forget the model."""
        self._before: Caller | None = None
        self._last_dim: bool | None = None
        self._calls: Counter[str] = Counter()
        self._pass = (-1, -1)
        self._numbers: dict[str, int] = {}
        self._decided: dict[str, bool] = {}
        self._inside: dict[tuple[str, str], bool] = {}

    def take(self, caller: Caller, content: Content, running_pass: tuple[int, int]) -> ActivationCall | None:
        """The activation call, if this is one; a call of a layer with weights is remembered instead."""
        what, tensors, numbers = content
        if what == WEIGHTS:
            self._before, self._last_dim = caller, bool(numbers[0])
            self._calls.clear()
            return None
        (result,) = tensors
        low, high, _ = numbers
        if result is None or (_is_formula(caller) and (low == low or high == high)):
            return None  # the tanh inside a hand-written GELU is not an activation
        name = self._name(caller, running_pass)
        channel_last = self._channels_are_last(name, result.dim())
        return ActivationCall(name, result, numbers, channel_last, None if self._before is None else self._before.name)

    def _name(self, caller: Caller, running_pass: tuple[int, int]) -> str:
        if caller.is_activation:
            return caller.name
        if running_pass != self._pass:
            self._pass = running_pass
            self._calls.clear()
        before = self._before
        name = before.name if before is not None and self._is_inside(before, caller) else caller.name
        self._calls[name] += 1
        number = self._calls[name]
        self._numbers[name] = max(number, self._numbers.get(name, 1))
        return name if number == 1 else f"{name} {number}"

    def names(self, layer: str) -> list[str]:
        """All names of calls that belong to a layer."""
        return [layer, *(f"{layer} {number}" for number in range(2, self._numbers.get(layer, 1) + 1))]

    def _channels_are_last(self, name: str, dims: int) -> bool:
        if self._channel_last is not None:
            return self._channel_last
        return self._decided.setdefault(name, dims < IMAGE if self._last_dim is None else self._last_dim)

    def _is_inside(self, inner: Caller, outer: Caller) -> bool:
        pair = inner.name, outer.name
        if pair not in self._inside:
            module, whole = inner.module(), outer.module()
            self._inside[pair] = whole is not None and any(part is module for part in whole.modules())
        return self._inside[pair]


def _is_formula(caller: Caller) -> bool:
    module = caller.module()
    return caller.is_activation and not type(module).__module__.startswith("torch.")


class ActivationGatherer(CallGatherer):
    """Passes on the results of activation functions that a module calls.

    Args:
        layers: names calls; one object for all layers of a model.
        is_activation: whether the module is an activation function itself, so that its calls have its name.

    The other arguments are those of every gatherer.
    """

    def __init__(
        self,
        module: nn.Module,
        preprocessors: Sequence[Activations],
        name: str,
        inspector_state: GathererState,
        layers: ActivationLayers,
        *,
        is_activation: bool,
    ) -> None:
        super().__init__(module, preprocessors, name, inspector_state)
        self.module, self.is_activation = weakref.ref(module), is_activation
        self._layers = layers

    def _process(self, preprocessor: Activations, content: Content) -> None:
        state: Any = self.inspector_state
        call = self._layers.take(self, content, (state.step, state.passes))
        if call is not None:
            preprocessor.process_activation(*call[:3], channel_last=call.channel_last, step=state.step)
