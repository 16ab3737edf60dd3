"""Healthy models of many kinds, each with a batch, a loss and an optimizer."""

import math
from itertools import pairwise
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

SIZE = 32
"""Samples in a batch."""


def classes(inputs, count=4):
    """Labels that can be learned: which of some random directions an input points to."""
    flat = inputs.reshape(len(inputs), -1).float()
    return (flat @ torch.randn(flat.shape[1], count)).argmax(1)


class Case(SimpleNamespace):
    """A model, with all that it is trained with."""

    def __init__(self, model, inputs, targets, loss_fn=F.cross_entropy, optimizer=torch.optim.Adam, **options):
        trained = [own for own in model.parameters() if own.requires_grad]
        optimizer = optimizer and optimizer(trained, **options)
        super().__init__(model=model, batch=(inputs, targets), loss_fn=loss_fn, optimizer=optimizer)

    @property
    def all(self):
        return self.model, self.batch, self.loss_fn, self.optimizer


def layers(*sizes, activation=nn.ReLU):
    parts = []
    for before, after in pairwise(sizes):
        parts += [nn.Linear(before, after), activation()]
    return nn.Sequential(*parts[:-1])


def mlp(size=SIZE):
    x = torch.randn(size, 20)
    return Case(layers(20, 64, 64, 4), x, classes(x), nn.CrossEntropyLoss())


def regression():
    x = torch.randn(SIZE, 20)
    return Case(layers(20, 64, 64, 1), x, x[:, :1] * 2 - x[:, 1:2], nn.MSELoss(), torch.optim.SGD, lr=0.05)


def binary():
    x = torch.randn(SIZE, 20)
    return Case(layers(20, 32, 1), x, (x[:, :1] > 0).float(), nn.BCEWithLogitsLoss())


def sigmoid_head():
    x = torch.randn(SIZE, 20)
    return Case(nn.Sequential(layers(20, 32, 1), nn.Sigmoid()), x, (x[:, :1] > 0).float(), nn.BCELoss())


def log_softmax():
    x = torch.randn(SIZE, 20)
    return Case(nn.Sequential(layers(20, 32, 4), nn.LogSoftmax(1)), x, classes(x), nn.NLLLoss())


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.again = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.head = nn.Linear(16 * 16, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.head(F.relu(self.again(self.second(x))).flatten(1))


def convolutional():
    x = torch.randn(SIZE, 3, 8, 8)
    return Case(Convolutional(), x, classes(x), optimizer=torch.optim.SGD, lr=0.05, momentum=0.9)


class Recurrent(nn.Module):
    def __init__(self, batch_first=True):
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 24, num_layers=2, dropout=0.2, batch_first=batch_first), nn.Linear(24, 4)
        self.batch_first = batch_first

    def forward(self, x):
        states, _ = self.lstm(x)
        return self.head(states[:, -1] if self.batch_first else states)


def recurrent():
    x = torch.randn(SIZE, 12, 5)
    return Case(Recurrent(), x, classes(x), lr=0.01)


def time_first():
    """The first dimension is time, and what comes later depends on what came before."""
    x = torch.randn(10, SIZE, 5)
    targets = classes(x.reshape(-1, 5)).reshape(10, SIZE)
    return Case(Recurrent(batch_first=False), x, targets, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()))


class Transformer(nn.Module):
    """Pre-norm, with tied embeddings."""

    def __init__(self, words=50, width=32, depth=2, is_tied=True):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        block = {"dim_feedforward": 4 * width, "dropout": 0.1, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, **block) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        for own in (self.words, self.places, self.head):
            nn.init.normal_(own.weight, std=0.02)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x)).transpose(1, 2)


def transformer():
    ids = torch.randint(0, 40, (8, 13))  # ten words are never used
    return Case(Transformer(), ids[:, :-1], ids[:, 1:], optimizer=torch.optim.AdamW, lr=1e-3)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(x + self.inner(x, x, x, need_weights=False)[0]).mean(1)


def attention():
    x = torch.randn(SIZE, 6, 16)
    return Case(Attention(), x, classes(x), lr=0.01)


def autoencoder():
    x = torch.rand(SIZE, 1, 8, 8)
    model = nn.Sequential(nn.Flatten(), layers(64, 32, 8, 32, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8)))
    return Case(model, x, x, nn.MSELoss(), lr=0.01)


class LowRank(nn.Module):
    """A frozen layer, and a change of low rank that begins at 0."""

    def __init__(self, width):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(4, width) / math.sqrt(width)), nn.Parameter(torch.zeros(width, 4))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def low_rank():
    x = torch.randn(SIZE, 24)
    return Case(nn.Sequential(LowRank(24), nn.GELU(), LowRank(24), nn.GELU(), nn.Linear(24, 4)), x, classes(x))


class Residual(nn.Module):
    """Branches that begin at 0."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.inner, self.out = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x):
        return x + self.out(F.gelu(self.inner(self.norm(x))))


def residual():
    x = torch.randn(SIZE, 24)
    model = nn.Sequential(nn.Linear(24, 24), *(Residual(24) for _ in range(6)), nn.Linear(24, 4))
    nn.init.zeros_(model[-1].weight)
    return Case(model, x, classes(x), lr=3e-3)


class Modulated(nn.Module):
    """As in diffusion transformers: scale, shift and the last layer begin at 0."""

    def __init__(self, width=16):
        super().__init__()
        self.condition, self.modulate = nn.Linear(3, width), nn.Linear(width, 3 * width)
        self.norm, self.inner, self.last = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        for own in (self.modulate, self.last):
            nn.init.zeros_(own.weight)
            nn.init.zeros_(own.bias)

    def forward(self, x, condition):
        scale, shift, gate = self.modulate(F.silu(self.condition(condition))).chunk(3, -1)
        return self.last(x + gate * self.inner(self.norm(x) * (1 + scale) + shift))


def modulated():
    x, condition = torch.randn(SIZE, 16), torch.randn(SIZE, 3)
    return Case(Modulated(), (x, condition), x * condition.sum(1, keepdim=True), nn.MSELoss(), lr=0.01)


def dropout():
    x = torch.randn(SIZE, 20)
    model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Dropout(0.8), nn.Linear(128, 4))
    return Case(model, x, classes(x), nn.CrossEntropyLoss(label_smoothing=0.1), lr=0.01)


def frozen():
    x = torch.randn(SIZE, 20)
    model = layers(20, 64, 64, 4)
    model[0].requires_grad_(False)
    return Case(model, x, classes(x), lr=0.01)


class TwoHeads(nn.Module):
    """Both heads run; the loss looks at one of them."""

    def __init__(self):
        super().__init__()
        self.body, self.used, self.unused = nn.Linear(20, 32), nn.Linear(32, 4), nn.Linear(32, 7)

    def forward(self, x):
        h = self.body(x).relu()
        return self.used(h), self.unused(h)


def two_heads():
    x = torch.randn(SIZE, 20)
    return Case(TwoHeads(), x, classes(x), lambda output, target: F.cross_entropy(output[0], target), lr=0.01)


class WithLoss(nn.Module):
    """Computes its own loss, for the next word."""

    def __init__(self):
        super().__init__()
        self.inner = Transformer(is_tied=False)

    def forward(self, input_ids, labels):
        logits = self.inner(input_ids).transpose(1, 2)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss, logits=logits)


def with_loss():
    ids = torch.randint(0, 50, (8, 12))
    case = Case(WithLoss(), None, None, None, torch.optim.AdamW)
    case.batch = {"input_ids": ids, "labels": ids}
    return case


class Pairs(nn.Module):
    """Compares every image with every text: a row and a column for each sample."""

    def __init__(self):
        super().__init__()
        self.images, self.texts = nn.Linear(12, 16), nn.Linear(7, 16)

    def forward(self, images, texts):
        return F.normalize(self.images(images), dim=1) @ F.normalize(self.texts(texts), dim=1).T / 0.1


def pairs():
    x = torch.randn(SIZE, 12)
    return Case(Pairs(), (x, x[:, :7] + torch.randn(SIZE, 7)), torch.arange(SIZE), lr=0.01)


class Scaled(nn.Module):
    """Takes pixels from 0 to 255, and scales them itself."""

    def __init__(self):
        super().__init__()
        self.inner = Convolutional()

    def forward(self, x):
        return self.inner((x.float() / 255 - 0.5) / 0.25)


def scaled_inside():
    x = torch.randint(0, 256, (SIZE, 3, 8, 8)).float()
    return Case(Scaled(), x, classes(x - 128))


def flat_images():
    """Pixels at the border are nearly always 0."""
    x = torch.rand(SIZE, 64)
    x[:, :20] = 0
    x[0, :20] = 0.004
    return Case(layers(64, 32, 4), x, classes(x), lr=0.01)


def warm_up():
    case = mlp()
    torch.optim.lr_scheduler.LambdaLR(case.optimizer, lambda step: min(1.0, step / 1000))
    return case


def slow():
    """Plain gradient descent with a small rate: slow, but it learns."""
    x = torch.randn(SIZE, 20)
    return Case(layers(20, 64, 64, 4), x, classes(x), nn.CrossEntropyLoss(), torch.optim.SGD, lr=1e-3)


class Scales(nn.Module):
    """Branches that begin a million times smaller than they are."""

    def __init__(self, width, depth):
        super().__init__()
        self.stem, self.head = nn.Linear(width, width), nn.Linear(width, 4)
        self.blocks = nn.ModuleList(layers(width, 2 * width, width, activation=nn.GELU) for _ in range(depth))
        self.scales = nn.ParameterList(torch.full((width,), 1e-6) for _ in range(depth))

    def forward(self, x):
        x = self.stem(x)
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = x + scale * block(F.layer_norm(x, x.shape[1:]))
        return self.head(x)


def layer_scale():
    x = torch.randn(SIZE, 24)
    return Case(Scales(24, 6), x, classes(x))


def fitted():
    """Trained before: its loss is near 0, and need not fall."""
    case = mlp()
    for _ in range(300):
        case.optimizer.zero_grad()
        case.loss_fn(case.model(case.batch[0]), case.batch[1]).backward()
        case.optimizer.step()
    return case


def one_sample():
    return mlp(size=1)


def weight_norm():
    x = torch.randn(SIZE, 20)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(20, 32)), nn.Tanh(), nn.Linear(32, 4))
    return Case(model, x, classes(x), lr=0.01)


HEALTHY = {
    make.__name__: make
    for make in (
        *(mlp, regression, binary, sigmoid_head, log_softmax, convolutional, recurrent, time_first, transformer),
        *(attention, autoencoder, low_rank, residual, modulated, dropout, frozen, two_heads, with_loss, pairs),
        *(scaled_inside, flat_images, warm_up, slow, layer_scale, fitted, one_sample, weight_norm),
    )
}
