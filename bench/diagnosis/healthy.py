"""Programs in which nothing is wrong, however some of them look."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from . import data
from .case import Healthy, adam, adamw, sgd, tokens, vectors
from .mlp import curves
from .models import mlp
from .program import Program, accuracy, binary, explained
from .transformer import numbers, themes

# rates of learning


def warm_up(steps: int) -> Callable[[int], float]:
    """Rises from nearly 0."""
    return lambda step: min((step + 1) / steps, 1.0)


def cosine(steps: int) -> Callable[[int], float]:
    """Falls to 0."""
    return lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))


def cyclic(period: int) -> Callable[[int], float]:
    """Rises tenfold and falls, again and again."""
    return lambda step: 0.1 + 0.9 * abs((step % period) / period * 2 - 1)


def one_cycle(steps: int) -> Callable[[int], float]:
    """Rises for a third of the run, and falls to nearly nothing."""
    return lambda step: 0.04 + 0.96 * (3 * step / steps if step < steps / 3 else 1.5 * (1 - step / steps))


# models


class Lora(nn.Module):
    """A frozen layer with a small correction that starts at 0."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Frozen plus learned."""
        return self.base(x) + self.b(self.a(x))


class Residual(nn.Module):
    """A branch that adds nothing at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = mlp((width, width, width))
        nn.init.zeros_(self.branch[2].weight)
        nn.init.zeros_(self.branch[2].bias)

    def forward(self, x: Tensor) -> Tensor:
        """The way around, and the branch."""
        return x + self.branch(x)


class TwoHeads(nn.Module):
    """The second head is for later: nothing calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.later = mlp((20, 64, 64)), nn.Linear(64, 10), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Of the first head."""
        return self.head(self.body(x).relu())


class TiedAutoencoder(nn.Module):
    """Back through the transposed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.shift = nn.Linear(20, 12), nn.Parameter(torch.zeros(20))

    def forward(self, x: Tensor) -> Tensor:
        """As it went in, more or less."""
        return functional.linear(self.encode(x), self.encode.weight.t(), self.shift)


class Reads(nn.Module):
    """A GRU that reads a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru, self.head = nn.Embedding(20, 16), nn.GRU(16, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Of the mean over places."""
        return self.head(self.gru(self.embedding(x))[0].mean(1))


class PolicyLoss(nn.Module):
    """Acts by chance, and reinforces what was rewarded: a loss that is mostly noise."""

    def forward(self, logits: Tensor, right: Tensor) -> Tensor:
        """Of the logits of actions and the action that is rewarded."""
        chances = torch.distributions.Categorical(logits=logits)
        action = chances.sample()
        reward = (action == right).float()
        return -(chances.log_prob(action) * (reward - reward.mean())).mean()


class Gan(nn.Module):
    """Two networks that play against each other."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = mlp((4, 32, 32, 2)), mlp((2, 32, 32, 1), partial(nn.LeakyReLU, 0.2))

    def forward(self, x: Tensor) -> Tensor:
        """What the critic thinks."""
        return self.critic(x)


class Logs(nn.Module):
    """Divergence of shares from known shares, as in distillation."""

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        """Of logits and shares."""
        return functional.kl_div(logits.log_softmax(-1), y, reduction="batchmean")


# programs


def freeze(layer: int) -> Callable[[Any], None]:
    """Freezes a layer before the optimizer is made."""
    return lambda model: model[layer].requires_grad_(False) and None


def thaw(p: Program) -> None:
    """The frozen layer is trained from now on."""
    p.model[0].requires_grad_(True)
    p.optimizers[0].add_param_group({"params": list(p.model[0].parameters())})


def biased(model: Any) -> None:
    """Biases below 0, so that many outputs of ReLUs are 0, but no unit always."""
    for layer in model[:-1:2]:
        nn.init.constant_(layer.bias, -0.25)


def zero_head(model: Any) -> None:
    """All classes are alike at first."""
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)


def add_sigmoid(model: Any) -> None:
    """Answers between 0 and 1."""
    model.append(nn.Sigmoid())


def gan(seed: int) -> Program:
    """Learns a cloud of points."""
    torch.manual_seed(seed)
    model, real = Gan(), torch.randn(2048, 2) * torch.tensor([1.0, 0.5]) + torch.tensor([1.0, -1.0])
    optimizers = [adam(2e-3, betas=(0.5, 0.99))(part.parameters()) for part in (model.generator, model.critic)]

    def play(p: Program, number: int, x: Tensor, y: Tensor) -> None:
        made = model.generator(torch.randn(len(x), 4))
        optimizers[1].zero_grad()
        wrong = torch.zeros_like(y)
        (p.loss_fn(model.critic(x), y) + p.loss_fn(model.critic(made.detach()), wrong)).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        p.loss_fn(model.critic(made), y).backward()
        optimizers[0].step()

    def alike(outputs: Tensor, y: Tensor) -> float:
        made = model.generator(torch.randn(1000, 4, generator=torch.Generator().manual_seed(seed)))
        return 1 - float((made.mean(0) - real.mean(0)).abs().mean() + (made.std(0) - real.std(0)).abs().mean())

    train, valid = data.split((real, torch.ones(2048, 1)))
    loss = nn.BCEWithLogitsLoss()
    options = {"steps": 400, "batch": 128, "schedule": cosine(400)}
    return Program(model, optimizers, loss, train, valid, alike, 0.3, seed, step=play, **options)


def parity(seed: int) -> Program:
    """Nothing happens for long, then it is understood: whether an even number of three signs is positive."""
    x = torch.randn(2048, 10, generator=torch.Generator().manual_seed(seed)).sign()
    y = (x[:, :3].prod(1, keepdim=True) > 0).float()
    return halves(seed, (10, 64, 64, 1), made=(x, y), optimizer=adam(1e-3), steps=400)


def halves(seed: int, widths: Iterable[int] = (20, 32, 32, 1), **options: Any) -> Program:
    """Yes or no."""
    options = {"made": data.halves(seed), "loss": nn.BCEWithLogitsLoss(), "score": binary(0.0)} | options
    return vectors(seed, tuple(widths), **options)


def heavy_tails(seed: int) -> Program:
    """Some targets are far off, in training only."""
    p = curves(seed, loss=nn.L1Loss())
    x, y = p.train
    p.train = (x, y + 0.1 * torch.distributions.StudentT(1.5).sample(y.shape))
    return p


def copies(seed: int, model: nn.Module | None = None, **options: Any) -> Program:
    """Autoencoders; the data have few directions."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2048, 5, generator=g) @ torch.randn(5, 20, generator=g) / 5**0.5
    torch.manual_seed(seed)
    options = {"loss": nn.MSELoss(), "score": explained, "optimizer": adam(5e-3), "target": 0.8} | options
    return vectors(seed, (20, 32, 8, 32, 20), model=model and model(), made=(x, x.clone()), **options)


def scaled_targets(seed: int) -> Program:
    """Prices of a hundred thousand, standardised."""
    x, y = data.curve(seed)
    y = 3e5 + 1e5 * y
    return curves(seed, made=(x, (y - y.mean()) / y.std()))


def mixup(p: Program) -> Program:
    """Trains with mixtures of two samples."""

    def mix(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        share, soft = 0.8, functional.one_hot(y, 10).float()
        return share * x + (1 - share) * x.flip(0), share * soft + (1 - share) * soft.flip(0)

    p.alter = mix
    return p


def distilled(seed: int) -> Program:
    """Learns the shares that another model has."""
    x, y = data.clusters(seed)
    shares = functional.one_hot(y, 10) * 0.8 + 0.02
    return vectors(seed, made=(x, shares), loss=Logs(), score=lambda o, t: accuracy(o, t.argmax(-1)))


def flat(seed: int, **options: Any) -> Program:
    """Pictures as vectors."""
    x, y = data.images(seed)
    return vectors(seed, (144, 64, 10), made=(x.flatten(1), y), **options)


def seen(seed: int) -> Program:
    """A small convolutional network with batch norm."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10)]
    return vectors(seed, model=nn.Sequential(*layers), made=data.images(seed), steps=120, batch=32)


def read(seed: int) -> Program:
    """A recurrent network."""
    torch.manual_seed(seed)
    return vectors(seed, model=Reads(), made=data.themes(seed), optimizer=adam(6e-3), target=0.85, batch=32, steps=160)


def built(seed: int, make: Callable[[], nn.Module], **options: Any) -> Program:
    """A model that starts from the seed, too."""
    torch.manual_seed(seed)
    return vectors(seed, model=make(), **options)


def lora() -> nn.Module:
    """Frozen layers with corrections, and a new head."""
    base = mlp((20, 64, 64))
    return nn.Sequential(Lora(base[0]), nn.ReLU(), Lora(base[2]), nn.ReLU(), nn.Linear(64, 10))


def two_optimizers(parameters: Iterable[nn.Parameter]) -> list[Optimizer]:
    """One for weights, one for biases."""
    known = list(parameters)
    return [adam()([p for p in known if p.dim() > 1]), sgd(0.05)([p for p in known if p.dim() == 1])]


def chains(seed: int, **options: Any) -> Program:
    """A language model."""
    return tokens(seed, made=data.chains(seed), causal=True, target=0.85, **options)


def scaled(seed: int) -> Program:
    """Half precision with a loss scaler."""
    return vectors(seed, autocast=torch.float16, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0), steps=160)


def thawed(seed: int) -> Program:
    """Frozen for the first third."""
    p = vectors(seed, (20, 64, 64, 10), change_model=freeze(0))
    p.changes.append((80, thaw))
    return p


def few_samples(seed: int) -> Program:
    """So few that a validation set is hardly one, and a network that cannot learn them by heart."""
    return halves(seed, (20, 3, 1), made=data.halves(seed, 96), optimizer=adamw(0.01, 0.1), steps=120)


PROGRAMS: dict[str, Callable[[int], Program]] = {
    # optimizers
    "adam": vectors,
    "adamw": partial(vectors, optimizer=adamw(2e-3, 0.05)),
    "sgd": partial(vectors, optimizer=sgd(0.1)),
    "momentum": partial(vectors, optimizer=sgd(0.05, 0.9)),
    "rmsprop": partial(vectors, optimizer=partial(torch.optim.RMSprop, lr=1e-3)),
    "two-optimizers": partial(vectors, optimizer=two_optimizers),
    "weight-decay": partial(vectors, widths=(20, 24, 24, 10), optimizer=sgd(0.1, 0.9, weight_decay=3e-3)),
    # shapes
    "wide": partial(vectors, widths=(20, 256, 256, 10), optimizer=adam(1e-3), steps=160),
    "deep-batch-norm": partial(vectors, widths=(20, *[48] * 8, 10), norm=nn.BatchNorm1d),
    "deep-layer-norm": partial(vectors, widths=(20, *[48] * 6, 10), norm=nn.LayerNorm),
    "residual": partial(
        built, make=lambda: nn.Sequential(nn.Linear(20, 48), *(Residual(48) for _ in range(5)), nn.Linear(48, 10))
    ),
    "tanh": partial(vectors, widths=(20, 64, 64, 10), act=nn.Tanh),
    "sigmoid": partial(vectors, widths=(20, 64, 10), act=nn.Sigmoid, optimizer=adam(0.01)),
    "elu": partial(vectors, act=nn.ELU, optimizer=sgd(0.05, 0.9)),
    "sparse-relus": partial(vectors, change_model=biased),
    "zero-head": partial(vectors, change_model=zero_head),
    "batch-norm-sgd": partial(vectors, norm=nn.BatchNorm1d, optimizer=sgd(0.1, 0.9)),
    # batches
    "batch-of-1": partial(halves, widths=(20, 32, 1), batch=1, optimizer=sgd(0.02), steps=700),
    "batch-of-8": partial(vectors, batch=8, optimizer=adam(1e-3), steps=400),
    "full-batch": partial(vectors, batch=10**6, optimizer=adam(4e-3), steps=150),
    "edge-of-stability": partial(curves, act=nn.Tanh, optimizer=sgd(0.2), batch=10**6),
    "accumulation": partial(vectors, accumulate=4),
    "tiny-data": few_samples,
    # losses
    "mse": curves,
    "l1": partial(curves, loss=nn.L1Loss()),
    "huber": partial(curves, loss=nn.HuberLoss()),
    "heavy-tails": heavy_tails,
    "bce-logits": halves,
    "bce-sigmoid": partial(halves, loss=nn.BCELoss(), score=binary(0.5), change_model=add_sigmoid),
    "nll": partial(built, make=lambda: mlp((20, 64, 10)).append(nn.LogSoftmax(-1)), loss=nn.NLLLoss()),
    "label-smoothing": partial(vectors, loss=nn.CrossEntropyLoss(label_smoothing=0.2)),
    "distillation": distilled,
    "standardised-targets": scaled_targets,
    # schedules
    "warm-up": partial(vectors, schedule=warm_up(60)),
    "cosine": partial(vectors, schedule=cosine(240)),
    "cyclic": partial(vectors, optimizer=sgd(0.2, 0.9), schedule=cyclic(60)),
    "one-cycle": partial(vectors, optimizer=adam(8e-3), schedule=one_cycle(240)),
    # what looks odd
    "frozen": partial(vectors, widths=(20, 64, 64, 64, 10), change_model=freeze(0)),
    "frozen-then-not": thawed,
    "lora": partial(built, make=lora, optimizer=adam(5e-3)),
    "unused-head": partial(built, make=TwoHeads),
    "dropout": partial(vectors, widths=(20, 128, 128, 10), dropout=0.5, optimizer=adam(3e-3)),
    "clipped": partial(vectors, max_norm=0.5, optimizer=sgd(0.2, 0.9)),
    "plateau-then-drop": parity,
    "policy": partial(vectors, widths=(20, 64, 10), loss=PolicyLoss(), optimizer=adam(5e-3), batch=128, target=0.8),
    "gan": gan,
    "autoencoder": copies,
    "tied-autoencoder": partial(copies, model=TiedAutoencoder),
    "mixup": lambda seed: mixup(vectors(seed)),
    "loss-scaler": scaled,
    "grey-pictures": flat,
    # other families
    "convolutions": seen,
    "recurrent": read,
    "transformer": tokens,
    "transformer-post-norm": partial(tokens, pre=False, optimizer=adam(2e-3), program={"schedule": warm_up(40)}),
    "transformer-language": chains,
    "transformer-tied": partial(chains, tied=True),
    "transformer-experts": partial(tokens, experts=True, depth=1),
    "transformer-numbers": numbers,
    "transformer-themes": partial(themes, optimizer=adamw(3e-3, 0.1)),
}


CASES = [Healthy(name, base) for name, base in PROGRAMS.items()]
