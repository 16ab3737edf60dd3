"""Gatherers of parameters: as they are, around the steps of an optimizer, and their gradients."""

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..engine.graph import GraphHook
from ..engine.optimizers import OptimizerSteps, Owned
from ..engine.parameters import Target, find_parameter
from ..engine.reports import tell
from ..engine.torch_private import forget_empty_hooks, inside_backward, without_overrides
from ..preprocessor import AbstractModulePreprocessor, AbstractTensorPreprocessor
from .abstract_gatherer import Gatherer, GathererState


class EpochModuleGatherer(Gatherer):
    """Passes on a module each time it is called.

    Args:
        parameter: pass on only this parameter; by default preprocessors choose.
    """

    def __init__(
        self,
        module: nn.Module,
        preprocessors: Sequence[AbstractModulePreprocessor],
        name: str,
        inspector_state: GathererState,
        *,
        parameter: str | None = None,
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._module, self._parameter = weakref.ref(module), parameter
        self.targets: list[Target] = []
        """What the engine measures, if it does."""
        engine = self._engine()
        self._tap = None if engine is None else engine.parameters
        if self._tap is not None:
            for preprocessor in self._preprocessors:
                for own in preprocessor.attrs_ if parameter is None else (parameter,):
                    kept_under = own if parameter is None else preprocessor.attrs_[0]
                    subscription = self._tap.watch(own, name, self, preprocessor, kept_under)
                    self._handles.append(subscription)
                    self.targets.append(Target(subscription.meter, self._module, own))

    def __call__(self) -> None:
        """Pass on the module as it is now."""
        module = self._module()
        if module is None and self.inspector_state is not None:
            return
        if self._tap is None or self.inspector_state is None:
            self._hand_over(module)
        elif self._wants_data():
            self._tap.measure(self.targets)

    def _is_step_observed(self) -> bool:
        return True  # it is read at ticks, at whatever step they come

    def _process(self, preprocessor: Any, *data: Any) -> None:
        if self._parameter is None:
            preprocessor.process_module(self.name, *data)
            return
        parameter = find_parameter(data[0], self._parameter)
        if parameter is not None:
            preprocessor.process_parameter(self.name, parameter)


class ParameterGatherer(Gatherer):
    """Passes on tensors of one parameter, which is found by its name: training code may replace it."""

    def __init__(
        self,
        module: nn.Module,
        parameter: str,
        preprocessors: Sequence[AbstractTensorPreprocessor],
        name: str,
        inspector_state: GathererState,
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._module, self._parameter = weakref.ref(module), parameter

    def _current_parameter(self) -> Tensor | None:
        """The parameter as it is now; None if there is nothing to pass on, as before it is initialised."""
        module = self._module()
        return None if module is None else find_parameter(module, self._parameter)

    def _process(self, preprocessor: AbstractTensorPreprocessor, *data: Any) -> None:
        preprocessor.process_tensor(self.name, *data)


class CallParameterGatherer(ParameterGatherer):
    """Passes on one parameter of a module each time it is called."""

    def __call__(self, *_: Any) -> None:
        """Pass on the parameter as it is now."""
        parameter = self._current_parameter()
        if parameter is not None or self.inspector_state is None:
            self._hand_over(parameter)


class OptimizerStepParameterGatherer(CallParameterGatherer):
    """Passes on one parameter after each step, and shows it to the preprocessors before the step.

    So N steps give N changes, each over exactly one step, even after a pause in recording.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        parameter: str,
        preprocessors: Sequence[AbstractTensorPreprocessor],
        name: str,
        inspector_state: GathererState,
    ) -> None:
        super().__init__(module, parameter, preprocessors, name, inspector_state)
        self._optimizer = optimizer
        engine = self._engine()
        if engine is not None:
            watch = partial(engine.updates(optimizer).watch, module, parameter, name, self)
            self._handles += map(watch, self._preprocessors)
        else:
            steps = OptimizerSteps(optimizer, inspector_state)
            steps.before.append(self._before_step)
            steps.after.append(self)
            self._handles.append(steps)

    def _current_parameter(self) -> Tensor | None:
        """The parameter, if the optimizer has it: its steps do not change others."""
        parameter = super()._current_parameter()
        return parameter if parameter is not None and parameter in Owned(self._optimizer) else None

    def _before_step(self, *_: Any) -> None:
        parameter = self._current_parameter()
        if parameter is not None and self._wants_data():
            for preprocessor in self._preprocessors:
                self.guarded(preprocessor.remember, self.name, parameter)


class ParameterGradientGatherer(ParameterGatherer):
    """Passes on the gradient of one parameter, as soon as a backward pass has accumulated it.

    Args:
        parameter: the parameter's name in ``module``.
        follow: look the parameter up at each forward pass, so that one that is frozen, replaced or not initialised now
            is watched as soon as it trains; otherwise such a parameter is an error. Inside compiled graphs it is looked
            up only by :meth:`refresh`, since doing it there would break the graph.
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
        super().__init__(module, parameter, preprocessors, name, inspector_state)
        self._hooked: Tensor | None = None
        self._gradient_handle: Any = None
        engine = self._engine() if follow else None
        self._has_tap = engine is not None
        if engine is not None:
            watch = partial(engine.gradients.watch, module, parameter, name, self)
            self._handles += map(watch, self._preprocessors)
            return
        self._rest_when_idle()
        self.refresh()
        if follow:
            self._hook_module(module, _FollowHook(self), before=True)
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

    def rest(self) -> None:
        """Also take off the hook on the parameter."""
        super().rest()
        self._unhook()

    def wake(self) -> None:
        """Also hook the parameter."""
        super().wake()
        self.refresh()

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

    def _unhook(self) -> None:
        if self._gradient_handle is not None:
            self._gradient_handle.remove()
            if self._hooked is not None and not inside_backward():  # it may be calling the hook
                with without_overrides():
                    forget_empty_hooks(self._hooked)
        self._gradient_handle = self._hooked = None

    def _refuse(self) -> None:
        where = f"parameter {self._parameter!r} of layer {self.name!r}"
        if self._current_parameter() is None:
            raise AttributeError(f"there is no {where}")
        raise RuntimeError(f"{where} is frozen and has no gradient; set requires_grad=True or follow=True")


class _FollowHook(GraphHook):
    """The hook that looks a parameter up before a forward pass."""

    def __init__(self, gatherer: ParameterGradientGatherer) -> None:
        super().__init__(gatherer.inspector_state, f"looking for a parameter of layer {gatherer.name!r}")
        self._gatherer = gatherer

    def eager(self, *_: Any) -> None:
        """Look it up."""
        self._gatherer.refresh()

    def in_graph(self, *_: Any) -> None:
        """Leave nothing in the graph."""
