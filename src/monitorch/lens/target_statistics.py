"""What enters the loss: targets and outputs, and the classes that they stand for."""

from typing import Any

from torch import nn

from ..engine.engine import Engine
from ..errors import OptionError
from ..gatherer.input_gatherers import LossInputGatherer
from ..preprocessor.data import MEAN, NONFINITE, RANGE, STD
from ..preprocessor.loss_inputs import IGNORED, PERPLEXITY, ROW_SUM, LossInputs
from . import options
from .data_lens import DataLens
from .views import ComputedLines, LayerLines, Source


class TargetStatistics(DataLens):
    """Numbers of ``"output"`` and ``"target"``, the first two arguments of ``loss_fn``, in training passes.

    For both: mean, standard deviation and range; for integer targets only the range. For the output also the smallest
    and largest row sum over the class dimension.

    Integer targets are classes if the output has one dimension more. Then classes are counted, and so are predicted
    ones, those with the largest output: the share of each, how many were seen, the ratio of the most frequent to the
    least frequent one that was seen, and the perplexity exp(-sum p ln p), which equals the number of classes if all are
    equally frequent. It is computed for each batch, and for the whole tick. Targets below 0, and those of the loss's
    ``ignore_index``, are ignored; their share is shown. More than 4,096 classes are not counted.

    Of tensors with more than a million elements, every n-th sample is read, so that copies stay small.

    How to read it: a perplexity of batches far below that of the tick means that data are not shuffled. Predictions of
    a low perplexity beside targets of a high one mean that the model always predicts the same. Row sums that are all 1
    mean that outputs are probabilities, which a loss that takes logits must not get. Targets outside of the range of
    outputs cannot be reached by the last activation.

    Costs a few passes over output and target, on observed steps; nothing waits for the device. On idle steps there is
    no hook. Losses inside of compiled graphs pass their arguments on without a graph break.

    Args:
        loss_fn: the module that computes the loss; called with output and target.
        classes: the most classes with a line of their own in the plot of shares. If there are more, the classes that
            were most frequent first get one, and all others share a line.
    """

    def __init__(self, loss_fn: nn.Module, *, classes: int = 10) -> None:
        if not isinstance(loss_fn, nn.Module):
            raise OptionError(f"loss_fn takes a module such as nn.CrossEntropyLoss(), not {loss_fn!r}")
        self._loss_fn = loss_fn
        inputs = LossInputs(options.whole("classes", classes, 1))
        views = [
            LayerLines("Loss Input Mean", Source(inputs, MEAN), ["mean"], ["min-max"]),
            LayerLines("Loss Input Std", Source(inputs, STD), ["mean"], ["min-max"]),
            LayerLines("Loss Input Range", Source(inputs, RANGE), ["min", "max"], None),
            LayerLines("Loss Input Nonfinite Elements", Source(inputs, NONFINITE), ["max"], None),
            LayerLines("Output Row Sum", Source(inputs, ROW_SUM), ["min", "max"], None),
            LayerLines("Class Perplexity Of Batch", Source(inputs, PERPLEXITY), ["mean"], ["min-max"]),
            ComputedLines("Classes", inputs.variety),
            ComputedLines("Class Ratio", inputs.ratio, logy=True),
            ComputedLines("Class Shares", inputs.shares, ylim=(0, 1)),
            LayerLines("Ignored Targets", Source(inputs, IGNORED), ["mean"], ["min-max"], ylim=(0, 1)),
        ]
        super().__init__([inputs], views)

    def _gather(self, engine: Engine, model: nn.Module, inspector_state: Any) -> LossInputGatherer:
        return LossInputGatherer(engine, model, self._loss_fn, self._preprocessors, inspector_state)
