"""Singular values of weights: the largest one, and how many there are in effect."""

from typing import Any

import torch
from torch import Tensor

from ..engine.distributed_tensors import is_distributed
from ..errors import SkippedSample
from ..numerical.precision import wide_dtype
from .parameters import ParameterStatistics

SPECTRAL_NORM, STABLE_RANK, EFFECTIVE_RANK = "spectral norm", "stable rank", "effective rank"


class Spectrum(ParameterStatistics):
    """Largest singular value and ranks of each matrix; tensors with more dimensions are flattened to (first, rest).

    Args:
        name: the name of the parameters.
        iterations: steps of power iteration for each sample. It goes on where it stopped at the last one.
        largest_svd: compute the effective rank if the smaller side has at most this many elements; 0 for never.

    >>> spectrum = Spectrum("weight", iterations=30, largest_svd=2)
    >>> spectrum.process_parameter("layer", torch.diag(torch.tensor([4.0, 2.0])))
    >>> {name: round(found.mean, 6) for name, found in spectrum.value["layer"].items()}
    {'spectral norm': 4.0, 'stable rank': 1.25, 'effective rank': 1.889882}
    """

    def __init__(self, name: str, iterations: int, largest_svd: int) -> None:
        super().__init__([name], inplace=True)
        self.statistics = (SPECTRAL_NORM, STABLE_RANK, EFFECTIVE_RANK)
        self.iterations, self.largest_svd = iterations, largest_svd
        self._vectors: dict[str, Tensor] = {}

    def _measure(self, key: tuple[str, str], parameter: Tensor) -> None:
        if parameter.dim() < 2 or not parameter.numel():
            return
        if is_distributed(parameter):
            raise SkippedSample("no process has the whole matrix, and singular values need it")
        name, matrix = key[0], parameter.flatten(1)
        matrix = matrix.float() if matrix.dtype.itemsize < torch.float32.itemsize else matrix
        norm = self._largest(name, matrix)
        length = torch.linalg.vector_norm(matrix, dtype=None if matrix.is_complex() else wide_dtype(matrix))
        self._kept.series.add((name, SPECTRAL_NORM), norm)
        self._kept.series.add((name, STABLE_RANK), (length / norm).square())
        if self.largest_svd:
            if min(matrix.shape) > self.largest_svd:
                raise SkippedSample(f"effective ranks are computed up to largest_svd={self.largest_svd} only")
            self._kept.series.add((name, EFFECTIVE_RANK), effective_rank(matrix))

    def _largest(self, name: str, matrix: Tensor) -> Tensor:
        """The largest singular value, or a little less: the better the more often it is computed."""
        vector, start = self._vectors.get(name), first_vector(matrix)
        if vector is None or vector.shape != start.shape or vector.dtype != start.dtype:
            vector = start
        vector, norm = vector.to(matrix.device), matrix.new_zeros(())
        with torch.autocast(matrix.device.type, enabled=False):  # products of short floats would be far off
            for _ in range(self.iterations):
                vector = matrix.mH @ _unit(matrix @ vector)
                norm = torch.linalg.vector_norm(vector)
                vector = _unit(vector)
        # numbers that are not finite must not stay, and from 0 there is no way back
        self._vectors[name] = torch.where(norm.isfinite() & (norm > 0), vector, start)
        return norm

    def clear(self) -> None:
        """Also forget where power iterations stopped."""
        super().clear()
        self._vectors = {}

    def state_dict(self) -> dict[str, Any]:
        """Also where power iterations stopped."""
        return {**super().state_dict(), "vectors": dict(self._vectors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self._vectors = dict(state["vectors"])


def first_vector(matrix: Tensor) -> Tensor:
    """Where power iteration begins: fixed numbers without a pattern, so that no random stream is touched."""
    numbers = torch.arange(1, matrix.shape[1] + 1, dtype=torch.float32, device=matrix.device)
    return _unit((numbers * 12.9898).sin()).to(matrix.dtype)


def _unit(vector: Tensor) -> Tensor:
    """The vector with length 1; a zero stays."""
    length: Tensor = torch.linalg.vector_norm(vector)
    return vector / length.clamp(min=torch.finfo(vector.dtype).tiny)


def effective_rank(matrix: Tensor) -> Tensor:
    """The exponential of the entropy of singular values that add up to 1; waits for the device."""
    if not matrix.isfinite().all():
        return torch.full((), torch.nan, device=matrix.device, dtype=torch.float32)
    singular: Tensor = torch.linalg.svdvals(matrix)
    entropy: Tensor = torch.special.entr(singular / singular.sum()).sum()
    return entropy.exp()
