"""The one hook on a module that all lenses on its output share."""

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn, strided

from ..numerical.norms import as_dense
from .allocation import is_capturing
from .buffers import BASELINE, NO_GRAPH, Info
from .distributed_tensors import OWN, distributed_type, is_distributed, local_gradient, local_samples
from .graph import GraphCallback, GraphHook, handed_on
from .meter import OUTPUT, OUTPUT_GRADIENT, Measured, Meter, Reporter, Subscription
from .module_hook import ModuleHook
from .passes import WITH_GRAD, RecomputationFilter, kind_of_pass
from .ranks import several_processes
from .reports import tell
from .tensors import pick_tensor, replace, samples_of, tensor_for_graph, with_alias
from .torch_private import hook_gradient, is_traced, without_modes_of_others

if TYPE_CHECKING:
    from .engine import Engine


class OutputTap(GraphHook):
    """Measures a module's output and its gradient, each once for all lenses.

    While nothing is recorded its hook is off, so that idle steps cost nothing; the engine puts it back in time.
    """

    def __init__(self, engine: "Engine", module: nn.Module, name: str) -> None:
        super().__init__(engine.state, f"looking at the output of layer {name!r}")
        self._engine, self._name, self.state = engine, name, engine.state
        self.module = weakref.ref(module)
        self.outputs: list[Meter] = []
        self.gradients: list[Meter] = []
        self._recomputation = RecomputationFilter(self.state)
        self._missed = False
        self.is_eager = False
        """Whether the module is called, instead of being part of a compiled graph."""
        self._distributed = distributed_type()
        # before the hooks of a parallelised module, which reduce its output to the local part
        comes_first = any(map(is_distributed, module._parameters.values()))
        self._hook = ModuleHook(module, self, first=comes_first)

    @property
    def meters(self) -> list[Meter]:
        """All that is measured here."""
        return [*self.outputs, *self.gradients]

    def watch_output(self, gatherer: Reporter, preprocessor: Measured) -> Subscription:
        """Measure outputs for a preprocessor from now on."""
        index = preprocessor.request().output_index
        what = (self.outputs, self._name, gatherer, preprocessor, OUTPUT, index)
        return self._with_callback(self._engine.subscribe(*what), self._receive_output)

    def watch_gradient(
        self, gatherer: Reporter, preprocessor: Measured, output_index: int | str | None
    ) -> Subscription:
        """Measure gradients of outputs for a preprocessor from now on."""
        what = (self.gradients, self._name, gatherer, preprocessor, OUTPUT_GRADIENT, output_index)
        subscription = self._engine.subscribe(*what, output_index=output_index, share=self.state.loss_share)
        return self._with_callback(subscription, self._receive_gradient)

    def close(self) -> None:
        """Remove the hook; gradients that still arrive are ignored."""
        self._engine.forget(self)
        self._hook.remove()
        self.outputs, self.gradients = [], []

    def rest(self) -> None:
        """Take the hook off until :meth:`wake`; there is a gap before the next tensor."""
        self._missed = True
        self._hook.rest()

    def wake(self) -> None:
        """Put the hook back."""
        self._hook.wake()

    # the hot path of hooks: nearly all CPU time is spent here, so it calls few functions

    def eager(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Called after each forward pass; returns a new output if the gradient needs one."""
        engine, state = self._engine, self.state
        if engine.when_no_pass_has_begun is not None:
            engine.when_no_pass_has_begun(module)
        self.is_eager = True
        if not state.wants_data():
            self._missed = True
            if state.is_steady:  # the first pass was idle
                engine.send_to_rest(self)
            return None
        kind = kind_of_pass(module)
        if not self._recomputation.counts(has_grad=kind >= WITH_GRAD):
            return None
        begin = state.clock.enter()
        try:
            if self._missed:
                self._resume()
            for meter in self.outputs:
                if self._take_output(meter, kind, output):
                    engine.origins.look(meter, module, (args, kwargs), output)
            # without gradients a tensor may require one all the same, such as a parameter, but nothing leads to it
            has_gradients = kind >= WITH_GRAD and self.gradients
            return self._hook_gradients(module, args, kwargs, output) if has_gradients else None
        finally:
            state.clock.leave(begin)

    def _take_output(self, meter: Meter, kind: int, output: Any, part: int = OWN) -> bool:
        """Measure an output if this kind of pass is wanted; returns whether it is already known to be non-finite."""
        if kind not in meter.passes or meter.failed:
            return False
        if self.state.is_baseline and not (meter.in_graph and is_capturing(self._engine.device)):
            return False  # outputs are not compared, so skip the baseline; but a CUDA graph also serves other steps
        try:
            if type(output) is Tensor and output.dim() > 1 and output.is_floating_point() and output.numel():
                x = output  # nearly always
            else:
                x = samples_of(output, meter.index)
                if type(x) is not Tensor:
                    x, part = local_samples(x)
            if x.is_meta:
                return False  # it holds no numbers
            alive = meter.alive(x) if meter.exact_death and several_processes() else None
            info = Info(meter.number, self.state.step, kind, part)
            return self._engine.buffers[x.device].output(meter, info, x, alive)
        except Exception as error:
            meter.fail(error, output)
        return False

    def _hook_gradients(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Hook the tensors in the output; returns a new output if the module returned its own input."""
        changed, tag = output, BASELINE if self.state.is_baseline else 0
        for meter in self.gradients:
            is_plain = isinstance(changed, Tensor) and changed.is_floating_point()
            tensor = changed if is_plain else meter.guarded(pick_tensor, changed, meter.index)
            if tensor is not None and tensor.requires_grad:
                changed, tensor = with_alias(changed, tensor, module, (*args, *kwargs.values()))
                hook_gradient(tensor, partial(self._take_gradient, meter, tag))
        return None if changed is output else changed

    def _take_gradient(self, meter: Meter, tag: int, gradient: Tensor | None, part: int = OWN) -> None:
        """Measure a gradient; the hook of an earlier forward pass may fire after the tap was closed."""
        engine, state = self._engine, self.state
        try:
            if (
                meter not in self.gradients
                or meter.failed
                or gradient is None  # a function of the user may have none for one of its inputs
                or gradient.is_meta
                or is_traced()
                or not engine.backward.is_running(self.module())
            ):
                return
            if not state.is_recording():
                meter.interrupt()
                return
            begin = state.clock.enter()
            try:
                with without_modes_of_others():
                    x = gradient.detach() if gradient.requires_grad else gradient
                    if type(x) is not Tensor:
                        x, part = local_gradient(x)
                    self._measure_gradient(meter, tag, x if x.layout is strided else as_dense(x), part)
            except Exception as error:
                meter.fail(error, gradient)
            finally:
                state.clock.leave(begin)
        except Exception as error:
            tell(state, f"looking at the gradient of layer {self._name!r}", error)

    def _measure_gradient(self, meter: Meter, tag: int, x: Tensor, part: int) -> None:
        state, in_graph, buffer = self.state, meter.in_graph, self._engine.buffers[x.device]
        follows = meter.follows(x, state.gaps)
        generation = meter.comparison.generation if in_graph and x.is_cuda else NO_GRAPH
        info = Info(meter.number, state.step, tag, part, generation, state.gaps)
        if state.loss_scale is None or (in_graph and is_capturing(x.device)):
            buffer.geometry(meter, info, x, follows)  # rows of a CUDA graph are unscaled when they are collected
        else:
            with buffer.corrected(state.loss_scale.unit(in_graph=in_graph)):
                buffer.geometry(meter, info, x, follows)

    def _resume(self) -> None:
        """After a pause in recording: do not compare the next tensor with the last one."""
        self._missed = False
        for meter in self.gradients:
            meter.interrupt()

    # inside a compiled graph

    def _with_callback(self, subscription: Subscription, receive: Any) -> Subscription:
        meter = subscription.meter
        if meter.callback is None:
            meter.callback = GraphCallback(self._engine.device, partial(receive, meter), self.state)
        return subscription

    def in_graph(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Put operators into the graph that is being compiled; must not fail, since nothing would catch the error."""
        if not self.state.observing:
            return None
        changed, kind = output, kind_of_pass(module)
        for meter in self.gradients if kind >= WITH_GRAD else ():
            tensor = tensor_for_graph(changed, meter.index)
            if tensor is not None and tensor.requires_grad and meter.callback is not None:
                watched = meter.callback.pass_backward(tensor, distributed=isinstance(tensor, self._distributed))
                changed = replace(changed, tensor, watched)
        for meter in self.outputs:
            tensor = tensor_for_graph(output, meter.index)
            if tensor is not None and meter.callback is not None:
                meter.callback.pass_forward(tensor, kind, distributed=isinstance(tensor, self._distributed))
                changed = handed_on(changed, [tensor])  # `pass_backward` may have made another one
        return changed

    def _receive_output(self, meter: Meter, x: Tensor, kind: int, part: int) -> None:
        if self.state.wants_data() and self._recomputation.counts(has_grad=kind >= WITH_GRAD):
            meter.in_graph = True
            self._take_output(meter, kind, x, part)

    def _receive_gradient(self, meter: Meter, x: Tensor, kind: int, part: int) -> None:
        meter.in_graph = True
        if self.state.wants_data():
            self._take_gradient(meter, BASELINE if self.state.is_baseline else 0, x, part)
        else:
            meter.interrupt()
