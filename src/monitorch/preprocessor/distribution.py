"""Histograms of the elements of tensors, with the same bins for every tensor, so that they merge exactly."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..engine.distributed_tensors import OWN, SHARED, is_distributed, local_part, local_samples
from ..engine.kernels.fused import whole_facts as whole_facts_at_once
from ..engine.passes import TRAINING, kind_of_pass
from ..engine.rank_numbers import Payload, Vector
from ..engine.tensors import samples_of
from ..numerical.batches import numbers_on
from ..numerical.norms import as_real
from ..numerical.precision import HOST, computable
from .abstract import AbstractForwardPreprocessor, AbstractTensorPreprocessor
from .counting import CountingStatistics, Counts, Lines
from .data import RANGE

LOWEST, EXPONENTS, MANTISSA_BITS = -43, 64, 2
"""Bins cover absolute values from 2^-43, about 1.1e-13, to 2^21, about 2.1e6; each power of two has four of them."""

SIDE = EXPONENTS << MANTISSA_BITS
"""How many bins there are for positive elements, and how many for negative ones."""
ZERO, INFINITE, NAN = SIDE, 2 * SIDE + 1, 2 * SIDE + 2
"""Separate bins: the one for 0 is in the middle, the other two come last."""
BINS = NAN + 1

BLOCKS, BLOCK = 256, 256
"""Of a larger tensor, this many blocks of this many adjacent elements are read."""

QUANTILES = {"q01": 0.01, "q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95, "q99": 0.99}
SPECIAL = ("zero", "infinite", "nan")
"""What is counted over whole tensors."""

_WITHOUT_SIGN, _INFINITY, _SHIFT = 0x7FFFFFFF, 0x7F800000, 23 - MANTISSA_BITS
_BEGINNINGS = 1 << 32 - _SHIFT
_FIRST = (LOWEST + 127) << MANTISSA_BITS  # the first bits, without the sign, of the smallest number with a bin
_marks = np.ldexp(1 + np.arange(SIDE + 1) % 4 / 4, LOWEST + np.arange(SIDE + 1) // 4)
EDGES = np.concatenate([-_marks[::-1], _marks])
"""Where one bin of finite elements ends and the next begins; that of 0 is between the two innermost."""
LOWER = np.concatenate([-_marks[:0:-1], [0.0], _marks[:-1]])
"""Where each bin of finite elements begins."""
UPPER = np.concatenate([-_marks[-2::-1], [0.0], _marks[1:]])
"""Where it ends."""


class Histograms(CountingStatistics, AbstractForwardPreprocessor, AbstractTensorPreprocessor):
    """The distribution of the elements of each tensor since the last tick.

    Elements of all tensors of a name are in one histogram. At most 65,536 of each are looked at; the smallest and the
    largest finite one, and the counts of zeros, infinities and NaNs are those of the whole tensor.

    >>> histograms = Histograms()
    >>> histograms.process_tensor("layer", torch.tensor([-2.0, 0.0, 3.0, torch.inf]))
    >>> histograms.quantiles()["layer"]["q50"], histograms.specials()["layer"]
    (0.0, {'zero': 1.0, 'infinite': 1.0, 'nan': 0.0})
    """

    statistics = (RANGE,)
    needs_input = compares = False

    def __init__(self) -> None:
        super().__init__(inplace=True)

    def process_fw(self, name: str, module: nn.Module, layer_input: Any, layer_output: Any) -> None:
        """Take the output of one training pass."""
        if kind_of_pass(module) == TRAINING:
            self._take(name, *local_samples(samples_of(layer_output, None)))

    def process_tensor(self, name: str, tensor: Tensor) -> None:
        """Take one gradient; that of a plain parameter is not the same in all processes yet."""
        here, part = local_part(tensor)
        self._take(name, here, part if is_distributed(tensor) else OWN)

    def process_parameter(self, name: str, parameter: Tensor) -> None:
        """Take one parameter as it is now; processes that hold the same part count once."""
        self._take(name, *local_part(parameter))

    @torch.no_grad()
    def _take(self, name: str, tensor: Tensor, part: int) -> None:
        numbers = computable(as_real(tensor))
        if not numbers.numel() or numbers.is_meta:  # there are no numbers in it
            return
        sample = as_float32(spread(numbers), copy=True)
        is_all = sample.numel() == numbers.numel() and numbers.dtype != torch.float64  # else more is needed
        self._gather((name, part), sample, *(() if is_all else whole_facts(numbers)))

    def _handle(
        self, kept: Any, keys: tuple[Any, ...], steps: tuple[int, ...], columns: list[Tensor], *common: Any
    ) -> None:
        """Count the elements of several tensors of the same size."""
        sample, *facts = columns
        numbers = sample.flatten(1)
        counts = bin_counts(numbers)
        if facts:
            smallest, largest, zero, broken, nan = facts
            special = torch.stack([zero, broken - nan, nan], 1).long()
        else:
            smallest = numbers.nan_to_num(torch.inf, torch.inf, torch.inf).amin(1)
            largest = numbers.nan_to_num(-torch.inf, -torch.inf, -torch.inf).amax(1)
            special = torch.cat([counts[:, ZERO : ZERO + 1], counts[:, INFINITE:]], 1)
        kept.add(keys, torch.cat([counts, special], 1))
        for extreme in (smallest, largest):  # both infinite, and left out later, if nothing is finite
            kept.series.add_all([(name, RANGE) for name, _ in keys], extreme, steps)

    # what is shown of a tick

    def histograms(self) -> dict[str, Counts]:
        """How many elements are in each bin, and how many are zero, infinite and NaN in whole tensors; by name."""
        found: dict[str, Counts] = {}
        for (name, _), counts in self.counts().items():
            found[name] = found[name] + counts if name in found else counts
        return found

    def finite(self) -> dict[str, Counts]:
        """How many of the finite elements that were looked at are in each bin between ``EDGES``; by name."""
        return {name: counts[:INFINITE] for name, counts in self.histograms().items()}

    def quantiles(self) -> Lines:
        """Quantiles of the finite elements that were looked at, by name; NaN if there are none."""
        lines: Lines = {}
        values, shares = self.value, np.array(list(QUANTILES.values()))
        for name, counts in self.finite().items():
            extremes, found = values[name][RANGE], quantiles(counts, shares)
            inside = np.clip(found, extremes.min_, extremes.max_) if extremes.count else found
            lines[name] = dict(zip(QUANTILES, inside.tolist(), strict=True))
        return lines

    def specials(self) -> Lines:
        """How many elements of whole tensors were zero, infinite or NaN; by name."""
        found = self.histograms().items()
        return {name: dict(zip(SPECIAL, map(float, counts[BINS:].tolist()), strict=True)) for name, counts in found}

    def payload(self) -> Payload:
        """All accumulators and counts; copies of the same part count once."""
        found = super().payload()
        found.vectors = {
            (name, min(part, SHARED)): Vector(counts, part) for (name, part), counts in self.counts().items()
        }
        return found


def spread(numbers: Tensor) -> Tensor:
    """All elements, or evenly spread blocks of them; they share their memory with ``numbers`` if that is contiguous."""
    if numbers.numel() <= BLOCKS * BLOCK:
        return numbers.reshape(-1)
    # an odd step, so that blocks do not begin at the same column of each row
    step = max((numbers.numel() - BLOCK) // (BLOCKS - 1) - 1 | 1, BLOCK)
    return numbers.contiguous().as_strided((BLOCKS, BLOCK), (step, 1))


def bin_counts(numbers: Tensor) -> Tensor:
    """How many elements along the last dimension are in each bin; numbers outside all bins go into the outermost ones.

    >>> bin_counts(torch.tensor([1.0, 1.2, -1.5])).nonzero()[:, 0] - ZERO
    tensor([-175,  173])
    """
    # the sum has no negative zeros, and no NaN that begins like an infinity
    bits = (as_float32(numbers) + 0.0).view(torch.int32)
    # all in integers: comparisons take many times as long on a CPU
    places = (bits >> _SHIFT).bitwise_and_(_BEGINNINGS - 1).long()
    fine = torch.zeros(*places.shape[:-1], _BEGINNINGS, dtype=torch.int64, device=numbers.device)
    fine.scatter_add_(-1, places, torch.ones_like(places))
    counts = torch.zeros(*places.shape[:-1], BINS, dtype=torch.int64, device=numbers.device)
    counts.index_add_(-1, _bins(numbers.device), fine)
    zeros = places.shape[-1] - (bits & _WITHOUT_SIGN).clamp_(max=1).sum(-1)
    counts[..., ZERO].add_(zeros)
    counts[..., ZERO + 1].sub_(zeros)  # they begin like the smallest positive numbers
    return counts


@lru_cache(maxsize=16)
def _bins(device: torch.device) -> Tensor:
    """The bin of each beginning of a float32: sign, exponent and the first bits of the mantissa."""
    begins = np.arange(_BEGINNINGS)
    size, sign = begins % (_BEGINNINGS // 2), np.where(begins < _BEGINNINGS // 2, 1, -1)
    bins = ZERO + sign * np.clip(size - (_FIRST - 1), 1, SIDE)
    infinity = _INFINITY >> _SHIFT
    bins = np.select([size > infinity, size == infinity], [NAN, INFINITE], bins)
    return numbers_on(device, bins)


def as_float32(numbers: Tensor, *, copy: bool = False) -> Tensor:
    """The same elements in float32; what would become 0 or infinite there gets a number far outside of all bins."""
    if numbers.dtype != torch.float64:
        return numbers.to(torch.float32, copy=copy)
    inside = numbers.abs().clamp_(2.0 ** (LOWEST - 9), 2.0 ** (LOWEST + EXPONENTS + 9)).mul_(numbers.sign())
    return inside.where(numbers.abs() != torch.inf, numbers).float()


def whole_facts(numbers: Tensor) -> tuple[Tensor, ...]:
    """The finite extremes, and how many elements are zero, not finite and NaN; on their device."""
    found = whole_facts_at_once(numbers)
    if found is not None:
        return found.unbind()
    if may_look(numbers):
        extremes, zero = numbers.aminmax(), numbers.numel() - numbers.count_nonzero()
        if all(map(math.isfinite, extremes)):
            none = torch.zeros_like(zero)
            return *extremes, zero, none, none
    at_most = numbers.nan_to_num(torch.inf, torch.inf, torch.inf)
    at_least = numbers.nan_to_num(-torch.inf, -torch.inf, -torch.inf)
    broken = (at_most == torch.inf, numbers != numbers)
    return at_most.amin(), at_least.amax(), (numbers == 0).sum(), *(mask.sum() for mask in broken)


def may_look(numbers: Tensor) -> bool:
    """Whether numbers may be inspected; on a device that would wait."""
    return numbers.device == HOST


def quantiles(counts: Counts, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quantiles of finite elements, from how many are in each of their bins.

    The elements of a bin are taken to be evenly spread over it; a single one is in its middle. Between two neighbours
    there is a straight line, as in NumPy.

    >>> quantiles(np.bincount([ZERO, ZERO + 173], minlength=INFINITE), np.array([0.0, 0.5, 1.0]))
    array([0.    , 0.5625, 1.125 ])
    """
    ends = np.cumsum(counts)
    if not ends[-1]:
        return np.full(len(shares), np.nan)

    def element(rank: NDArray[np.float64]) -> NDArray[np.float64]:
        own = np.searchsorted(ends, rank, side="right")
        inside = (rank - (ends - counts)[own] + 0.5) / counts[own]
        found: NDArray[np.float64] = LOWER[own] + inside * (UPPER - LOWER)[own]
        return found

    ranks = shares * (ends[-1] - 1)
    low = element(np.floor(ranks))
    between: NDArray[np.float64] = low + (ranks - np.floor(ranks)) * (element(np.ceil(ranks)) - low)
    return between
