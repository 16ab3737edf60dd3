"""Gradients of a parameter, as soon as a backward pass has accumulated them."""

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..engine.compilation import HookedMethod, outside_graph
from ..engine.parameters import find_parameter
from ..engine.reports import tell
from ..preprocessor import AbstractTensorPreprocessor
from .abstract_gatherer import Gatherer, GathererState


class ParameterGradientGatherer(Gatherer):
    """Passes on the gradient of one parameter.

    Args:
        parameter: the parameter's name in ``module``.
        follow: look the parameter up at each forward pass, so that one that is frozen, replaced or not initialised
            now is watched as soon as it trains; otherwise such a parameter is an error.
    """

    def __init__(
        self,
        parameter: str,
        module: nn.Module,
        preprocessors: Sequence[AbstractTensorPreprocessor],
        name: str,
        inspector_state: GathererState,
        *,
        follow: bool = False,
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._module, self._parameter = weakref.ref(module), parameter
        self._hooked: Tensor | None = None
        self._gradient_handle: Any = None
        engine = self._engine() if follow else None
        self._has_tap = engine is not None
        if engine is not None:
            watch = partial(engine.gradients.watch, module, parameter, name, self)
            self._handles += map(watch, self._preprocessors)
            return
        self.refresh()
        if follow:
            self._handles.append(module.register_forward_pre_hook(HookedMethod(self.refresh)))
        elif self._hooked is None:
            self._refuse()

    def __call__(self, parameter: Tensor) -> None:
        """The hook on the parameter."""
        if parameter.grad is not None:
            self._hand_over(parameter.grad)

    def detach(self) -> None:
        """Remove the hooks."""
        super().detach()
        self._unhook()

    @outside_graph
    def refresh(self, *_: Any) -> None:
        """Look the parameter up, and hook it if it trains now; a shared tap does that by itself."""
        try:
            parameter = self._current_parameter()
            if parameter is self._hooked or self._has_tap:
                return
            self._unhook()
            if parameter is not None and parameter.requires_grad and parameter.is_leaf:
                self._gradient_handle = parameter.register_post_accumulate_grad_hook(self)  # type: ignore[no-untyped-call]
                self._hooked = parameter
        except Exception as error:
            tell(self.inspector_state, f"looking for {self._parameter!r} of layer {self.name!r}", error)

    def _current_parameter(self) -> Tensor | None:
        module = self._module()
        return None if module is None else find_parameter(module, self._parameter)

    def _unhook(self) -> None:
        if self._gradient_handle is not None:
            self._gradient_handle.remove()
        self._gradient_handle = self._hooked = None

    def _refuse(self) -> None:
        where = f"parameter {self._parameter!r} of layer {self.name!r}"
        if self._current_parameter() is None:
            raise AttributeError(f"there is no {where}")
        raise RuntimeError(f"{where} is frozen and has no gradient; set requires_grad=True or follow=True")

    def _process(self, preprocessor: AbstractTensorPreprocessor, *data: Any) -> None:
        preprocessor.process_tensor(self.name, *data)
