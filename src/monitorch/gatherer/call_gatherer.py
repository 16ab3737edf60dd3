"""Calls of torch functions that a module makes in its forward pass."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..engine.functional_calls import Content
from .abstract_gatherer import Gatherer, GathererState


class CallGatherer(Gatherer):
    """Passes on a module's calls of the functions that its preprocessor reads.

    Args:
        preprocessors: one preprocessor, with ``readers``, ``kinds``, ``passes()`` and ``process_call(name, content)``.
            If its ``in_graphs`` is False, calls inside compiled graphs are ignored.

    The others are those of every gatherer.
    """

    def __init__(
        self, module: nn.Module, preprocessors: Sequence[Any], name: str, inspector_state: GathererState
    ) -> None:
        super().__init__(preprocessors, name, inspector_state)
        (preprocessor,) = self._preprocessors
        self.readers, self.kinds, self.passes = preprocessor.readers, preprocessor.kinds, preprocessor.passes()
        self.in_graphs: bool = getattr(preprocessor, "in_graphs", True)
        engine = getattr(inspector_state, "engine", None)
        if engine is not None:
            self._handles.append(engine.calls.listen(module, self))

    def __call__(self, content: Content) -> None:
        """Pass on one call."""
        self._hand_over(content)

    def take_call(self, content: Content) -> None:
        """The same with less overhead, for callers that know that this step is observed."""
        if not self._failed and self.inspector_state is not None:
            try:
                self._process(self._preprocessors[0], content)
            except Exception as error:
                self.report(error, content)

    def _process(self, preprocessor: Any, content: Content) -> None:
        preprocessor.process_call(self.name, content)
