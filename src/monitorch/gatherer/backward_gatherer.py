"""Gradients with respect to a module's output (and input), at each backward pass."""

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..engine.compilation import HookedMethod, outside_graph
from ..engine.passes import RecomputationFilter
from ..engine.reports import tell
from ..engine.tensors import pick_tensor, with_alias
from ..preprocessor import AbstractBackwardPreprocessor
from .abstract_gatherer import Gatherer, GathererState


class BackwardGatherer(Gatherer):
    """Passes on gradients of a module's output, and of its input to preprocessors that need them.

    If no preprocessor needs input gradients, the hook is on the output tensor: unlike the module's full backward hook,
    this lets the output be changed in place later.

    Args:
        output_index: which part of the output to watch; by default its first floating tensor.
    """

    def __init__(
        self,
        module: nn.Module,
        preprocessors: Sequence[AbstractBackwardPreprocessor],
        name: str,
        inspector_state: GathererState,
        *,
        output_index: int | str | None = None,
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._output_index = output_index
        self._passes = RecomputationFilter(inspector_state)
        engine = self._engine()
        if engine is not None:
            tap = engine.output(module, name)
            self._handles += [
                tap.watch_gradient(self, preprocessor, output_index) for preprocessor in self._preprocessors
            ]
        elif any(preprocessor.needs_grad_input for preprocessor in preprocessors):
            self._handles.append(module.register_full_backward_hook(HookedMethod(self._take_gradients)))
        else:
            self._hook_module(module, HookedMethod(self._watch_output))

    def __call__(self, module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        """Pass on the gradients of one backward pass."""
        self._hand_over(module, grad_input, grad_output)

    @outside_graph
    def _watch_output(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        try:
            if self._wants_data() and self._passes.counts():
                return self.guarded(self._put_hook, module, (args, kwargs), output)
        except Exception as error:
            tell(self.inspector_state, f"looking at layer {self.name!r}", error)
        return None

    def _put_hook(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """Hook the output tensor; returns a new output if the module returned its own input."""
        tensor = pick_tensor(output, self._output_index)
        if tensor is None or not tensor.requires_grad:
            return None
        changed, tensor = with_alias(output, tensor, module, inputs)
        tensor.register_hook(partial(self._take_gradient, weakref.ref(module)))  # type: ignore[no-untyped-call]
        return None if changed is output else changed

    def _take_gradient(self, known: weakref.ref[nn.Module], gradient: Tensor | None) -> None:
        try:
            module = known()
            if gradient is None:  # a function of the user may have none for one of its inputs
                return
            if self.inspector_state is not None and self.inspector_state.loss_share != 1:
                gradient = gradient * self.inspector_state.loss_share
            if module is not None:
                self._take_gradients(module, (), (gradient,))
        except Exception as error:
            tell(self.inspector_state, f"looking at the gradient of layer {self.name!r}", error)

    def _take_gradients(self, module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        try:
            # the hook of an earlier forward pass may fire after detach()
            if self.inspector_state is not None and self._is_of_a_loss(module):
                self(module, grad_input, grad_output)
        except Exception as error:
            tell(self.inspector_state, f"looking at the gradient of layer {self.name!r}", error)

    def _is_of_a_loss(self, module: nn.Module) -> bool:
        engine = getattr(self.inspector_state, "engine", None)
        return engine is None or engine.backward.is_running(module)

    def _process(self, preprocessor: AbstractBackwardPreprocessor, *data: Any) -> None:
        preprocessor.process_bw(self.name, *data)
