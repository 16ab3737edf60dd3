"""Which of several backward passes through one graph is the one that trains."""

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.lens import OutputGradientGeometry, ParameterGradientGeometry


def penalised(model, x):
    x.requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    slope.square().sum().backward()


def plain(model, x):
    model(x).square().sum().backward()


def keeping_the_graph(model, x):
    model(x).square().sum().backward(create_graph=True)


def with_gradients_by_name(model, x):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    torch.autograd.grad(model(x).square().sum(), trained, create_graph=True)


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("backward", [plain, penalised, keeping_the_graph, with_gradients_by_name])
def test_each_step_is_one_sample_of_the_pass_that_trains(backward, frozen):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0].requires_grad_(not frozen)
    lens = OutputGradientGeometry(inplace=False)
    watching = PyTorchInspector([lens], module=model, visualizer="dummy", on_error="raise")
    x, found = torch.randn(2, 3), []

    def listen(_, __, output):
        if output.requires_grad:
            output.register_hook(found.append)

    model[0].register_forward_hook(listen)
    backward(model, x)
    samples = lens._preprocessors[0].value
    if found:
        (norm,) = samples["0"][0]
        assert norm == pytest.approx(found[-1].norm().item(), rel=1e-6)
        assert len(found) == (2 if backward is penalised else 1)
    assert ("0" in samples) == bool(found)
    assert watching.state.step == 1


@pytest.mark.parametrize("trains", [True, False])
def test_parameters_that_are_put_into_a_model_for_a_pass_are_trained_too(trains):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    lenses = [lens := OutputGradientGeometry(inplace=False), ParameterGradientGeometry()]
    watching = PyTorchInspector(lenses, module=model, visualizer="dummy", on_error="raise")
    others = {name: nn.Parameter(tensor.detach() * 2) for name, tensor in model.named_parameters()}
    x = torch.randn(2, 3, requires_grad=True)
    output = torch.func.functional_call(model, others, (x,))
    if trains:
        output.square().sum().backward()
    else:
        torch.autograd.grad(output.square().sum(), x)
    watching.tick_epoch()
    shown = {r.layer: r.value for r in lens.records(1) if (r.tag, r.statistic) == ("Output Gradient Norm", "mean")}
    assert shown.get("2") == (pytest.approx(2 * output.detach().double().norm().item()) if trains else None)


def test_each_pass_of_a_step_whose_gradients_are_returned_is_a_sample():
    model, lens = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), OutputGradientGeometry(inplace=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = PyTorchInspector([lens], module=model, optimizer=optimizer, visualizer="dummy", on_error="raise")
    batches, found = torch.randn(3, 2, 3), []
    model[2].register_forward_hook(lambda _, __, output: output.register_hook(found.append) and None)
    for x in batches:
        with_gradients_by_name(model, x)
    expected = [gradient.double().norm().item() for gradient in found]
    assert watching.state.step == 0
    assert lens._preprocessors[0].value["2"][0] == pytest.approx(expected, rel=1e-6)
    assert len(expected) == len(batches)
