"""Gradients of outputs: right numbers, and in-place operations go on working."""

import copy
import warnings

import pytest
import torch
from torch import nn

from monitorch.gatherer import BackwardGatherer


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        y = self.lin(x)
        y += x
        return y


class Pair(nn.Module):
    """Returns more than one tensor, the first of them of whole numbers."""

    def __init__(self, kind):
        super().__init__()
        self.lin, self.kind = nn.Linear(3, 3), kind

    def forward(self, x):
        ids, first, second = torch.arange(3), self.lin(x), self.lin(x) * 2
        return (ids, first, second) if self.kind is tuple else {"ids": ids, "first": first, "second": second}


def full_hook_gradients(model, layer, x):
    """What the module's own full backward hook sees, on a copy."""
    twin, seen = copy.deepcopy((model, layer)), []
    twin[1].register_full_backward_hook(lambda module, grad_input, grad_output: seen.append((grad_input, grad_output)))
    twin[0](x.clone().requires_grad_()).pow(2).sum().backward()
    return seen


def test_same_gradient_as_a_full_backward_hook(keeper, state):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(5, 3)
    [(_, (expected,))] = full_hook_gradients(model, model[0], x)
    BackwardGatherer(model[0], [keeper], "lin", state)
    model(x).pow(2).sum().backward()
    [(name, module, grad_input, (gradient,))] = keeper.calls
    assert (name, module, grad_input) == ("lin", model[0], ())
    assert torch.equal(gradient, expected)


def test_preprocessor_that_needs_input_gradients_gets_the_full_hook(full_keeper, state):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(5, 3)
    [(expected_input, expected_output)] = full_hook_gradients(model, model[2], x)
    BackwardGatherer(model[2], [full_keeper], "lin", state)
    model(x).pow(2).sum().backward()
    [(_, _, grad_input, grad_output)] = full_keeper.calls
    assert isinstance(grad_input, tuple)
    assert isinstance(grad_output, tuple)
    assert torch.equal(grad_input[0], expected_input[0])
    assert torch.equal(grad_output[0], expected_output[0])


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True)), "0"),
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5, inplace=True)), "0"),
        (Residual(), "lin"),
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 1)), "1"),
    ],
    ids=["relu", "dropout", "+=", "the in-place layer itself"],
)
def test_in_place_operations_after_the_layer_work(model, layer, keeper, state):
    bare, x = copy.deepcopy(model), torch.randn(4, 3)
    BackwardGatherer(model.get_submodule(layer), [keeper], layer, state)
    for net in (bare, model):
        torch.manual_seed(3)
        net(x).pow(2).sum().backward()
    assert len(keeper.calls) == 1
    for watched, truth in zip(model.parameters(), bare.parameters(), strict=True):
        assert torch.equal(watched.grad, truth.grad)


def test_gradient_before_an_in_place_relu_is_that_of_the_layer(keeper, state):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    BackwardGatherer(model[0], [keeper], "lin", state)
    x = torch.randn(4, 3)
    model(x).sum().backward()
    [(_, _, _, (gradient,))] = keeper.calls
    assert torch.equal(gradient, (model[0](x) > 0).float())


@pytest.mark.parametrize("passing_on", [nn.Identity(), nn.Dropout(0.5).eval()], ids=["identity", "dropout in eval"])
def test_layer_that_returns_its_input_shows_the_gradient_of_that_use_only(passing_on, keeper, state):
    lin = nn.Linear(3, 3)
    BackwardGatherer(passing_on, [keeper], "pass", state)
    gradients = []
    for watched in (True, False):
        hidden = lin(torch.ones(2, 3))
        branch = passing_on(hidden) if watched else hidden
        (5 * branch.sum() + 7 * hidden.sum()).backward()
        gradients.append(lin.weight.grad.clone())
        lin.zero_grad()
    [(_, _, _, (gradient,))] = keeper.calls
    assert torch.equal(gradient, torch.full((2, 3), 5.0))
    assert torch.equal(*gradients)


def test_alias_of_an_input_goes_into_the_structure_it_came_from(keeper, state):
    class Wrap(nn.Module):
        def forward(self, x):
            return {"hidden": x, "also": [x, 3]}

    wrap = Wrap()
    BackwardGatherer(wrap, [keeper], "wrap", state)
    hidden = torch.ones(2, requires_grad=True) * 1
    output = wrap(hidden)
    assert output["also"][0] is output["hidden"]
    assert output["also"][1] == 3
    (output["hidden"].sum() * 2 + hidden.sum()).backward()
    assert torch.equal(keeper.calls[0][3][0], torch.full((2,), 2.0))


@pytest.mark.parametrize("kind", [tuple, dict])
@pytest.mark.parametrize(("index", "expected"), [(None, 1.0), (2, 10.0)])
def test_parts_of_an_output(kind, index, expected, keeper, state):
    names = [0, 1, 2] if kind is tuple else ["ids", "first", "second"]
    module = Pair(kind)
    index = None if index is None else names[index]
    BackwardGatherer(module, [keeper], "pair", state, output_index=index)
    output = module(torch.ones(2, 3))
    (output[names[1]].sum() + 10 * output[names[2]].sum()).backward()
    [(_, _, _, (gradient,))] = keeper.calls
    assert torch.equal(gradient, torch.full((2, 3), expected))


def test_unused_part_of_an_output_has_no_sample(keeper, state):
    module = Pair(tuple)
    BackwardGatherer(module, [keeper], "pair", state)
    module(torch.ones(2, 3))[2].sum().backward()
    assert keeper.calls == []
    assert module.lin.weight.grad is not None


def test_wrong_output_index_warns_and_training_goes_on(keeper, state):
    module = Pair(dict)
    BackwardGatherer(module, [keeper], "pair", state, output_index="logits")
    with pytest.warns(UserWarning, match="'pair': KeyError: 'logits'"):
        module(torch.ones(2, 3))["first"].sum().backward()
    assert module.lin.weight.grad is not None


class HalfWay(torch.autograd.Function):
    """Passes both inputs on, and has a gradient for the second one only."""

    @staticmethod
    def forward(ctx, first, second):
        return first.clone(), second.clone()

    @staticmethod
    def backward(ctx, first, second):
        return None, second


def test_a_function_without_a_gradient_for_its_input_is_no_sample_and_no_error(keeper, state, linear):
    state.loss_share = 0.5
    BackwardGatherer(linear, [keeper], "lin", state)
    x = torch.ones(2, 3)
    for tensors in ((linear(x), torch.ones(2, 2)), (torch.ones(2, 2), linear(x))):
        torch.stack(HalfWay.apply(*tensors)).sum().backward()
    assert len(keeper.calls) == 1


def test_input_without_gradient_brings_no_warning(keeper, state):
    lin = nn.Linear(3, 2)
    BackwardGatherer(lin, [keeper], "lin", state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            lin(torch.ones(4, 3)).sum().backward()
    assert len(keeper.calls) == 3


def test_passes_without_gradients_are_not_samples(keeper, state, linear):
    BackwardGatherer(linear, [keeper], "lin", state)
    with torch.no_grad():
        linear(torch.ones(1, 3))
    assert keeper.calls == []


def test_module_used_twice_has_two_samples(keeper, state):
    lin = nn.Linear(3, 3)
    BackwardGatherer(lin, [keeper], "lin", state)
    lin(lin(torch.ones(2, 3))).sum().backward()
    last, first = (call[3][0] for call in keeper.calls)
    assert torch.equal(last, torch.ones(2, 3))
    torch.testing.assert_close(first, torch.ones(2, 3) @ lin.weight.detach())


@pytest.mark.parametrize("fixture", ["keeper", "full_keeper"])
def test_detaching_between_forward_and_backward_is_safe(fixture, request, state):
    preprocessor = request.getfixturevalue(fixture)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    gatherer = BackwardGatherer(model[1], [preprocessor], "lin", state)
    loss = model(torch.ones(4, 3)).sum()
    gatherer.detach()
    loss.backward()
    assert preprocessor.calls == []
    assert model[0].weight.grad is not None


def test_state_that_goes_inactive_before_backward_gives_a_gap(keeper, state, linear):
    BackwardGatherer(linear, [keeper], "lin", state)
    loss = linear(torch.ones(1, 3)).sum()
    state.paused = True
    loss.backward()
    assert (keeper.calls, keeper.gaps) == ([], ["lin"])


def test_gradient_is_that_of_the_global_loss_where_processes_share_it(keeper, state, linear):
    state.loss_share = 0.25
    BackwardGatherer(linear, [keeper], "lin", state)
    linear(torch.ones(1, 3)).sum().backward()
    assert torch.equal(keeper.calls[0][3][0], torch.full((1, 2), 0.25))
    assert torch.equal(linear.bias.grad, torch.ones(2))


def test_layer_that_changes_its_input_is_seen_before_a_later_change_in_place(keeper, state):
    layer = nn.Dropout(0.5, inplace=True)
    BackwardGatherer(layer, [keeper], "layer", state)
    start = torch.ones(2, 3, requires_grad=True)
    output = layer(start * 2)
    output += 1
    (output * 3).sum().backward()
    assert torch.equal(keeper.calls[0][3][0], torch.full((2, 3), 3.0))
