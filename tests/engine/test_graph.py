"""Operators that pass tensors on from inside a graph."""

import gc

import pytest
import torch

from monitorch.engine import graph
from monitorch.engine.distributed_tensors import OWN
from monitorch.engine.graph import GraphCallback

CPU = torch.device("cpu")


@pytest.fixture
def received():
    return []


@pytest.fixture
def callback(received):
    return GraphCallback(CPU, lambda x, kind, part: received.append((x.clone(), kind)), None)


def test_forward_hands_the_tensor_over_with_the_kind_of_the_pass(callback, received):
    x = torch.randn(2, 3, requires_grad=True)
    callback.pass_forward(x, 3)
    [(seen, kind)] = received
    assert torch.equal(seen, x)
    assert (kind, seen.requires_grad) == (3, False)


def test_backward_hands_over_the_gradient_and_changes_nothing(callback, received):
    x = torch.randn(2, 3, requires_grad=True)
    y = callback.pass_backward(2 * x)
    assert torch.equal(y, 2 * x)
    assert received == []
    (y * torch.arange(6.0).reshape(2, 3)).sum().backward()
    [(seen, kind)] = received
    assert torch.equal(seen, torch.arange(6.0).reshape(2, 3))
    assert torch.equal(x.grad, 2 * seen)
    assert kind == -1


def test_what_passed_may_be_changed_in_place(callback, received):
    x = torch.randn(4, requires_grad=True)
    callback.pass_backward(x.exp()).relu_().sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())
    assert len(received) == 1


def test_callbacks_are_told_apart(received):
    first, second = (GraphCallback(CPU, lambda x, kind, part, name=name: received.append(name), None) for name in "ab")
    for callback in (first, second, first):
        callback.pass_forward(torch.ones(1), 0)
    x = torch.ones(1, requires_grad=True)
    first.pass_backward(second.pass_backward(x)).sum().backward()
    assert received == ["a", "b", "a", "a", "b"]


def test_a_key_is_recognised_after_it_was_copied(callback, received):
    torch.ops.monitorch.forward(torch.ones(1), callback.forward_key.clone(), 1, OWN)
    assert len(received) == 1


def test_nothing_happens_with_a_callback_that_is_gone(received):
    gc.collect()
    known = len(graph._numbers)
    callback = GraphCallback(CPU, lambda x, kind, part: received.append(kind), None)
    keys = callback.forward_key, callback.backward_key
    x = torch.ones(1, requires_grad=True)
    y = callback.pass_backward(x)
    del callback
    gc.collect()
    torch.ops.monitorch.forward(x.detach(), keys[0], 3, OWN)
    y.sum().backward()
    assert received == []
    assert torch.equal(x.grad, torch.ones(1))
    del keys, y
    gc.collect()
    assert len(graph._numbers) == known


def test_operators_are_what_the_compiler_takes_them_for(callback):
    x = torch.randn(2, 3)
    torch.library.opcheck(torch.ops.monitorch.forward.default, (x, callback.forward_key, 3, OWN))
    torch.library.opcheck(torch.ops.monitorch.backward.default, (x, callback.backward_key, OWN))


def test_the_operator_outside_of_cuda_graphs_is_what_the_compiler_takes_it_for():
    callback = GraphCallback(CPU, lambda x, kind: None, None)
    torch.library.opcheck(torch.ops.monitorch.outside.default, (torch.randn(2), callback.forward_key, 3))
    two = [torch.randn(2), torch.ones(3, dtype=torch.int64)]
    torch.library.opcheck(torch.ops.monitorch.named.default, (two, callback.forward_key, 3, "input.0\ninput.1"))


def test_several_tensors_arrive_together_by_name():
    received = []
    callback = GraphCallback(CPU, lambda named, kind: received.append((named, kind)), None)
    sent = {"input.x y": torch.ones(2, requires_grad=True), "input.1": torch.tensor([7])}
    callback.pass_named(3, sent)
    [(named, kind)] = received
    assert kind == 3
    assert list(named) == list(sent)
    assert all(torch.equal(named[name], sent[name]) and not named[name].requires_grad for name in sent)
