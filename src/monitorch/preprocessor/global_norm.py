"""The norm of all gradients of a step together."""

import math
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from ..engine.columns import SQUARES, UNIT
from ..engine.meter import TRAINED, Request
from ..engine.rows import Rows
from ..numerical.series import Accumulator
from .accumulating import AccumulatingPreprocessor, Kept

ALL_OF_THEM = ("all tensors",)
"""The key of the only accumulator; no layer has it, since their names are strings."""


@dataclass
class KeptSums(Kept):
    """Also the sum of squares of each step, until it is read."""

    sums: dict[int, float] = field(default_factory=dict)


class GlobalNorm(AccumulatingPreprocessor):
    """One sample for each step: the root of the sum of the squares of all tensors that were measured in it.

    A row may be of one tensor, or of many together.

    Args:
        inplace: keep only running moments, instead of every sample.
    """

    statistics = ("norm",)
    _kept_type = KeptSums

    def request(self) -> Request:
        """What gatherers should measure for it.

        Gradients of parameters that no optimizer has pile up, and there may be many of each in a step.
        """
        return Request(passes=frozenset({TRAINED}))

    @property
    def norms(self) -> dict[str, Accumulator]:
        """The samples under ``"norm"``, if there are any."""
        found = self._kept.series.values()
        return {"norm": found[ALL_OF_THEM]} if ALL_OF_THEM in found else {}

    @np.errstate(all="ignore")
    def _fold(self, rows: Rows) -> None:
        exists, sums = ~rows.is_baseline, cast("KeptSums", self._kept).sums
        squares = np.where(rows.is_broken, math.nan, rows[SQUARES] * rows[UNIT] ** 2)
        steps, places = np.unique(rows.steps[exists], return_inverse=True)
        for step, total in zip(steps.tolist(), np.bincount(places, squares[exists]).tolist(), strict=True):
            sums[step] = sums.get(step, 0.0) + total

    def _bring(self, kept: Kept) -> None:
        """The rows of a step may arrive in several parts; they are complete only when somebody reads."""
        super()._bring(kept)
        sums = cast("KeptSums", kept).sums
        for step in sorted(sums):
            kept.series.add(ALL_OF_THEM, math.sqrt(sums.pop(step)), step=step)
