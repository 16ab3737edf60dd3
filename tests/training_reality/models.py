"""Small models, each with one trait that training code has."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, HIDDEN, CLASSES = 4, 6, 2


def mlp(inplace=False):
    return nn.Sequential(
        *(nn.Linear(WIDTH, HIDDEN), nn.ReLU(inplace), nn.Linear(HIDDEN, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    )


def half():
    return mlp().bfloat16()


def smooth():
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))


class Block(nn.Module):
    """Compiled in place it becomes a graph, which a Sequential does not."""

    def __init__(self, width):
        super().__init__()
        self.linear, self.act = nn.Linear(WIDTH, width), nn.Tanh()

    def forward(self, x):
        return self.act(self.linear(x))


def blocks():
    return nn.Sequential(*(Block(width) for width in (WIDTH, WIDTH, WIDTH, CLASSES)))


def convolution():
    layers = nn.Conv1d(1, 3, 2, bias=False), nn.BatchNorm1d(3), nn.ReLU(), nn.Flatten(), nn.Linear(9, CLASSES)
    return nn.Sequential(nn.Unflatten(1, (1, WIDTH)), *layers)


class Router(nn.Module):
    """Sends each sample to two experts."""

    def __init__(self, width, experts):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, width))
        nn.init.normal_(self.weight)

    def forward(self, x):
        scores = nn.functional.linear(x, self.weight)
        return scores, scores.topk(2).indices


class Experts(nn.Module):
    """A mixture of linear experts."""

    def __init__(self, width, experts=4):
        super().__init__()
        self.router, self.experts = Router(width, experts), nn.Linear(width, experts * width)

    def forward(self, x):
        scores, indices = self.router(x)
        every = self.experts(x).unflatten(1, (scores.shape[1], -1))
        chosen = every.gather(1, indices[..., None].expand(-1, -1, x.shape[1]))
        return (scores.gather(1, indices).softmax(1)[..., None] * chosen).sum(1)


def mixture():
    first = nn.Sequential(nn.Linear(WIDTH, HIDDEN, bias=False), nn.BatchNorm1d(HIDDEN))
    return nn.Sequential(first, Experts(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


class Tied(nn.Module):
    """The first and the last layer share one weight."""

    def __init__(self):
        super().__init__()
        self.enter, self.act, self.leave = nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
        self.leave.weight = self.enter.weight

    def forward(self, x):
        return self.leave(self.act(self.enter(x)))[:, :CLASSES]


class CalledTwice(nn.Module):
    """One layer is used two times in a pass, another never."""

    def __init__(self):
        super().__init__()
        self.again, self.act, self.head = nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)
        self.never = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())

    def forward(self, x):
        return self.head(self.act(self.again(self.act(self.again(x)))))


class TwoNames(nn.Module):
    """One module stands in two places."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.again, self.head = self.enter, nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.again(self.enter(x)))


class Sparse(nn.Module):
    """An embedding whose gradient is a sparse tensor."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, HIDDEN, sparse=True)
        self.act, self.head = nn.Tanh(), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        return self.head(self.act(self.embedding((x.abs() * 3).long().clamp(max=9)).sum(1)))


class Checkpointed(nn.Sequential):
    """All but the first and the last layer are computed again in backward.

    Args:
        checkpointing: None, or whether it is the reentrant kind.
        model: whose layers these are.
    """

    def __init__(self, checkpointing, model=mlp):
        super().__init__(*model())
        self.checkpointing = checkpointing

    def forward(self, x):
        x = self[0](x)
        plain = self.checkpointing is None
        return self[-1](self.middle(x) if plain else checkpoint(self.middle, x, use_reentrant=self.checkpointing))

    def middle(self, x):
        for layer in list(self)[1:-1]:
            x = layer(x)
        return x


class Recurrent(nn.Module):
    """A recurrent layer over three moments; its output is a tuple."""

    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = kind(WIDTH, HIDDEN, batch_first=True), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        states, _ = self.rnn(sequence(x))
        return self.head(states[:, -1])


class Attention(nn.Module):
    """Attention by torch's own module, which returns a tuple and never calls its last layer as a module."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.act, self.head = nn.GELU(), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = sequence(x)
        return self.head(self.act(self.attention(x, x, x)[0][:, -1]))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, HIDDEN, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.encoder(sequence(x))[:, -1])


class Player(nn.Sequential):
    """Compiled in place it becomes a graph."""

    def forward(self, x):
        return super().forward(x)


class Gan(nn.Module):
    """Two models in one; their parent is never called."""

    def __init__(self):
        super().__init__()
        self.generator = Player(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
        self.critic = Player(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))


def lazy():
    return nn.Sequential(nn.LazyLinear(HIDDEN), nn.ReLU(), nn.LazyLinear(CLASSES))


def weight_normed():
    model = mlp()
    nn.utils.parametrizations.weight_norm(model[0])
    return model


def sequence(x):
    """Three moments made of one."""
    return torch.stack([x, x * 0.5, x.flip(1)], dim=1)
