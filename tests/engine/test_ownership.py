"""Which parameters an optimizer moves."""

import torch
from torch import nn

from monitorch.engine.optimizers import Owned


def parameters(count):
    return [nn.Parameter(torch.ones(2)) for _ in range(count)]


def test_parameters_of_all_groups_are_owned_and_no_others():
    first, second, other = parameters(3)
    owned = Owned(torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 0.1}], lr=1.0))
    assert [parameter in owned for parameter in (first, second, other)] == [True, True, False]


def test_an_equal_tensor_is_another_one():
    [mine] = parameters(1)
    owned = Owned(torch.optim.SGD([mine], lr=1.0))
    assert nn.Parameter(mine.detach()) not in owned
    assert mine.detach() not in owned


def test_groups_may_be_added_and_parameters_replaced():
    first, second, third = parameters(3)
    optimizer = torch.optim.SGD([first], lr=1.0)
    assert second not in Owned(optimizer)
    optimizer.add_param_group({"params": [second]})
    optimizer.param_groups[0]["params"][0] = third
    assert [parameter in Owned(optimizer) for parameter in (first, second, third)] == [False, True, True]


def test_several_optimizers_own_together():
    first, second = parameters(2)
    optimizers = [torch.optim.SGD([parameter], lr=1.0) for parameter in (first, second)]
    assert [first in Owned(optimizer) for optimizer in optimizers] == [True, False]
    assert first in Owned(*optimizers)
    assert first not in Owned()
