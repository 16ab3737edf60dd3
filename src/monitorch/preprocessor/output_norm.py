"""How large outputs are."""

import numpy as np

from ..engine.columns import BATCH, NORMS, SIZE
from ..engine.rows import Rows
from .accumulating import Samples
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

    def derive(self, rows: Rows) -> Samples:
        """The mean norm of the samples in a batch."""
        norms = rows[NORMS] / rows[BATCH]
        return norms / np.sqrt(rows[SIZE] / rows[BATCH]) if self.normalize else norms
