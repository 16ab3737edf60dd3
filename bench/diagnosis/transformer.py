"""Faults of Transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import data
from .case import Case, adam, adamw, tokens
from .faults import bias, decay, few, mixed_up, rates, rebuilt, set_, sort, without
from .program import Program, explained

BLOCKS = [name for name, _ in tokens(0).model.named_modules() if name.startswith("blocks.")]
ATTENTION = ("blocks.{}.attention.qkv", "blocks.{}.attention", "blocks.{}.attention.out")


def themes(seed: int, count: int = 2048, share: float = 0.6, **options: Any) -> Program:
    """Says what sequences are about."""
    options = {"pooled": True, "target": 0.85} | options
    return tokens(seed, made=data.themes(seed, count, share), kinds=20, outputs=5, **options)


def numbers(seed: int, **options: Any) -> Program:
    """Adds up what stands in a sequence of numbers."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2048, 8, 4, generator=g)
    y = x[:, :, 0].mean(1, keepdim=True) * 8**0.5 + x[:, :, 1].abs().mean(1, keepdim=True)
    y = (y - y.mean()) / y.std()
    options = {"pooled": True, "continuous": True, "loss": nn.MSELoss(), "score": explained, "target": 0.8} | options
    return tokens(seed, made=(x, y), kinds=4, outputs=1, **options)


def weighty(p: Program, factor: float, *ends: str) -> None:
    """Multiply the weights of layers whose names end so."""
    with torch.no_grad():
        for name, module in p.model.named_modules():
            if name.endswith(ends):
                module.weight.mul_(factor)


def sharp(p: Program, factor: float, blocks: list[int]) -> None:
    """Multiply the weights of queries and keys."""
    with torch.no_grad():
        for block in blocks:
            weight = p.model.blocks[block].attention.qkv.weight
            weight[: 2 * weight.shape[1]] *= factor


def constant(p: Program) -> None:
    """The same weights for all units of all blocks."""
    for module in p.model.blocks.modules():
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.02)
            nn.init.zeros_(module.bias)


class SignedRoot(nn.Module):
    """Makes large numbers smaller; without ``eps`` its gradient at 0 is not a number."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """The root of the size, with the sign."""
        return x.sign() * (x.abs() + self.eps).sqrt()


def rooted(seed: int) -> Program:
    """Dropout makes zeros, and roots follow."""
    return themes(seed, change_model=lambda m: setattr(m, "norm", roots()))


def roots() -> nn.Module:
    """The last norm, dropout, and a root."""
    return nn.Sequential(nn.LayerNorm(32), nn.Dropout(0.1), SignedRoot())


class Cold(nn.Module):
    """Divides by a temperature that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Infinite when the temperature is 0."""
        return x / self.temperature


def tempered(seed: int) -> Program:
    """A temperature at the second block."""
    return tokens(seed, change_model=lambda m: setattr(m.blocks[1], "norm2", nn.Sequential(nn.LayerNorm(32), Cold())))


def tanh_inside(seed: int, **options: Any) -> Program:
    """With tanh, and a norm only where blocks begin."""
    return tokens(seed, act=nn.Tanh, **options)


def raw(p: Program) -> None:
    """Numbers as they were measured."""
    p.train, p.valid = ((200 * x + 700, y) for x, y in (p.train, p.valid))


def misroute(p: Program) -> None:
    """Every token likes the first expert best."""
    for block in p.model.blocks:
        nn.init.constant_(block.ffn.router.choose.bias, 0.0)
        block.ffn.router.choose.bias.data[0] = 30.0


def garble(p: Program, at: int) -> None:
    """One batch with targets of another task."""
    p.alter = lambda step, x, y: (x, (y + 5) % 12) if step == at else (x, y)


def head_norm(seed: int) -> Program:
    """Batch norm before the head."""

    def change(model: Any) -> None:
        nn.init.normal_(model.embedding.weight, 2.0, 3.0)
        model.norm = Last()

    return themes(seed, change_model=change)


class Last(nn.Module):
    """Batch norm of the last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(32)

    def forward(self, x: Tensor) -> Tensor:
        """Of ``[batch, place, width]``."""
        return self.batch_norm(x.transpose(1, 2)).transpose(1, 2)


def no_skips(p: Program) -> Program:
    """Six layers of attention alone."""
    return tokens(p.seed, depth=6, skip=False, ffn=False, norm=False)


CASES = [
    Case(
        "zero-temperature-late",
        "nonfinite",
        tempered,
        lambda p: setattr(p.model.blocks[1].norm2[1], "temperature", 0.0),
        layers=("blocks.1.norm2.1",),
        onset=60,
    ),
    Case(
        "nonfinite-backward",
        "nonfinite",
        rooted,
        lambda p: setattr(p.model.norm[2], "eps", 0.0),
        layers=("norm.2",),
    ),
    Case(
        "underflow",
        "underflow",
        lambda seed: tokens(
            seed, optimizer=adam(4e-3, eps=1e-14), program={"loss_scale": 1e-6, "autocast": torch.bfloat16}
        ),
        set_(autocast=torch.float16),
        cure=("grad_scaler", {}),
    ),
    Case(
        "exploding",
        "exploding_signal",
        lambda seed: tokens(seed, depth=4, norm=False, optimizer=adam(1e-3), steps=240),
        lambda p: weighty(p, 12.0, "ffn.0", "ffn.2"),
        cure=("reinit", {}),
    ),
    Case(
        "dead",
        "dead_units",
        lambda seed: tokens(seed, act=nn.ReLU),
        lambda p: bias(p.model.blocks[1].ffn[0], -12.0),
        layers=("blocks.1.ffn.0", "blocks.1.ffn.1"),
        cure=("reinit", {"layers": ["blocks.1.ffn.0"]}),
    ),
    Case(
        "saturated",
        "saturated_activation",
        tanh_inside,
        lambda p: weighty(p, 200.0, "blocks.0.ffn.0"),
        layers=("blocks.0.ffn.0", "blocks.0.ffn.1"),
        cure=("reinit", {"layers": ["blocks.0.ffn.0"]}),
    ),
    Case(
        "detached",
        "no_gradient",
        tokens,
        lambda p: setattr(p.model, "cut_after", 0),
        layers=("embedding", "", *(name for name in BLOCKS if name.startswith("blocks.0"))),
    ),
    Case(
        "head-not-in-optimizer",
        "no_update",
        tokens,
        lambda p: without(p, p.model.head),
        layers=("head",),
        cure=("add_to_optimizer", {"parameters": ["head.weight", "head.bias"]}),
    ),
    Case(
        "rebuilt-late",
        "no_update",
        tokens,
        lambda p: rebuilt(p, p.model.blocks[0].attention.out),
        layers=("blocks.0.attention.out",),
        onset=50,
        cure=("add_to_optimizer", {"parameters": ["blocks.0.attention.out.weight", "blocks.0.attention.out.bias"]}),
    ),
    Case("no-zero-grad", "stale_gradient", tokens, set_(zeroes_gradients=False), cure=("zero_grad", {})),
    Case("no-zero-grad-late", "stale_gradient", tokens, set_(zeroes_gradients=False), onset=60, cure=("zero_grad", {})),
    Case("rate-high", "step_too_large", tokens, rates(75), cure=("scale_lr", {"factor": 0.01})),
    Case("rate-high-late", "step_too_large", tokens, rates(200), onset=60, cure=("scale_lr", {"factor": 0.005})),
    Case("rate-low", "no_progress", tokens, rates(3e-4), cure=("scale_lr", {"factor": 3000})),
    Case("spike", "loss_spike", tokens, lambda p: garble(p, 110), onset=110),
    Case(
        "large-head",
        "bad_initial_loss",
        tokens,
        lambda p: weighty(p, 60.0, "head"),
        layers=("head",),
        cure=("reinit", {}),
    ),
    Case(
        "symmetric",
        "symmetric_units",
        tokens,
        constant,
        layers=tuple(name for name in BLOCKS if "norm" not in name),
        cure=("reinit", {}),
    ),
    Case(
        "raw-inputs",
        "input_scale",
        numbers,
        raw,
        cure=("standardise_input", {}),
    ),
    Case("overfitting", "overfitting", lambda seed: themes(seed, share=0.4, target=0.7), lambda p: few(p, 40)),
    Case("mixed-up-labels", "no_label_signal", lambda seed: themes(seed, count=800, steps=300), mixed_up),
    Case(
        "two-softmaxes",
        "output_loss_mismatch",
        tokens,
        lambda p: setattr(p.model, "after", nn.Softmax(-1)),
        layers=("head", "after"),
        cure=("drop_output_activation", {}),
    ),
    Case("no-skips", "rank_collapse", lambda seed: tokens(seed, depth=6), no_skips, synonyms=("vanishing_gradient",)),
    Case(
        "attention-collapse",
        "attention_collapse",
        lambda seed: tokens(seed, depth=2),
        lambda p: sharp(p, 14.0, [0, 1]),
        layers=tuple(name.format(block) for block in (0, 1) for name in ATTENTION),
        cure=("reinit", {}),
    ),
    Case(
        "attention-collapse-one",
        "attention_collapse",
        lambda seed: tokens(seed, depth=3),
        lambda p: sharp(p, 12.0, [1]),
        layers=tuple(name.format(1) for name in ATTENTION),
        cure=("reinit", {"layers": ["blocks.1.attention.qkv"]}),
    ),
    Case(
        "slow-statistics",
        "train_eval_mismatch",
        head_norm,
        lambda p: setattr(p.model.norm.batch_norm, "momentum", 1e-4),
        layers=("norm.batch_norm",),
    ),
    Case(
        "decay-high",
        "over_regularised",
        lambda seed: tokens(seed, optimizer=adamw(4e-3)),
        lambda p: decay(p, 15.0),
        cure=("scale_weight_decay", {"factor": 1e-3}),
    ),
    Case("batch-of-one", "gradient_noise", lambda seed: themes(seed, batch=128), set_(batch=1)),
    Case("sorted", "unrepresentative_batches", themes, sort, cure=("shuffle", {})),
    Case(
        "experts",
        "expert_collapse",
        lambda seed: tokens(seed, experts=True),
        misroute,
        layers=tuple(f"blocks.{block}.ffn{end}" for block in (0, 1) for end in ("", ".router", ".router.choose")),
        cure=("reinit", {}),
    ),
    Case(
        "experts-late",
        "expert_collapse",
        lambda seed: tokens(seed, experts=True, depth=1),
        misroute,
        layers=tuple(f"blocks.0.ffn{end}" for end in ("", ".router", ".router.choose")),
        onset=60,
        cure=("reinit", {}),
    ),
]
CASES = [Case(**{**vars(case), "family": "Transformer", "name": f"transformer-{case.name}"}) for case in CASES]
