"""What enters the model: scale, range and features of its inputs."""

from typing import Any

from torch import nn

from ..engine.engine import Engine
from ..gatherer.input_gatherers import InputGatherer
from ..preprocessor.data import (
    CONSTANT_FEATURES,
    FEATURE_SPREAD,
    MEAN,
    NONFINITE,
    RANGE,
    STD,
    DataStatistics,
)
from .data_lens import DataLens
from .views import LayerLines, Source


class InputStatistics(DataLens):
    """Mean, standard deviation and range of what enters the model in training passes of observed steps.

    Tensors are found in positional and keyword arguments, also inside of tuples, lists and dictionaries. They are
    called ``"input"`` (the only positional argument), ``"input.0"`` and ``"input.1"`` (several), ``"input.mask"`` (a
    keyword, or a key of a dictionary). Up to 64 are read; boolean ones are not. Every micro-batch is a sample.

    The feature spread is the largest standard deviation of a feature over the smallest, where a feature is a place in
    the last dimension, or a channel of images ``[B, C, ...]`` with four dimensions or more. Features whose elements are
    all equal are left out of it, and counted. Of integers, such as token ids, only the range is shown.

    How to read it: most models want a mean near 0 and a standard deviation near 1. A standard deviation or a mean above
    10, or a feature spread above 100, calls for standardised inputs. A jump in one tick is a bad batch.

    Of tensors with more than a million elements, every n-th sample is read.

    Costs about ten passes over each input and a temporary copy at observed steps, without waiting for the device. Idle
    steps cost nothing. Compiled models pass their inputs on without a graph break.
    """

    def __init__(self) -> None:
        data = DataStatistics()
        views = [
            LayerLines("Input Mean", Source(data, MEAN), ["mean"], ["min-max"]),
            LayerLines("Input Std", Source(data, STD), ["mean"], ["min-max"]),
            LayerLines("Input Range", Source(data, RANGE), ["min", "max"], None),
            LayerLines("Input Feature Spread", Source(data, FEATURE_SPREAD), ["mean"], ["min-max"], logy=True),
            LayerLines("Input Constant Features", Source(data, CONSTANT_FEATURES), ["mean"], None),
            LayerLines("Input Nonfinite Elements", Source(data, NONFINITE), ["max"], None),
        ]
        super().__init__([data], views)

    def _gather(self, engine: Engine, model: nn.Module, inspector_state: Any) -> InputGatherer:
        return InputGatherer(engine, self._preprocessors, inspector_state)
