"""The gradient of a loss tells whether something has scaled it."""

import pickle

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from monitorch.numerical.waiting import HostCopy
from monitorch.preprocessor.loss_module import LossGradient, is_scale


def seen(*factors):
    """What is found where losses are multiplied by these factors before backward."""
    gradient = LossGradient()
    for factor in factors:
        loss = torch.ones(3, requires_grad=True).square().mean()
        gradient.watch(loss)
        (loss * factor).backward()
    gradient.end_tick()
    return gradient.scale()


@pytest.mark.parametrize(
    ("factors", "scale"),
    [
        ([65536.0], 65536.0),
        ([2.0**10, 2.0**11], 2.0**11),  # it has grown
        ([2.0**16 / 8], 2.0**13),
        ([2.0**16 / 3], pytest.approx(2.0**16 / 3)),
        ([2.0**16 / 7, 2.0**15 / 7], pytest.approx(2.0**16 / 7)),
        ([2.0**24], 2.0**24),
        ([1.0], None),
        ([0.5], None),
        ([1 / 3], None),
        ([256.0], None),  # a batch size
        ([1000.0], None),  # a weight
        ([1e4], None),
        ([3000.0], None),
        ([65536.0, 1.0], None),
        ([float("inf")], None),
        ([float("nan")], None),
        ([float("inf"), 65536.0], 65536.0),
        ([-65536.0], None),
        ([0.0], None),
        ([], None),
    ],
)
def test_a_large_power_of_two_is_the_scale_of_a_scaler_also_divided_among_micro_batches(factors, scale):
    assert seen(*factors) == scale


def test_no_number_that_people_write_down_is_taken_for_a_scale():
    scales = [n for n in range(1, 100_001) if is_scale(n)]
    assert scales == [2**exponent for exponent in range(10, 17)]


def test_it_is_told_once_and_looked_for_until_something_was_seen():
    gradient = LossGradient()
    gradient.end_tick()  # an evaluation
    assert gradient.scale() is None
    loss = torch.ones(1, requires_grad=True).sum()
    gradient.watch(loss)
    (loss * 65536).backward()
    gradient.end_tick()
    HostCopy(gradient.pending()).deliver()
    gradient.finish()
    assert gradient.pending() == []
    assert [gradient.scale(), gradient.scale()] == [65536, None]
    later = torch.ones(1, requires_grad=True).sum()
    gradient.watch(later)
    assert later._backward_hooks is None


@pytest.mark.parametrize(
    "loss",
    [1.0, None, torch.ones(1), torch.ones(1, requires_grad=True), torch.ones(3, requires_grad=True) * 2],
    ids=["number", "none", "constant", "leaf", "several"],
)
def test_what_is_no_loss_with_a_gradient_is_left_alone(loss):
    LossGradient().watch(loss)
    assert not isinstance(loss, Tensor) or not loss._backward_hooks


def test_losses_inside_functional_transforms_are_left_alone():
    gradient = LossGradient()

    def loss_of(x):
        loss = x.square().sum()
        gradient.watch(loss)
        return loss * 65536

    torch.func.grad(loss_of)(torch.ones(3))
    gradient.end_tick()
    assert gradient.scale() is None


class Calls(TorchFunctionMode):
    """Notes which functions of torch are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


def test_nothing_is_read_by_the_host_before_a_tick():
    gradient = LossGradient()
    with Calls() as calls:
        loss = torch.ones(1, requires_grad=True).sum()
        gradient.watch(loss)
        (loss * 65536).backward()
    assert not calls.names & {"cpu", "item", "tolist", "numpy", "__float__", "__bool__"}
    gradient.end_tick()
    HostCopy(gradient.pending()).deliver()
    gradient.finish()
    assert gradient.scale() == 65536


def test_a_second_derivative_does_not_disturb():
    gradient = LossGradient()
    x = torch.ones(2, requires_grad=True)
    loss = x.pow(3).sum()
    gradient.watch(loss)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    slope.sum().backward()
    gradient.end_tick()
    assert gradient.scale() is None


def test_it_can_be_pickled_before_it_has_seen_anything():
    assert pickle.loads(pickle.dumps(LossGradient())).scale() is None
