"""Which parameters an optimizer moves."""

import gc
import weakref

import torch
from torch import nn

from monitorch.gatherer.ownership import owns


def parameters(count):
    return [nn.Parameter(torch.ones(2)) for _ in range(count)]


def test_parameters_of_all_groups_are_owned_and_no_others():
    first, second, other = parameters(3)
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 0.1}], lr=1.0)
    assert [owns(optimizer, parameter) for parameter in (first, second, other)] == [True, True, False]


def test_an_equal_tensor_is_another_one():
    [mine] = parameters(1)
    optimizer = torch.optim.SGD([mine], lr=1.0)
    assert not owns(optimizer, nn.Parameter(mine.detach()))
    assert not owns(optimizer, mine.detach())


def test_groups_may_be_added_later():
    first, second = parameters(2)
    optimizer = torch.optim.SGD([first], lr=1.0)
    assert not owns(optimizer, second)
    optimizer.add_param_group({"params": [second]})
    assert owns(optimizer, second)


def test_optimizers_are_told_apart_and_not_kept_alive():
    first, second = parameters(2)
    optimizers = [torch.optim.SGD([parameter], lr=1.0) for parameter in (first, second)]
    assert [owns(optimizer, first) for optimizer in optimizers] == [True, False]
    gone = weakref.ref(optimizers[0])
    optimizers.clear()
    gc.collect()
    assert gone() is None
