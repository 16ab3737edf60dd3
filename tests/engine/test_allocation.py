"""Memory that lasts is made where it may stay."""

import pytest
import torch

from monitorch.engine.allocation import is_capturing, lasting

CPU = torch.device("cpu")


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_lasting_tensor_is_what_was_asked_for(in_graph):
    tensor = lasting(lambda: torch.full((2, 3), 7.0), CPU, in_graph=in_graph)
    assert tensor.tolist() == [[7.0] * 3] * 2


def test_nothing_is_captured_on_a_cpu():
    assert not is_capturing(CPU)
