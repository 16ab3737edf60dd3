"""Where the channels of an activation are."""

import pytest
import torch
from torch import nn

from monitorch.gatherer.channel_layout import ChannelLayout


class Attention(nn.MultiheadAttention):
    """One input, one output."""

    def forward(self, x):
        return super().forward(x, x, x)[0]


def watched(*modules, names=("act",)):
    layout = ChannelLayout()
    for name in names:
        layout.expect(name)
    for module in modules:
        layout.watch(module)
    return layout


@pytest.mark.parametrize(
    ("module", "x", "last"),
    [
        (nn.Conv1d(4, 4, 1), torch.ones(2, 4, 5), False),
        (nn.ConvTranspose2d(4, 4, 1), torch.ones(2, 4, 5, 5), False),
        (nn.BatchNorm2d(4), torch.ones(2, 4, 5, 5), False),
        (nn.InstanceNorm1d(4, affine=True), torch.ones(2, 4, 5), False),
        (nn.GroupNorm(2, 4), torch.ones(2, 4, 5), False),
        (nn.Linear(4, 4), torch.ones(2, 5, 4), True),
        (nn.LayerNorm(4), torch.ones(2, 5, 4), True),
        (nn.RMSNorm(4), torch.ones(2, 5, 4), True),
        (nn.Embedding(9, 4), torch.ones(2, 5, dtype=torch.long), True),
        (Attention(4, 2, batch_first=True), torch.ones(2, 5, 4), True),
        (nn.GRU(4, 4, batch_first=True), torch.ones(2, 5, 4), True),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, nn.Module) else "",
)
def test_the_weighted_layer_before_decides(module, x, last, count_hooks):
    # the other kind runs first: what ran last is what counts
    other = nn.Conv1d(1, 1, 1) if last else nn.Linear(1, 1)
    layout = watched(module, other)
    other(torch.ones(1, 1, 1))
    module(x)
    assert layout("act") is last
    assert count_hooks(module, other) == 0


def test_channels_are_dimension_1_where_nothing_weighted_ran():
    assert watched()("act") is False


class Scale(nn.Module):
    """Weights of its own, and no class that anybody knows; may hold a layer that runs first."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner, self.factor = inner, nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.factor * (x if self.inner is None else self.inner(x))


class Odd(Scale):
    """Its output raises when it is looked into."""

    class Output(dict):
        def values(self):
            raise ValueError("nobody looks into this")

    def forward(self, x):
        return self.Output(x=super().forward(x))


@pytest.mark.parametrize(
    ("before", "module", "x", "last"),
    [
        (nn.Conv2d(4, 4, 1), Scale(), torch.ones(2, 4, 5, 5), False),
        (nn.Linear(4, 4), Scale(), torch.ones(2, 5, 5, 4), True),
        (nn.Linear(4, 4), Scale(nn.Conv2d(4, 4, 1)), torch.ones(2, 4, 5, 4), False),
        (nn.Conv1d(4, 4, 1), Scale(), torch.ones(2, 4, 4), True),
        (nn.Conv1d(4, 4, 1), nn.PReLU(4), torch.ones(2, 4, 4), False),
        (nn.Conv2d(4, 4, 1), Odd(), torch.ones(2, 4, 5, 5), False),
        (nn.ReLU(), Scale(), torch.ones(2, 4, 5, 5), False),
        (nn.ReLU(), Scale(), torch.ones(2, 4), True),
    ],
)
def test_other_modules_with_weights_leave_images_as_they_were(before, module, x, last):
    layout = watched(before, *module.modules())
    before(x)
    module(x)
    assert layout("act") is last


@pytest.mark.parametrize(
    "module", [nn.ReLU(), nn.PReLU(), nn.MaxPool2d(2), nn.BatchNorm1d(3, affine=False), nn.Sequential()]
)
def test_modules_without_weights_of_their_own_are_not_watched(module, count_hooks):
    watched(module)
    assert count_hooks(module) == 0


def test_decision_is_fixed_and_hooks_go_with_the_last_one(count_hooks):
    lin, conv = nn.Linear(4, 4), nn.Conv1d(4, 4, 1)
    layout = watched(lin, conv, names=["first", "second"])
    lin(torch.ones(2, 4))
    assert layout("first") is True
    assert count_hooks(lin, conv) == 2
    conv(torch.ones(2, 4, 4))
    assert layout("first") is True
    assert layout("second") is False
    assert count_hooks(lin, conv) == 0
    lin(torch.ones(2, 4))
    assert layout("second") is False


def test_watching_a_shared_module_twice_hooks_it_once(count_hooks):
    lin = nn.Linear(1, 1)
    watched(lin, lin)
    assert count_hooks(lin) == 1


def test_detach_forgets_decisions_and_removes_hooks(count_hooks):
    lin = nn.Linear(4, 4)
    layout = watched(lin)
    lin(torch.ones(2, 4))
    layout.detach()
    assert count_hooks(lin) == 0
    assert layout("act") is False
