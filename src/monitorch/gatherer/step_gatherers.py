"""Gatherers of what is known about parameters right after optimizer steps."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..engine.gradient_parts import GradientParts
from ..engine.parameter_facts import FactsTap
from ..engine.second_moments import SecondMomentTap
from .abstract_gatherer import Gatherer, GathererState


class SecondMomentGatherer(Gatherer):
    """Measures the gradient of one parameter in units of its second moment, and its parts.

    Args:
        preprocessors: get rows like those of gradients.
        moments: measures gradients after steps.
        parts: measures what single backward passes add; None where that cannot be seen.

    The others are those of every gatherer.
    """

    def __init__(
        self,
        module: nn.Module,
        parameter: str,
        preprocessors: Sequence[Any],
        name: str,
        inspector_state: GathererState,
        moments: SecondMomentTap,
        parts: GradientParts | None,
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        self._handles += [moments.watch(module, parameter, name, self, own) for own in self._preprocessors]
        if parts is not None:
            self._handles += parts.watch(module, parameter)

    def __call__(self, tensor: Tensor) -> None:
        """Pass on a gradient that was divided already."""
        self._hand_over(tensor)

    def _process(self, preprocessor: Any, tensor: Tensor) -> None:
        preprocessor.process_tensor(self.name, tensor)


class FactsGatherer(Gatherer):
    """Passes on the facts about one parameter.

    Args:
        preprocessors: one, with a method ``process_fact(fact, names, numbers)``, which gets those of all parameters.
        facts: tells the facts.

    The others are those of every gatherer.
    """

    def __init__(
        self,
        module: nn.Module,
        parameter: str,
        preprocessors: Sequence[Any],
        name: str,
        inspector_state: GathererState,
        facts: FactsTap,
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        (self.receiver,) = self._preprocessors
        self._handles += facts.watch(module, parameter, self)

    def __call__(self, fact: str, number: float) -> None:
        """Pass on one fact."""
        self._hand_over(fact, number)

    def _process(self, preprocessor: Any, fact: str, number: float) -> None:
        preprocessor.process_fact(fact, [self.name], [number])
