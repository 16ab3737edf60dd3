"""How many elements of a tensor are NaN or infinite."""

import numpy as np

from ..engine.columns import NONFINITE
from ..engine.rows import Rows
from .accumulating import AccumulatingPreprocessor, Samples
from .geometry import GradientGeometry, OutputGradientGeometry
from .outputs import OutputPreprocessor
from .parameters import ParameterNorm


class NonFiniteCount(AccumulatingPreprocessor):
    """The number of elements that are not finite; NaN if only a sketch was measured, which cannot count them."""

    statistics = ("count",)
    takes_broken = True

    def derive(self, rows: Rows) -> Samples:
        """The counts."""
        return np.where(rows.is_broken, rows[NONFINITE], 0.0)


class OutputNonFinite(NonFiniteCount, OutputPreprocessor):
    """How many elements of each output are not finite."""


class OutputGradientNonFinite(NonFiniteCount, OutputGradientGeometry):
    """The same for gradients of outputs."""


class GradientNonFinite(NonFiniteCount, GradientGeometry):
    """The same for gradients of parameters."""


class ParameterNonFinite(NonFiniteCount, ParameterNorm):
    """The same for parameters."""
