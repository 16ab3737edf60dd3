"""Condition numbers of weights."""

import math

import torch
from torch import Tensor

from ..engine.distributed_tensors import is_distributed
from ..errors import SkippedSample
from .parameter_statistics import ParameterStatistics


class ParameterCond(ParameterStatistics):
    """Condition number of each matrix: largest singular value over smallest, infinite if that is 0.

    A tensor with more than two dimensions is flattened to one matrix (first, rest); vectors have no condition number.
    """

    def _measure(self, key: tuple[str, str], parameter: Tensor) -> None:
        if parameter.dim() < 2 or not parameter.numel():
            return
        if is_distributed(parameter):
            raise SkippedSample("no process has the whole matrix, and a condition number needs it")
        matrix = parameter.flatten(1).to("cpu", torch.complex128 if parameter.is_complex() else torch.float64)
        if matrix.isfinite().all():
            singular: Tensor = torch.linalg.svdvals(matrix)
            self._kept.series.add(key, (singular[0] / singular[-1]).nan_to_num(nan=math.inf, posinf=math.inf))
        else:
            self._kept.series.add(key, math.nan)
