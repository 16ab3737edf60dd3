"""Modules whose state changes in the ways that states change."""

import pytest
import torch
from torch import nn


class Rebinding(nn.Module):
    """Adds its input to a state that is a new tensor each time."""

    def __init__(self, start=0.0):
        super().__init__()
        self.register_buffer("st", torch.tensor([start]))

    def forward(self, x):
        self.st = self.st + x
        return self.st


class Writing(Rebinding):
    """Adds its input to the one tensor that is its state."""

    def forward(self, x):
        with torch.no_grad():
            self.st.add_(x)
        return x


class Setting(nn.Module):
    """Has the state it was called with."""

    def __init__(self, start=None):
        super().__init__()
        self.st = start

    def forward(self, state):
        self.st = state


@pytest.fixture
def rebinding():
    return Rebinding()


@pytest.fixture
def writing():
    return Writing()


@pytest.fixture
def new_setting():
    return Setting
