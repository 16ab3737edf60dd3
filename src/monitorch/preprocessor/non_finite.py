"""How many elements of a tensor are NaN or infinite."""

import numpy as np

from ..engine.columns import NONFINITE
from ..engine.rows import Rows
from .accumulating import Samples
from .geometry import GradientGeometry, OutputGradientGeometry
from .outputs import OutputPreprocessor
from .parameters import ParameterNorm


def nonfinite_counts(rows: Rows) -> Samples:
    """The number of elements that are not finite; NaN if a sketch tells only that there are some."""
    counts = rows[NONFINITE]
    return np.where(rows.is_broken, counts, 0.0)


class OutputNonFinite(OutputPreprocessor):
    """How many elements of each output are not finite."""

    statistics = ("count",)
    takes_broken = True

    def derive(self, rows: Rows) -> Samples:
        """The counts."""
        return nonfinite_counts(rows)


class OutputGradientNonFinite(OutputGradientGeometry):
    """The same for gradients of outputs."""

    statistics = ("count",)
    takes_broken = True

    def __init__(self) -> None:
        super().__init__(correlation=False, normalize=False, inplace=True)

    def derive(self, rows: Rows) -> Samples:
        """The counts."""
        return nonfinite_counts(rows)


class GradientNonFinite(GradientGeometry):
    """The same for gradients of parameters."""

    statistics = ("count",)
    takes_broken = True

    def __init__(self) -> None:
        super().__init__(correlation=False, normalize=False, inplace=True)

    def derive(self, rows: Rows) -> Samples:
        """The counts."""
        return nonfinite_counts(rows)


class ParameterNonFinite(ParameterNorm):
    """The same for parameters."""

    takes_broken = True

    def __init__(self, name: str) -> None:
        super().__init__([name], normalize=False, inplace=True)

    def derive(self, rows: Rows) -> Samples:
        """The counts."""
        return nonfinite_counts(rows)
