"""Which experts a mixture of experts sends its tokens to."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import SkippedSample
from ..numerical.precision import wide_dtype
from .counting import CountingStatistics, Lines
from .loss_inputs import class_counts

ENTROPY, DROPPED, LEAST_USED = "entropy", "dropped", "least used half"


class ExpertChoice(NamedTuple):
    """What a router has chosen for each token."""

    experts: int
    """How many there are."""
    indices: Tensor
    """The chosen experts of each token, ``[tokens, chosen]``; the number ``experts`` stands for none."""
    is_final: bool
    """Whether the router itself returns the choice; otherwise later code may choose differently or drop tokens."""


class ExpertShares(CountingStatistics):
    """Counts how often each expert is chosen, from what routers return.

    Args:
        most_shown: :meth:`shares` lists single experts only for layers with at most this many.

    >>> routing = ExpertShares()
    >>> routing.process_router("gate", [torch.tensor([[2.0, 1.0], [3.0, 0.0], [0.0, 1.0], [5.0, 2.0]])], top_k=1)
    >>> routing.shares()
    {'gate': {'expert 0': 0.75, 'expert 1': 0.25}}
    """

    statistics = (ENTROPY, DROPPED, LEAST_USED)

    def __init__(self, most_shown: int = 16) -> None:
        super().__init__(inplace=True)
        self.most_shown = most_shown

    @torch.no_grad()
    def process_router(self, name: str, tensors: Sequence[Tensor], top_k: int | None) -> None:
        """Take the tensors that a router has returned, in their order; does not wait for the device."""
        choice = chosen_experts(tensors, top_k)
        counts = class_counts(choice.indices[None], choice.experts)[0]
        self._count(name, counts)
        shares = counts.to(wide_dtype(counts)) / counts.sum()
        self._kept.series.add((name, ENTROPY), torch.special.entr(shares).sum() / math.log(choice.experts))
        self._kept.series.add((name, LEAST_USED), shares.sort().values[: choice.experts // 2].sum())
        if choice.is_final:
            dropped = (choice.indices == choice.experts).all(-1)
            self._kept.series.add((name, DROPPED), dropped.mean(dtype=shares.dtype))

    # of a whole tick

    def shares(self) -> Lines:
        """The share of each expert in all choices, for layers that have few."""
        return {
            name: {f"expert {number}": float(share) for number, share in enumerate(counts / counts.sum())}
            for name, counts in self.counts().items()
            if len(counts) <= self.most_shown
        }

    def load(self) -> Lines:
        """The largest and the smallest share, as multiples of an even share."""
        return {
            name: {"largest": float(even.max()), "smallest": float(even.min())}
            for name, counts in self.counts().items()
            for even in [counts / counts.mean()]
        }

    def unused(self) -> Lines:
        """How many experts were never chosen."""
        return {name: {"unused": float((counts == 0).sum())} for name, counts in self.counts().items()}


def chosen_experts(tensors: Sequence[Tensor], top_k: int | None) -> ExpertChoice:
    """What a router has chosen, from the tensors that it returns.

    The first floating tensor whose last dimension is larger than 1 has a number for each token and expert. Integers of
    the same shape *before* it are a mask, integers after it the indices of the chosen experts. Without them, the
    largest ``top_k`` numbers are chosen. If there is only one number for each choice, integers with one more dimension
    are a mask.

    >>> chosen_experts([torch.tensor([[0.1, 0.9, 0.5]])], 2).indices
    tensor([[1, 2]])
    """
    place = next((place for place, x in enumerate(tensors) if _is_scores(x)), None)
    if place is None:
        choices = [x.shape for x in tensors if x.is_floating_point() and x.numel()]
        mask = next((x for x in tensors if x.shape[:-1] in choices and not x.is_floating_point()), None)
        if mask is None:
            raise SkippedSample("a router returns a number for each token and expert; this module does not")
        return _masked(mask)
    scores = tensors[place]
    tokens, experts = math.prod(scores.shape[:-1]), scores.shape[-1]
    if not tokens:
        raise SkippedSample("it got no tokens")
    for number, x in enumerate(tensors):
        if not _says_which(x, tokens):
            continue
        chosen = x.reshape(tokens, -1)
        if number < place and x.shape == scores.shape:
            return _masked(x)
        is_expert = (chosen >= 0) & (chosen < experts)
        return ExpertChoice(experts, chosen.to(torch.int64).where(is_expert, experts), is_final=True)
    if top_k is None:
        raise SkippedSample("it does not say which experts are chosen, nor how many: pass top_k= to Routing")
    best = scores.reshape(tokens, experts).topk(min(top_k, experts), sorted=False).indices
    return ExpertChoice(experts, best, is_final=False)


def _masked(mask: Tensor) -> ExpertChoice:
    """The chosen experts are those that are not 0."""
    experts = mask.shape[-1]
    every = torch.arange(experts, dtype=torch.int64, device=mask.device)
    return ExpertChoice(experts, every.where(mask.reshape(-1, experts) != 0, experts), is_final=True)


def _is_scores(x: Tensor) -> bool:
    """Whether it may have a number for each token and expert."""
    return x.is_floating_point() and x.dim() > 1 and x.shape[-1] > 1


def _says_which(x: Tensor, tokens: int) -> bool:
    """Whether it may say which experts are chosen."""
    is_whole = not x.is_floating_point() and not x.is_complex()
    return is_whole and x.dim() > 1 and x.numel() > 0 and math.prod(x.shape[:-1]) == tokens
