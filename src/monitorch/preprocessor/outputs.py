"""Preprocessors that measure outputs."""

from typing import Any

import numpy as np
import torch
from torch import nn

from ..engine.columns import BATCH, NORMS, SIZE
from ..engine.kernels import reference
from ..engine.meter import Request, through_row
from ..engine.passes import kind_of_pass, passes_to_measure
from ..engine.rows import Rows
from ..engine.tensors import pick_tensor, samples_of
from .abstract import AbstractForwardPreprocessor
from .accumulating import AccumulatingPreprocessor, Samples

__all__ = ["OutputNorm", "OutputPreprocessor", "pick_tensor"]


class OutputPreprocessor(AccumulatingPreprocessor, AbstractForwardPreprocessor):
    """Measures outputs; a subclass writes :meth:`derive` and may :meth:`request` more.

    Args:
        inplace: keep only running moments, instead of every sample.
        record_eval: record evaluation passes too, not only those of training.
        evaluation_from_grad: how to tell evaluation from training, see ``is_training_pass``.
        output_index: which part of the output to measure; by default its first floating tensor.
    """

    def __init__(
        self,
        inplace: bool = True,
        record_eval: bool = False,
        evaluation_from_grad: bool | None = None,
        output_index: int | str | None = None,
    ) -> None:
        super().__init__(inplace)
        self.record_eval, self.evaluation_from_grad = record_eval, evaluation_from_grad
        self.output_index = output_index

    def request(self) -> Request:
        """What gatherers should measure for it."""
        return Request(self.output_index, passes=self.passes())

    def passes(self) -> frozenset[int]:
        """The passes to measure, as ``kind_of_pass`` numbers them."""
        return passes_to_measure(record_eval=self.record_eval, evaluation_from_grad=self.evaluation_from_grad)

    @through_row
    def process_fw(self, name: str, module: nn.Module, layer_input: Any, layer_output: Any) -> None:
        """Take the output of one forward pass."""
        if kind_of_pass(module) in self.passes():
            with torch.no_grad():
                output, request = samples_of(layer_output, self.output_index), self.request()
                eps, _ = request.rates or (0.0, None)
                self._take_row(name, reference.output(output, request.channel_dim(name), eps))


class OutputNorm(OutputPreprocessor):
    """Euclidean norm of each sample's output, averaged over the batch.

    Args:
        normalize: divide norms by the root of the number of elements of one sample.
        channel_last: accepted for symmetry with OutputActivation; norms do not depend on it.

    The other arguments are those of OutputPreprocessor.
    """

    def __init__(
        self,
        normalize: bool,
        inplace: bool,
        record_eval: bool,
        evaluation_from_grad: bool | None,
        channel_last: bool = False,
        *,
        output_index: int | str | None = None,
    ) -> None:
        super().__init__(inplace, record_eval, evaluation_from_grad, output_index)
        self.normalize = normalize

    def derive(self, rows: Rows) -> Samples:
        """The mean norm of the samples in a batch."""
        norms = rows[NORMS] / rows[BATCH]
        return norms / np.sqrt(rows[SIZE] / rows[BATCH]) if self.normalize else norms
