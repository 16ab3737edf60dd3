"""The plain data types that go into a store and come out of it."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..statistic import Statistic

FilePath: TypeAlias = str | os.PathLike[str]
Floats: TypeAlias = NDArray[np.float32]
Counts: TypeAlias = NDArray[np.int64]

WHOLE_RUN = "run"
"""The lens of loss, learning rate and speed, and the name of its only layer, which is not a layer of the model."""

FINDING = "finding"
"""In the body of an event that tells of a finding, the id of that."""

INFO, WARNING, ERROR = SEVERITIES = ("info", "warning", "error")
"""How bad an event or a finding is, from harmless to harmful."""

ENDS = ("finished", "crashed")


class Layer(NamedTuple):
    """A layer; fields are None if unknown."""

    name: str
    kind: str | None = None
    parameters: int | None = None


def shown_name(name: str) -> str:
    """What a layer is called in a list: a model that is a single layer has no name.

    >>> shown_name("fc1"), shown_name("")
    ('fc1', 'the model')
    """
    return name or "the model"


def layer_text(name: str | None) -> str:
    """The name of a layer for a sentence: in an ``nn.Sequential`` it is a number, which could be a number of anything.

    >>> layer_text("0"), layer_text("2.1"), layer_text("fc1"), layer_text("")
    ('layer 0', 'layer 2.1', 'fc1', 'the model')
    """
    name = shown_name(name or "")
    return f"layer {name}" if name.replace(".", "").isdigit() else name


class Frame(NamedTuple):
    """All numbers of one lens at one tick: ``values[statistic, layer]``; what was not measured is NaN.

    That NaN has its own bit pattern: :func:`monitorch.store.is_absent` tells it from a measured NaN.
    """

    lens: str
    step: int
    epoch: int
    time: float
    statistics: tuple[str, ...]
    layers: tuple[str, ...]
    values: Floats


class HistogramFrame(NamedTuple):
    """How the elements of layers are distributed at one tick of a tag: ``counts[layer, bin]``.

    A bin is between two neighbours of ``edges``.
    """

    lens: str
    tag: str
    step: int
    layers: tuple[str, ...]
    edges: NDArray[np.float64]
    counts: Counts


class Event(NamedTuple):
    """Something that happened; ``body`` is JSON data, ``id`` is an increasing number set by the store.

    >>> body = {"text": "NaN in its output", "numbers": {"share": 0.5}}
    >>> Event(12, "not finite", "error", layer="fc1", body=body).line
    'step 12: not finite: fc1: NaN in its output (share 0.5)'
    """

    step: int
    kind: str
    severity: str = "info"
    epoch: int = 0
    time: float = 0.0
    layer: str | None = None
    statistic: str | None = None
    body: Mapping[str, Any] = {}
    id: int = 0

    @property
    def text(self) -> str:
        """What one has to know, in a sentence; empty if there is no more to say."""
        return str(self.body.get("text", ""))

    @property
    def numbers(self) -> Mapping[str, float]:
        """The numbers that belong to it, by name."""
        found = self.body.get("numbers")
        return found if isinstance(found, Mapping) else {}

    @property
    def details(self) -> str:
        """Text and numbers in one line."""
        known = self.numbers.items()  # the body of a stored event may be anything
        numbers = ", ".join(f"{k} {v:.6g}" if isinstance(v, (int, float)) else f"{k} {v}" for k, v in known)
        return f"{self.text} ({numbers})" if self.text and numbers else self.text or numbers

    @property
    def line(self) -> str:
        """The event in one line, as in a log."""
        layer = layer_text(self.layer) if self.layer else None
        return ": ".join(filter(None, [f"step {self.step}", self.kind, layer, self.details]))


class Meta(NamedTuple):
    """Facts about the run by name, as JSON data."""

    facts: Mapping[str, Any]


class ModelLayers(NamedTuple):
    """Layers in the order of the model."""

    layers: tuple[Layer, ...]


class Looks(NamedTuple):
    """What the statistics of a lens are, and how to draw them."""

    lens: str
    statistics: tuple[Statistic, ...]


class PackedHistograms(NamedTuple):
    """The same as a :class:`HistogramFrame`, on its way to the disk: edges as bytes, layers and counts as a blob."""

    lens: str
    tag: str
    step: int
    edges: bytes
    data: bytes


class PackedSamples(NamedTuple):
    """Single samples of a signal, on their way to the disk.

    Places in ``data`` count the names of one ``writer``; ``names`` are new ones, from place ``first`` on.
    """

    signal: str
    writer: str
    first: int
    names: tuple[str, ...]
    replaces: bool
    """Whether what this writer has stored of the signal before is replaced."""
    data: bytes


class Segment(NamedTuple):
    """A restart from step ``after``: what was stored before for later steps is hidden."""

    after: int
    time: float


NUMBERS = (Frame, PackedHistograms, PackedSamples)
"""Operations that hold numbers; a run of bounded size has room for the others."""

Operation: TypeAlias = Frame | PackedHistograms | PackedSamples | Event | Meta | ModelLayers | Looks | Segment

FirstOperations: TypeAlias = Callable[[int | None], Sequence[Operation]]
"""The first operations of a writer, given the newest step of the file."""
