"""The life cycle of a lens, written once.

A lens declares its preprocessors, its views and which layers it watches, and has one method that hooks a chosen layer.
"""

import time
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import nn

from ..engine.ranks import own_rank
from ..errors import warn
from ..gatherer.abstract_gatherer import Gatherer
from ..preprocessor import AbstractPreprocessor
from ..preprocessor.accumulating import AccumulatingPreprocessor
from ..visualizer.abstract_visualizer import AbstractVisualizer
from ..visualizer.frame import Moment, TagFrame
from ..visualizer.record import Record
from ..visualizer.record_sink import RecordSink
from .abstract_lens import AbstractLens
from .options import LayerChoice, old_names
from .views import View

OLD_NAMES = {"compute_adj_prod": "compute_correlation", "skip_no_grad_pass": "evaluation_from_grad"}


class Lens(AbstractLens):
    """Handles tags, ticks, sync and detaching; subclasses choose the layers."""

    _cure = "name some with include="
    """What the user can do when a lens finds no layer."""

    _group = ""
    """Its name, if that is not the name of its class."""

    def __init_subclass__(cls) -> None:
        """Let every lens accept the keywords of earlier releases."""
        super().__init_subclass__()
        if "__init__" in cls.__dict__:
            cls.__init__ = old_names(**OLD_NAMES)(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, preprocessors: Iterable[AccumulatingPreprocessor], views: Iterable[View]) -> None:
        self._preprocessors: tuple[Any, ...] = tuple(preprocessors)
        self._views: tuple[Any, ...] = tuple(views)
        self._gatherers: list[Any] = []
        self._layers: dict[str, None] = {}
        self._frames: list[TagFrame] = []
        self._finalized_in = -1
        self._moment = 0, 0.0
        self._state: Any = None

    def register_foreign_preprocessor(self, ext_ppr: AbstractPreprocessor, inspector_state: Any) -> None:
        """Keep the inspector's state, which knows the step; detach from the model of another inspector."""
        if self._state is not None and self._state is not inspector_state:
            self.detach_from_module()
        self._state = inspector_state

    def finish_attach(self) -> None:
        """Warn if there is no layer to watch."""
        if not self._layers:
            text = f"{type(self).__name__} found no layer to watch in this model; {self._cure}"
            warn(text)

    def detach_from_module(self) -> None:
        """Remove all hooks, and forget everything about the model."""
        for gatherer in self._gatherers:
            gatherer.detach()
        for preprocessor in self._preprocessors:
            preprocessor.clear()
        self._gatherers, self._layers, self._frames = [], {}, []

    @property
    def preprocessors(self) -> tuple[Any, ...]:
        """What computes its numbers."""
        return self._preprocessors

    @property
    def name(self) -> str:
        """The name of its numbers in records and runs."""
        return self._group or type(self).__name__

    def introduce_tags(self, visualizer: AbstractVisualizer) -> None:
        """Announce each view once."""
        for tag, attributes in {view.tag: view.attributes for view in self._views}.items():
            visualizer.register_tags(tag, attributes)

    def collect(self) -> None:
        """Take samples at the tick itself; most lenses need none."""

    def date(self, tick: int, step: int, moment: float) -> None:
        """Set the tick, step and time of the numbers that were read last."""
        self._finalized_in, self._moment = tick, (step, moment)

    def finalize_epoch(self) -> None:
        """Read every view."""
        self._frames = [view.read(tuple(self._layers)) for view in self._views]
        self.date(getattr(self._state, "ticks", 0), getattr(self._state, "step", 0), time.time())

    def vizualize(self, visualizer: AbstractVisualizer, epoch: int) -> None:
        """Pass frames to visualizers that take them, else call the plot method of each tag."""
        self._show(self._frames, visualizer, epoch, self._moment[0])

    def records(self, epoch: int) -> list[Record]:
        """The numbers of the last tick, one by one."""
        return self._records(self._frames, epoch, self._moment[0])

    def whole_run_numbers(self) -> dict[tuple[str, str], float]:
        """The numbers of the last tick that belong to no layer, such as losses, by plot and curve."""
        found: dict[tuple[str, str], float] = {}
        for frame in self._frames:
            if frame.layers == (frame.tag,) and not frame.is_share:
                for _, statistic, value, _ in frame.numbers():
                    if statistic.role == "line":
                        found.setdefault((statistic.tag, statistic.curve), value)
        return found

    def _show(self, frames: Sequence[TagFrame], visualizer: AbstractVisualizer, epoch: int, step: int) -> None:
        for part in getattr(visualizer, "parts", (visualizer,)):
            if isinstance(part, RecordSink):
                part.write_frames(self._dated(epoch, step), frames)
            else:
                for frame in frames:
                    frame.show(part, epoch)

    def _records(self, frames: Sequence[TagFrame], epoch: int, step: int) -> list[Record]:
        moment = self._dated(epoch, step)
        return [record for frame in frames for record in frame.records(moment)]

    def _dated(self, epoch: int, step: int) -> Moment:
        return Moment(step, epoch, self._moment[1], own_rank(), self.name)

    def reset_epoch(self) -> None:
        """Start new accumulators."""
        for preprocessor in self._preprocessors:
            preprocessor.reset()

    def start_sync(self, dst_rank: int = 0) -> None:
        """Offer all accumulators to the other ranks."""
        for preprocessor in self._preprocessors:
            preprocessor.start_sync(dst_rank)

    def finish_sync(self) -> None:
        """Merge with the other ranks."""
        for preprocessor in self._preprocessors:
            preprocessor.finish_sync()

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to continue the run later, as plain data and tensors."""
        return {"parts": [part.state_dict() for part in self.stateful_parts()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        for part, own in zip(self.stateful_parts(), state["parts"], strict=True):
            part.load_state_dict(own)

    def stateful_parts(self) -> list[Any]:
        """The parts that keep something from step to step."""
        return list(self._preprocessors)

    def _is_fresh(self) -> bool:
        """Whether the last tick was active, so that its numbers are here."""
        return bool(self._frames) and self._finalized_in == self._state.ticks - 1

    def refresh(self) -> None:
        """Look at the model again, between two ticks."""
        for gatherer in self._gatherers:
            gatherer.refresh()

    def leave(self, modules: Collection[str]) -> None:
        """Stop watching the modules of these names: they were removed or replaced."""
        for gatherer in [gatherer for gatherer in self._gatherers if gatherer.module_name in modules]:
            gatherer.detach()
            self._gatherers.remove(gatherer)
            for preprocessor in self._preprocessors:
                preprocessor.interrupt(gatherer.name)

    def forget_layers(self) -> None:
        """Stop showing layers that are no longer watched."""
        gathered = {gatherer.name for gatherer in self._gatherers}
        self._layers = {layer: None for layer in self._layers if layer in gathered}

    def _watch(self, gatherer: Gatherer, layer: str, module_name: str) -> None:
        """Keep a gatherer and the layer's position in model order."""
        gatherer.owner, gatherer.module_name = type(self).__name__, module_name
        gatherer.rename(layer)
        self._gatherers.append(gatherer)
        self._layers[layer] = None


def warn_of_twins(lenses: Iterable[AbstractLens]) -> None:
    """Warn about lenses whose numbers have the same names: in runs and figures only one of them can be seen."""
    known = [lens for lens in lenses if isinstance(lens, Lens)]
    for place, lens in enumerate(known):
        tags = {view.tag for view in lens._views}
        for other in known[:place]:
            if getattr(lens, "optimizer", None) is not getattr(other, "optimizer", None):
                continue  # they show different parameters, or the same ones at other steps
            common = [layer for layer in lens._layers if layer in other._layers]
            if common and other.name == lens.name and tags & {view.tag for view in other._views}:
                where = f"of layer {common[0]!r}" + f" and {len(common) - 1} more" * (len(common) > 1)
                cure = "leave one of them out, or give them different layers"
                warn(f"two {lens.name} lenses give numbers {where} the same names, so only one of them is seen: {cure}")
                return


class OutputLens(Lens):
    """A lens on layer outputs: one gatherer for each chosen layer."""

    def __init__(
        self, layers: LayerChoice, preprocessors: Iterable[AccumulatingPreprocessor], views: Iterable[View]
    ) -> None:
        super().__init__(preprocessors, views)
        self._choice = layers

    @abstractmethod
    def _gather(self, module: nn.Module, module_name: str, inspector_state: Any) -> Gatherer:
        """Put a gatherer on a chosen layer."""

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch the module if it is chosen."""
        if self._choice.leaf(module):
            self._watch(self._gather(module, module_name, inspector_state), module_name, module_name)

    def register_non_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch the module if its class is included by name."""
        if self._choice.container(module):
            self._watch(self._gather(module, module_name, inspector_state), module_name, module_name)
