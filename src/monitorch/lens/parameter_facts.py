"""Facts about parameters: empty gradients, changed bits, checksums, and the optimizer that has them."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..engine.parameter_facts import FactsTap
from ..gatherer.step_gatherers import FactsGatherer
from ..preprocessor.parameter_facts import FactSeries
from . import options
from .options import ALL
from .parameter_lens import ParameterLens
from .views import ComputedLines


class ParameterFacts(ParameterLens):
    """What norms do not show about a parameter, after each observed step of its optimizer.

    * **Gradient Was Empty**: the share of steps in which ``p.grad`` was None, or all zeros, when some backward pass
      since the step before added to it. 0 means that ``zero_grad()`` is missing: gradients of all steps pile up. A
      parameter that no backward pass has reached has no number.
    * **Parameter Changed**: the share of steps in which a bit of it has changed since the observed step before. Exact,
      also where updates are sketched. 0 with a gradient above 0: it is not trained.
    * **Parameter Checksum**: a whole number of 24 bits. The same bits give the same number, in every process and run.
    * **Parameter Optimizer**, **Parameter Group**: the numbers of the optimizer and of the group in it, from 0; -1 in
      none.
    * **Parameter Learning Rate**: that of the last step.

    A parameter in no optimizer is looked at after the steps of the first one. A step that a fused optimizer skips
    because of an overflow is not counted. With ``fully_shard``, local parts are compared; checksums and empty gradients
    are not known.

    Cost of an observed step: one pass over the parameters, about that of two or three norms, and a few microseconds for
    each parameter. Nothing waits for the device, nothing is copied. Idle steps cost nothing.

    Args:
        optimizer: the optimizer, or all of them.
    """

    def __init__(self, optimizer: Optimizer | Iterable[Optimizer]) -> None:
        self.optimizers = options.needed_optimizers(optimizer, several=True)
        self._facts: FactsTap | None = None
        series = FactSeries()
        shares = {"Gradient Was Empty": "was_empty", "Parameter Changed": "changed"}
        numbers = {"Checksum": "checksum", "Optimizer": "optimizer", "Group": "group", "Learning Rate": "rate"}
        views = [ComputedLines(tag, partial(series.means, fact), ylim=(0, 1)) for tag, fact in shares.items()]
        views += [ComputedLines(f"Parameter {name}", partial(series.last, fact)) for name, fact in numbers.items()]
        super().__init__({ALL: series}, views)

    def detach_from_module(self) -> None:
        """Also leave the optimizers."""
        super().detach_from_module()
        if self._facts is not None:
            self._facts.remove()
        self._facts = None

    def _gather(
        self, module: nn.Module, parameter: str, preprocessor: Any, module_name: str, inspector_state: Any
    ) -> FactsGatherer:
        self._facts = self._facts or FactsTap(inspector_state.engine, self.optimizers)
        return FactsGatherer(module, parameter, [preprocessor], module_name, inspector_state, self._facts)
