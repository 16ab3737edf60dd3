"""Singular values of weights: the largest one, and the effective rank."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..engine.distributed_tensors import is_distributed
from ..errors import SkippedSample
from ..numerical.precision import wide_dtype
from .parameters import ParameterStatistics

SPECTRAL_NORM, STABLE_RANK, EFFECTIVE_RANK = "spectral norm", "stable rank", "effective rank"


AT_FIRST = 4
"""How many times as many steps the first sample of a matrix takes: no earlier ones have found a direction."""

ALONE = frozenset({"cpu"})
"""Where matrices are taken one by one: on a CPU, products of several at once are ten times as slow."""


class Spectrum(ParameterStatistics):
    """Largest singular value and ranks of each matrix; tensors with more dimensions are flattened to (first, rest).

    Args:
        name: the name of the parameters.
        iterations: steps of power iteration for each sample. It continues from the vector of the last sample; the first
            one takes four times as many.
        largest_svd: compute the effective rank if the smaller side has at most this many elements; 0 for never.

    >>> spectrum = Spectrum("weight", iterations=30, largest_svd=2)
    >>> spectrum.process_parameter("layer", torch.diag(torch.tensor([4.0, 2.0])))
    >>> {name: round(found.mean, 6) for name, found in spectrum.value["layer"].items()}
    {'spectral norm': 4.0, 'stable rank': 1.25, 'effective rank': 1.889882}
    """

    bytes_at_once = 64 << 20

    def __init__(self, name: str, iterations: int, largest_svd: int) -> None:
        super().__init__([name], inplace=True)
        self.statistics = (SPECTRAL_NORM, STABLE_RANK, EFFECTIVE_RANK)
        self.iterations, self.largest_svd = iterations, largest_svd
        self._vectors: dict[str, Tensor] = {}

    def _measure(self, key: tuple[str, str], parameter: Tensor) -> None:
        if parameter.dim() < 2 or not parameter.numel() or parameter.is_meta:
            return
        if is_distributed(parameter):
            raise SkippedSample("no process has the whole matrix, and singular values need it")
        name, matrix = key[0], parameter.flatten(1)
        matrix = matrix.float() if matrix.dtype.itemsize < torch.float32.itemsize else matrix
        if matrix.device.type in ALONE:
            self._record_norms(self._kept, [name], matrix, [self._kept.series.now()])
        else:  # it is read when the tick is taken, before anything changes it
            self._gather(name, matrix)
        if self.largest_svd:
            if min(matrix.shape) > self.largest_svd:
                raise SkippedSample(f"effective ranks are computed up to largest_svd={self.largest_svd} only")
            self._kept.series.add((name, EFFECTIVE_RANK), effective_rank(matrix))

    def _handle(
        self, kept: Any, keys: tuple[Any, ...], steps: tuple[int, ...], columns: list[Tensor], *common: Any
    ) -> None:
        """Take several matrices of the same shape."""
        self._record_norms(kept, keys, columns[0], steps)

    def _record_norms(self, kept: Any, names: Sequence[str], matrices: Tensor, steps: Sequence[int]) -> None:
        norms = self._largest(names, matrices)
        if matrices.dtype is torch.float32:
            lengths = torch.linalg.vector_norm(matrices, dim=(-2, -1), dtype=wide_dtype(matrices))
        else:
            lengths = _length(matrices, (-2, -1))[..., 0, 0]
        ranks = (lengths / norms).square().masked_fill(lengths == 0, 0.0)  # as a matrix of zeros has no rank
        for statistic, samples in ((SPECTRAL_NORM, norms), (STABLE_RANK, ranks)):
            kept.series.add_all([(name, statistic) for name in names], samples, steps)

    def _largest(self, names: Sequence[str], matrices: Tensor) -> Tensor:
        """The largest singular values, slightly underestimated; more samples make them more accurate."""
        start = first_vector(matrices)
        vectors = torch.stack([self._last_vector(name, start) for name in names])
        along, multiply = (1, torch.bmm) if matrices.dim() > 2 else (0, torch.mv)
        vectors, start = (vectors[..., None], start[:, None]) if along else (vectors[0], start)
        adjoint, norms = matrices.mH, vectors
        steps = self.iterations * (1 if all(name in self._vectors for name in names) else AT_FIRST)
        with torch.autocast(matrices.device.type, enabled=False):  # products of short floats would be far off
            for _ in range(steps):
                products, _ = _unit(multiply(matrices, vectors), along)
                vectors, norms = _unit(multiply(adjoint, products), along)
        # do not keep non-finite vectors, nor zero, from which the iteration cannot recover
        kept = torch.where(norms.isfinite() & (norms > 0), vectors, start)
        self._vectors.update(zip(names, kept.reshape(len(names), -1).unbind(), strict=True))
        return norms.reshape(-1)

    def _last_vector(self, name: str, start: Tensor) -> Tensor:
        known = self._vectors.get(name)
        fits = known is not None and (known.shape, known.dtype) == (start.shape, start.dtype)
        return known.to(start.device) if known is not None and fits else start

    def clear(self) -> None:
        """Also forget where power iterations stopped."""
        super().clear()
        self._vectors = {}

    def state_dict(self) -> dict[str, Any]:
        """Also where power iterations stopped."""
        return {**super().state_dict(), "vectors": {name: vector.clone() for name, vector in self._vectors.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self._vectors = dict(state["vectors"])


def first_vector(matrices: Tensor) -> Tensor:
    """Where power iteration begins: fixed numbers without a pattern, so that no random stream is touched."""
    numbers = torch.arange(1, matrices.shape[-1] + 1, dtype=torch.float32, device=matrices.device)
    return _unit((numbers * 12.9898).sin(), 0)[0].to(matrices.dtype)


def _unit(vectors: Tensor, along: int) -> tuple[Tensor, Tensor]:
    """The vectors along a dimension with length 1, and their lengths; a zero stays."""
    lengths = _length(vectors, along)
    return vectors / lengths.masked_fill(lengths == 0, 1.0), lengths


def _length(tensors: Tensor, along: int | tuple[int, int]) -> Tensor:
    """Their lengths along these dimensions, which stay; squares of huge or tiny numbers may not fit into the dtype."""
    units = torch.linalg.vector_norm(tensors, torch.inf, dim=along, keepdim=True)
    in_units = tensors / units.masked_fill(units == 0, 1.0)
    lengths: Tensor = units * torch.linalg.vector_norm(in_units, dim=along, keepdim=True)
    return lengths


def effective_rank(matrix: Tensor) -> Tensor:
    """The exponential of the entropy of singular values that add up to 1; waits for the device.

    It is 0 for a matrix of zeros.
    """
    if not matrix.isfinite().all():
        return torch.full((), torch.nan, device=matrix.device, dtype=torch.float32)
    singular: Tensor = torch.linalg.svdvals(matrix)
    entropy: Tensor = torch.special.entr(singular / singular.sum()).sum()
    return entropy.exp().masked_fill(singular.amax() == 0, 0.0)
