"""How large outputs are."""

import math

import numpy as np
import torch
from torch import Tensor

from ..engine.columns import BATCH, NORMS, SIZE
from ..numerical.length import as_real
from ..numerical.notes import Rows
from ..numerical.precision import wide_dtype
from .ask import Ask
from .outputs import OutputPreprocessor


class OutputNorm(OutputPreprocessor):
    """Euclidean norm of each sample's output, averaged over the batch.

    Args:
        normalize: divide norms by the root of the number of elements of one sample.
        inplace: keep only running moments, instead of every sample.
        record_eval: record evaluation passes too.
        evaluation_from_grad: how to tell evaluation from training, see ``is_training_pass``.
        channel_last: accepted for symmetry with OutputActivation; norms do not depend on it.
        output_index: which part of the output to measure; by default its first floating tensor.
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

    def _measure(self, name: str, output: Tensor) -> None:
        samples = as_real(output).flatten(1)
        norm = torch.linalg.vector_norm(samples, dim=1, dtype=wide_dtype(samples)).mean()
        self._record(name, norm / math.sqrt(output[0].numel()) if self.normalize else norm)

    def ask(self) -> Ask:
        """What gatherers should measure for it."""
        return Ask(self.output_index, passes=self.passes())

    def _samples(self, rows: Rows) -> tuple[Rows, ...]:
        batch = rows[:, BATCH]
        norms = rows[:, NORMS] / batch
        return (norms / np.sqrt(rows[:, SIZE] / batch) if self.normalize else norms,)
