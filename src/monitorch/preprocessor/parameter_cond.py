"""Condition numbers of weights."""

import math

import torch
from torch import Tensor

from ..errors import SkippedSample
from ..numerical.precision import HOST
from ..numerical.shards import is_distributed
from .parameter_statistics import ParameterStatistics


class ParameterCond(ParameterStatistics):
    """Condition number of each matrix: largest singular value over smallest, infinite if that is 0.

    A tensor with more than two dimensions is flattened to one matrix (first, rest); vectors have no condition number.
    """

    def _measure(self, parameter: Tensor) -> Tensor | None:
        if parameter.dim() < 2 or not parameter.numel():
            return None
        if is_distributed(parameter):
            raise SkippedSample("no process has the whole matrix, and a condition number needs it")
        matrix = parameter.flatten(1).to("cpu", torch.complex128 if parameter.is_complex() else torch.float64)
        if not matrix.isfinite().all():
            return torch.tensor(torch.nan, dtype=torch.float64, device=HOST)
        singular: Tensor = torch.linalg.svdvals(matrix)
        return (singular[0] / singular[-1]).nan_to_num(nan=math.inf, posinf=math.inf)
