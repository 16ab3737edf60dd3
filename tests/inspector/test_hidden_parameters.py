"""Tensors that torch does not know, and whether something else trains them."""

import pytest
import torch
from torch import nn

from monitorch.inspector.hidden_parameters import MOST_ITEMS, HiddenParameters, hidden_parameters


class Model(nn.Module):
    """Everything that can be hidden, and what only looks like it."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = [nn.Linear(4, 4, bias=False) for _ in range(2)]
        self.heads = {"a": (nn.Linear(4, 4, bias=False),)}
        self.scale = torch.ones(4, requires_grad=True)
        self.shifts = [nn.Parameter(torch.zeros(4))]
        self.rnn = nn.LSTM(4, 4)  # keeps its weights in a list, too
        self.tied = [self.stem.weight]
        self.words, self.samples = ["a", None, 1], [torch.ones(1)] * 3
        self.frozen = [nn.Linear(4, 4).requires_grad_(False), torch.ones(1)]
        self.computed = self.stem.weight * 2
        self.data = [nn.Parameter(torch.zeros(1))] * (MOST_ITEMS + 1)
        object.__setattr__(self, "teacher", nn.Linear(4, 4))  # hidden on purpose

    def forward(self, x):
        for layer in (self.stem, *self.blocks, *self.heads["a"]):
            x = layer(x)
        return x * self.scale + self.shifts[0] + self.teacher(x).detach()


HIDDEN = ["blocks.0.weight", "blocks.1.weight", "heads.a.0.weight", "scale", "shifts.0"]


def test_what_torch_does_not_know():
    assert list(hidden_parameters(Model())) == HIDDEN
    assert list(hidden_parameters(nn.Sequential(nn.ReLU(), Model()))) == [f"1.{name}" for name in HIDDEN]
    assert hidden_parameters(nn.Linear(2, 2)) == {}


def train(model, *, others=None, steps=3, **clear):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if others is not None:
            others.step()
            others.zero_grad(**clear)


def test_those_that_nothing_trains_are_left_behind():
    model = Model()
    train(model, steps=1)
    hidden = HiddenParameters(model)
    assert hidden.left_behind() == []  # not known yet
    train(model)
    assert hidden.left_behind() == HIDDEN


@pytest.mark.parametrize(("fused", "clear"), [(True, True), (False, True), (False, False)])
def test_those_that_something_else_trains_are_not(fused, clear):
    model = Model()
    others = torch.optim.Adam(list(hidden_parameters(model).values()), fused=fused)
    train(model, others=others, steps=1, set_to_none=clear)
    hidden = HiddenParameters(model)
    train(model, others=others, set_to_none=clear)
    assert hidden.left_behind() == []


def test_those_without_gradients_or_no_longer_there_are_not():
    model = Model()
    hidden = HiddenParameters(model)
    assert hidden.left_behind() == []
    train(model)
    del model.blocks[1:], model.heads, model.scale, model.shifts
    assert hidden.left_behind() == ["blocks.0.weight"]
