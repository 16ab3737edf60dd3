"""What is trained while it is watched: small models, a GPT, and stacks of linears that grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Workload:
    """A model with its data and optimizer, all made on torch's default device."""

    model: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = torch.optim.Adam
    bfloat16: bool = False
    lens_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def images(*shape: int) -> Batch:
    """Noise with labels."""
    return torch.randn(shape), torch.randint(0, 10, shape[:1])


def tokens(vocabulary: int, batch: int, context: int) -> Batch:
    """Random text and, at each place, what comes next."""
    text = torch.randint(0, vocabulary, (batch, context + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def mlp(*widths: int) -> nn.Module:
    """Linears with a ReLU between any two."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn(*widths: int) -> nn.Module:
    """Convolution, batch norm and ReLU for each width, the first at full size, each other halving it."""
    layers: list[nn.Module] = []
    channels = 3
    for width in widths:
        conv = nn.Conv2d(channels, width, kernel_size=3, padding=1, stride=2 if layers else 1)
        layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Block(nn.Module):
    """Attention and feed-forward, each behind a layer norm and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.gelu, self.contract = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Each place looks at those before it."""
        split = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.contract(self.gelu(self.expand(self.norm2(x))))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """A decoder in the shape of GPT-2, its head not tied."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """Scores of what comes next at each place."""
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.norm(self.blocks(self.token(text) + self.place(places))))  # type: ignore[no-any-return]


def language(layers: int, width: int, heads: int, vocabulary: int, context: int, batch: int, device: str) -> Workload:
    """A GPT trained in bfloat16 with AdamW."""
    return Workload(
        model=partial(GPT, layers, width, heads, vocabulary, context),
        batch=partial(tokens, vocabulary, batch, context),
        optimizer=partial(torch.optim.AdamW, lr=1e-4, fused=device == "cuda"),
        bfloat16=device == "cuda",
        lens_options={"OutputActivation": {"channel_last": True, "include": (nn.Linear,)}},
    )


def stack(layers: int, width: int, device: str) -> Workload:
    """``layers`` linears, all but the last one square; batch 16.

    They learn slowly: the loss of a fixed batch soon reaches 1e-7 and then jumps, which buys a closer look.
    """
    optimizer = partial(torch.optim.Adam, lr=1e-4, fused=device == "cuda")
    return Workload(partial(mlp, *[width] * layers, 10), partial(images, 16, width), optimizer)


def workload(name: str, device: str, quick: bool = False) -> Workload:
    """The one called ``name``; ``quick`` gives a miniature of it, to try the bench itself."""
    kind, _, size = name.partition("=")
    if kind == "layers":
        return stack(int(size) if not quick else 2, 32, device)
    if kind == "parameters":
        return stack(10, round((float(size) / 9) ** 0.5) if not quick else 8, device)
    if kind == "mlp" and size:
        layers, width = map(int, size.split("x"))
        return stack(layers, width, device) if not quick else stack(2, 8, device)
    if kind == "mlp":
        return Workload(partial(mlp, 784, *[8 if quick else 512] * 2, 10), partial(images, 128, 784))
    if kind == "cnn":
        return Workload(partial(cnn, *((4, 4) if quick else (32, 64, 64, 128))), partial(images, 64, 3, 32, 32))
    if (kind == "gpt" and not size) or (kind in ("gpt", "gpt2", "gpt2-xl") and quick):
        return language(2, 64, 2, 512, 64, 4, device)
    if name == "gpt=10m":
        return language(6, 320, 5, 4096, 256, 64 if device == "cuda" else 4, device)
    if name == "gpt=10m-busy":  # with a smaller batch a large GPU waits for Python
        return language(6, 320, 5, 4096, 256, 512, device)
    if kind == "gpt2":
        return language(12, 768, 12, 50304, 1024, 16, device)
    if kind == "gpt2-xl":
        return language(48, 1600, 25, 50304, 1024, 8, device)
    raise ValueError(f"no model is called {name!r}")
