"""Whether gradients and parameters are finite in steps that are not observed."""

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from ..numerical.norms import as_dense
from .buffers import Entry, Info
from .distributed_tensors import local_part
from .meter import GRADIENT, PARAMETER, Meter
from .optimizers import Owned
from .parameters import ParameterRef
from .state import is_observed

if TYPE_CHECKING:
    from .engine import Engine


class Checked(NamedTuple):
    """A parameter that is checked; no preprocessor gets the rows of its meters, only the origin search."""

    parameter: ParameterRef
    of_gradient: Meter
    of_parameter: Meter


class StepCheck:
    """Measures all gradients before, and all parameters after each step of an optimizer that is not observed.

    One step after a fault everything is NaN, so without this the origin of a fault in such a step is lost.
    """

    def __init__(self, engine: "Engine", optimizer: Optimizer) -> None:
        self._engine, self._optimizer, self.state = engine, optimizer, engine.state
        self._checked: list[Checked] = []
        self._steps = engine.steps(optimizer)
        self._steps.before.append(self._before_step)
        self._steps.after.insert(0, self._after_step)

    def watch(self, module: nn.Module, parameter: str, name: str) -> None:
        """Check a parameter of a layer from now on."""
        meters = (self._engine.unread_meter(what, parameter, name) for what in (GRADIENT, PARAMETER))
        self._checked.append(Checked(ParameterRef(module, parameter), *meters))

    def close(self) -> None:
        """Stop checking."""
        self._checked = []
        self._engine.end_check(self)
        for listeners, own in ((self._steps.before, self._before_step), (self._steps.after, self._after_step)):
            if own in listeners:
                listeners.remove(own)

    @property
    def is_open(self) -> bool:
        """Whether something is checked."""
        return bool(self._checked)

    def _before_step(self, *_: Any) -> None:
        found = [(each.of_gradient, tensor.grad) for each, tensor in self._parameters()]
        self._measure([(meter, gradient) for meter, gradient in found if gradient is not None], self.state.step)

    def _after_step(self, *_: Any) -> None:
        # the step is counted after this; parameters belong to the time between two steps, as those read at ticks do
        self._measure([(each.of_parameter, tensor) for each, tensor in self._parameters()], self.state.step + 1)

    def _parameters(self) -> list[tuple[Checked, Tensor]]:
        if is_observed(self.state) or not self.state.is_recording():
            return []
        owned, found = Owned(self._optimizer), list[tuple[Checked, Tensor]]()
        for each in self._checked:
            tensor = each.parameter.find()
            if tensor is not None and tensor in owned:
                found.append((each, tensor))
        return found

    def _measure(self, tensors: list[tuple[Meter, Tensor]], step: int) -> None:
        entries = list[Entry]()
        for meter, tensor in tensors:
            if not meter.failed:
                local, part = local_part(tensor.detach())
                entries.append((meter, Info(meter.number, step, part=part), as_dense(local), False))
        correction = self._engine.step_scales.of(self._optimizer).of_unscaled
        self._engine.measure_together("lengths", entries, correction)
