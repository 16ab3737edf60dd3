"""What is told of parameters right after the steps of an optimizer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..engine.gradient_parts import GradientParts
from ..engine.parameter_facts import Facts, FactsTap
from ..engine.second_moments import SecondMomentTap
from .abstract_gatherer import Gatherer, GathererState


class SecondMomentGatherer(Gatherer):
    """Has the gradient of one parameter measured in units of its second moment, and its parts measured.

    Args:
        preprocessors: get rows, as those of gradients.
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
        preprocessors: have a method ``process_facts(name, facts)``.
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
        self._handles += facts.watch(module, parameter, self)

    def __call__(self, facts: Facts) -> None:
        """Pass on the facts after a step."""
        self._hand_over(facts)

    def _process(self, preprocessor: Any, facts: Facts) -> None:
        preprocessor.process_facts(self.name, facts)
