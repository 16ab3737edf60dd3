"""Models of a few layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

Act = Callable[[], nn.Module]


def mlp(
    widths: Sequence[int],
    act: Act = nn.ReLU,
    norm: Callable[[int], nn.Module] | None = None,
    dropout: float = 0.0,
    he: bool = False,
) -> nn.Sequential:
    """Linear layers with, between any two, a norm, an activation and dropout, as far as asked for."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(inputs, outputs))
        if he:
            nn.init.kaiming_normal_(layers[-1].weight, nonlinearity="relu")
            nn.init.zeros_(layers[-1].bias)
        if number < len(widths) - 2:
            layers += [norm(outputs)] if norm else []
            layers.append(act())
            layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


class Attention(nn.Module):
    """Each place looks at all others, or at those before it."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of ``[batch, place, width]``."""
        batch, places, width = x.shape
        q, k, v = self.qkv(x).view(batch, places, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(seen.transpose(1, 2).reshape(batch, places, width))


class TopRouter(nn.Module):
    """Says how much each token likes each expert."""

    top_k = 1

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.choose = nn.Linear(width, experts)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[..., experts]``."""
        return self.choose(x)


class Experts(nn.Module):
    """Each token goes to the expert that it likes best."""

    def __init__(self, width: int, experts: int = 4) -> None:
        super().__init__()
        self.router = TopRouter(width, experts)
        self.experts = nn.ModuleList(mlp((width, 2 * width, width), nn.GELU) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        """The sum over experts of what each makes of its own tokens."""
        weights = self.router(x).softmax(-1)
        best, chosen = weights.max(-1)
        each = [best.where(chosen == number, 0)[..., None] * one(x) for number, one in enumerate(self.experts)]
        return torch.stack(each).sum(0)


class Block(nn.Module):
    """Attention and a small network, each with a norm before it and a way around it; or after it."""

    def __init__(self, width: int, heads: int, act: Act, options: dict[str, bool]) -> None:
        super().__init__()
        norm = nn.LayerNorm if options["norm"] else (lambda _: nn.Identity())
        self.norm1, self.attention = norm(width), Attention(width, heads, options["causal"])
        self.norm2 = norm(width)
        self.ffn: nn.Module = Experts(width) if options["experts"] else mlp((width, 2 * width, width), act)
        self.skip, self.pre, self.has_ffn = options["skip"], options["pre"], options["ffn"]

    def forward(self, x: Tensor) -> Tensor:
        """Of ``[batch, place, width]``."""
        x = self._part(x, self.norm1, self.attention)
        return self._part(x, self.norm2, self.ffn) if self.has_ffn else x

    def _part(self, x: Tensor, norm: nn.Module, inner: nn.Module) -> Tensor:
        if not self.skip:
            return inner(norm(x))
        return x + inner(norm(x)) if self.pre else norm(x + inner(x))


class Transformer(nn.Module):
    """A tiny one: an answer for each place, or with ``pooled`` one for all.

    Args:
        kinds: tokens; or, with ``continuous``, features at each place.
        outputs: numbers of an answer.
        length: places.
        width: features inside.
        depth: blocks.
        heads: of attention.
        act: of the small networks.
        pooled: whether the answer is of the mean over places.
        continuous: whether inputs are numbers, not tokens.
        tied: whether the head shares its weight with the embedding.
        **options: norm, skip, ffn, pre, causal, experts.
    """

    def __init__(
        self,
        kinds: int,
        outputs: int,
        length: int,
        width: int = 32,
        depth: int = 2,
        heads: int = 2,
        act: Act = nn.GELU,
        pooled: bool = False,
        continuous: bool = False,
        tied: bool = False,
        **options: bool,
    ) -> None:
        super().__init__()
        usual = {"norm": True, "skip": True, "ffn": True, "pre": True, "causal": False, "experts": False}
        self.embedding: nn.Module = nn.Linear(kinds, width) if continuous else nn.Embedding(kinds, width)
        self.position = nn.Parameter(0.5 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, heads, act, usual | options) for _ in range(depth))
        self.norm = nn.LayerNorm(width) if (usual | options)["norm"] else nn.Identity()
        self.head = nn.Linear(width, outputs)
        self.after: nn.Module = nn.Identity()
        self.pooled, self.cut_after = pooled, -1
        if tied:
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits of each place, or of the whole."""
        h = self.embedding(x) + self.position
        for number, block in enumerate(self.blocks):
            h = block(h)
            if number == self.cut_after:
                h = h.detach()
        h = self.norm(h)
        return self.after(self.head(h.mean(1) if self.pooled else h))
