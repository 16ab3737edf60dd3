"""How attention spreads its weights over keys, and how large its logits are."""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..engine.functional_calls import Content
from ..engine.passes import passes_to_measure
from ..errors import SkippedSample
from ..numerical.extraction import extract_points
from .accumulating import AccumulatingPreprocessor

SEQUENCES, QUERIES = 8, 128
"""How many sequences of a batch are sampled, and how many queries in total; all heads of each."""
MASKED = -5000.0
"""Values below this in masks or logits mean "masked": people write -1e4, -1e9 and -inf."""
STEPS = (1.0, 2.0, 5.0, 10.0)
"""A stated error is one of these times a power of ten, so that it rarely changes."""

PRODUCT, SOFTMAX, PROJECTION = "scaled dot product", "softmax", "multi-head attention"


def _read_product(
    _: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Content:
    return PRODUCT, (query, key, attn_mask), (is_causal, math.nan if scale is None else scale)


def _read_softmax(_: Tensor, input: Tensor, dim: int | None = None, *others: Any, **named: Any) -> Content | None:
    is_attention = input.dim() == 4 and (dim == -1 or dim == 3)
    return (SOFTMAX, (input,), ()) if is_attention else None


def _read_projection(
    _: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    *others: Any,
    **named: Any,
) -> Content:
    weights = (q_proj_weight, k_proj_weight) if use_separate_proj_weight else (in_proj_weight, None)
    tensors = (query, key, *weights, in_proj_bias, bias_k, static_k, attn_mask, key_padding_mask)
    return PROJECTION, tensors, (num_heads, add_zero_attn)


READERS = {
    functional.scaled_dot_product_attention: _read_product,
    functional.softmax: _read_softmax,
    torch.softmax: _read_softmax,
    Tensor.softmax: _read_softmax,
    functional.multi_head_attention_forward: _read_projection,
}
"""The functions that compute attention, and what is taken from their calls."""


class AttentionWeights(AccumulatingPreprocessor):
    """Entropy of attention weights and size of logits, from calls of the functions that compute them.

    Args:
        inplace: keep only running moments, instead of every sample.
        record_eval: record evaluation passes too, not only those of training.
        evaluation_from_grad: how to tell evaluation from training, see ``is_training_pass``.
        in_graphs: whether to measure attention inside compiled graphs as well.
    """

    statistics = ("entropy", "entropy error", "largest logit", "logit bound")
    readers, kinds = READERS, frozenset({PRODUCT, SOFTMAX, PROJECTION})

    def __init__(
        self,
        inplace: bool = True,
        record_eval: bool = False,
        evaluation_from_grad: bool | None = None,
        in_graphs: bool = True,
    ) -> None:
        super().__init__(inplace)
        self.record_eval, self.evaluation_from_grad = record_eval, evaluation_from_grad
        self.in_graphs = in_graphs
        self._stated = 0.0

    def passes(self) -> frozenset[int]:
        """The passes to measure, as ``kind_of_pass`` numbers them."""
        return passes_to_measure(record_eval=self.record_eval, evaluation_from_grad=self.evaluation_from_grad)

    def error(self, statistic: str) -> float | None:
        """The largest standard error of an entropy so far, rounded up; None while all queries were looked at."""
        if statistic != "entropy":
            return None
        errors = extract_points(self.series("entropy error"), "mean")
        self._stated = max(self._stated, _rounded_up(float(np.max(errors[np.isfinite(errors)], initial=0.0))))
        return self._stated or None

    def clear(self) -> None:
        """Forget the model, and how good its estimates were."""
        super().clear()
        self._stated = 0.0

    def process_call(self, name: str, content: Content) -> None:
        """Take one call; no tensor of it is changed or kept."""
        what, tensors, numbers = content
        for x in tensors:
            if x is not None and (type(x) not in (Tensor, nn.Parameter) or x.is_nested):
                raise SkippedSample(f"attention over a {type(x).__name__} or a nested tensor is not measured")
        first = next(x for x in tensors if x is not None)
        with torch.no_grad(), torch.autocast(first.device.type, enabled=False):
            looked_at = _MEASURE[what](*tensors, *numbers)
            if looked_at is not None:
                self._gather(name, *looked_at.tensors, common=looked_at.common)

    def _handle(
        self, kept: Any, keys: tuple[Any, ...], steps: tuple[int, ...], columns: list[Tensor], *common: Any
    ) -> None:
        """Make the samples of several calls."""
        entropies, choices, largest, *bounds = columns
        scale, *shares = common
        if bounds:
            queries, of_keys, *masks = bounds
            products = queries.view(*of_keys.shape, -1) * of_keys[..., None]
            bound = sum(masks, products.flatten(1).amax(1) * abs(scale))
        else:
            bound = largest
        samples = torch.stack([*_mean_entropy(entropies, choices, *shares), largest, bound], 1)
        kept.series.add_all(keys, samples, steps)


class _LookedAt(NamedTuple):
    """What is kept of a call until it is handled together with other layers."""

    tensors: tuple[Tensor, ...]
    """For each sampled query its entropy and number of keys; the largest logit; norms that bound it."""
    common: tuple[float, ...]
    """The scale of logits, and which share of sequences, and of positions, is looked at."""


class _Sampled(NamedTuple):
    """Which queries are looked at: some positions of some sequences, both spread evenly."""

    rows: Tensor
    positions: Tensor
    """The positions in each of these sequences; ``rows`` is a column."""
    shares: tuple[float, float]
    """Of all sequences, and of all positions of each."""

    def pick(self, x: Tensor) -> Tensor:
        """Of (sequences, heads, queries, ...) the chosen queries: (chosen sequences, heads, chosen queries, ...)."""
        return x[self.rows, :, self.positions].transpose(1, 2)


@lru_cache(maxsize=64)
def _sample(batch: int, length: int, device: torch.device) -> _Sampled:
    count = min(batch, SEQUENCES)
    each = min(length, max(1, QUERIES // count))
    rows = torch.arange(count, dtype=torch.int64, device=device)
    inside = torch.arange(each, dtype=torch.int64, device=device) * 1024
    shift = rows * 633 % 1024  # different for each sequence, so that together they cover all positions
    positions = (inside + shift[:, None]) * length // (each * 1024)
    return _Sampled((rows * batch // count)[:, None], positions, (count / batch, each / length))


class _Choices(NamedTuple):
    """Which keys are masked for each sampled query, if any, and how many are not."""

    hidden: Tensor | None
    counts: Tensor

    @classmethod
    def without(cls, hidden: Tensor) -> "_Choices":
        return cls(hidden, (hidden.shape[-1] - hidden.sum(-1)).float())


@lru_cache(maxsize=64)
def _choices(batch: int, length: int, keys: int, is_causal: bool, device: torch.device) -> _Choices:
    """Those without a mask: (chosen sequences, 1, chosen queries, keys)."""
    positions = _sample(batch, length, device).positions[:, None]
    if not is_causal:
        return _Choices(None, torch.full_like(positions, keys, dtype=torch.float32))
    return _Choices.without(torch.arange(keys, dtype=torch.int64, device=device) > positions[..., None])


def _measure_product(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: float, scale: float
) -> _LookedAt | None:
    """What to keep of queries, keys and a mask, all (sequences, heads, positions, features)."""
    if query.dim() < 2 or not query.numel() or key.shape[-2] < 2:
        return None  # with a single key the entropy is always 0
    if mask is not None:
        mask = _four(mask.expand(*query.shape[:-1], key.shape[-2]))
    query, key = _four(query), _four(key)
    batch, heads, length, size = query.shape
    groups, keys = key.shape[1], key.shape[2]
    scale = 1 / math.sqrt(size) if math.isnan(scale) else scale
    sampled = _sample(batch, length, query.device)
    some = sampled.pick(query).float() * scale
    chosen = (key if len(some) == batch else key[sampled.rows[:, 0]]).float()
    # heads that share keys are multiplied with them together
    product = some.reshape(len(some), groups, -1, size) @ chosen.transpose(-1, -2)
    logits = product.view(len(some), heads, -1, keys)
    choices = _choices(batch, length, keys, bool(is_causal), query.device)
    bounds = [torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).amax(-1) for x in (query, key)]
    if mask is not None:
        own = sampled.pick(mask)
        if mask.dtype == torch.bool:
            masked = ~own
        else:
            own = own.float()
            logits, masked = logits + own, ~(own > MASKED)
            bounds.append(mask.amax().float())
        choices = _Choices.without(masked if choices.hidden is None else choices.hidden | masked)
    logits, entropies = _hide(logits, choices.hidden)
    return _LookedAt((entropies, choices.counts, logits.amax(), *bounds), (scale, *sampled.shares))


def _measure_softmax(logits: Tensor) -> _LookedAt | None:
    """The same of the logits themselves: then the largest one is known, and is its own bound."""
    if not logits.numel() or logits.shape[-1] < 2:
        return None
    sampled = _sample(logits.shape[0], logits.shape[2], logits.device)
    some = sampled.pick(logits).float()
    choices = _Choices.without(~(some > MASKED))
    entropies = _hide(some, choices.hidden)[1]
    return _LookedAt((entropies, choices.counts, logits.amax().float()), (1.0, *sampled.shares))


def _hide(logits: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits without those of hidden keys, and the entropy of the weights of each query."""
    logits = logits if hidden is None else logits.masked_fill(hidden, -math.inf)
    return logits, torch.special.entr(logits.softmax(-1)).sum(-1)


def _measure_projection(
    query: Tensor,
    key: Tensor,
    query_weight: Tensor,
    key_weight: Tensor | None,
    bias: Tensor | None,
    extra_key: Tensor | None,
    static_key: Tensor | None,
    mask: Tensor | None,
    padding: Tensor | None,
    heads: float,
    has_zero_key: float,
) -> _LookedAt | None:
    """The same from what ``multi_head_attention_forward`` is called with: positions come first."""
    heads = int(heads)
    if query.dim() == 2:
        query, key = query[:, None], key[:, None]
        padding = None if padding is None else padding[None]
    size, batch = query.shape[-1], query.shape[1]
    if key_weight is None:
        query_weight, key_weight = query_weight[:size], query_weight[size : 2 * size]
    biases = (None, None) if bias is None else (bias[:size].float(), bias[size : 2 * size].float())
    query = _by_head(functional.linear(query.float(), query_weight.float(), biases[0]), heads)
    if static_key is not None:
        keys = static_key.float().view(batch, heads, -1, size // heads)
    else:
        projected = functional.linear(key.float(), key_weight.float(), biases[1])
        if extra_key is not None:
            projected = torch.cat([projected, extra_key.float().expand(1, batch, size)])
        keys = _by_head(projected, heads)
    if has_zero_key:
        keys = functional.pad(keys, (0, 0, 0, 1))
    if mask is not None:
        mask = _added(mask)
        mask = mask.view(batch, heads, *mask.shape[-2:]) if mask.dim() == 3 else mask[None, None]
        mask = functional.pad(mask, (0, keys.shape[2] - mask.shape[-1]))
    if padding is not None:
        padding = functional.pad(_added(padding), (0, keys.shape[2] - padding.shape[-1]))[:, None, None]
        mask = padding if mask is None else mask + padding
    return _measure_product(query, keys, mask, 0.0, math.nan)


_MEASURE: dict[str, Any] = {
    PRODUCT: _measure_product,
    SOFTMAX: _measure_softmax,
    PROJECTION: _measure_projection,
}


def _four(x: Tensor) -> Tensor:
    """As (sequences, heads, positions, ...), whatever comes before the positions."""
    if x.dim() == 3:  # (sequences * heads, positions, features) means one head each
        return x[:, None]
    return x.reshape(-1, *x.shape[-3:]) if x.dim() > 3 else x[None, None]


def _by_head(x: Tensor, heads: int) -> Tensor:
    """From (positions, sequences, features) to (sequences, heads, positions, features of a head)."""
    return x.view(*x.shape[:-1], heads, -1).permute(1, 2, 0, 3)


def _added(mask: Tensor) -> Tensor:
    """A mask that is added to logits, from one that is true where a key is masked."""
    if mask.dtype != torch.bool:
        return mask.float()
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill(mask, -math.inf)


def _mean_entropy(
    entropies: Tensor, choices: Tensor, share_of_rows: float, share_of_positions: float
) -> tuple[Tensor, Tensor]:
    """Mean of H / ln(keys) over the chosen queries that have a choice, and its standard error; for each call.

    The error comes from how sequences differ and how positions differ within them. Even spacing is at least as good as
    random sampling.
    """
    share = (entropies / choices.clamp_min(2).log()).where(choices >= 2, 0.0)  # (calls, sequences, heads, queries)
    number, total = (choices >= 2).expand_as(share).sum(2), share.sum(2)
    mean = total.sum((1, 2)) / number.sum((1, 2))
    numbers, counts = total / number.clamp_min(1), number > 0
    each = counts.sum(2)
    means = (numbers * counts).sum(2) / each.clamp_min(1)
    inside = ((numbers - means[..., None]).square() * counts).sum(2) / (each - 1).clamp_min(1)
    rows = (each > 0).sum(1)
    between = ((means - mean[:, None]).square() * (each > 0)).sum(1) / (rows - 1).clamp_min(1)
    first = (1 - share_of_rows) * between / rows
    second = share_of_rows * (1 - share_of_positions) * inside.sum(1) / rows / each.sum(1)
    return mean, (first + second).sqrt()


def _rounded_up(error: float) -> float:
    """The next larger of 1, 2, 5, 10, 20 ... in any power of ten; 0 stays 0.

    >>> _rounded_up(0.0031), _rounded_up(0.01), _rounded_up(0.0)
    (0.005, 0.01, 0.0)
    """
    if error <= 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(error))
    return float(f"{next((step for step in STEPS if step * unit >= error * (1 - 1e-9)), 10.0) * unit:.0e}")
