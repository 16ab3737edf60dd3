"""What counts as a step."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from monitorch import PyTorchInspector
from monitorch.errors import OptionError
from monitorch.lens import ActivationHealth, OutputNorm, ParameterGradientGeometry


@pytest.fixture
def inspect(model):
    """An inspector of the model; it lives as long as the test."""
    kept = []

    def build(module=model, **options):
        lenses = [OutputNorm(), ParameterGradientGeometry()]
        kept.append(PyTorchInspector(lenses, module=module, visualizer="dummy", on_error="raise", **options))
        return kept[-1]

    return build


def sgd(*modules):
    return torch.optim.SGD([parameter for module in modules for parameter in module.parameters()], lr=0.1)


X = torch.linspace(-1, 1, 12).reshape(4, 3)


def test_without_an_optimizer_each_training_pass_is_a_step(model, inspect):
    inspector = inspect()
    for _ in range(3):
        model(X).sum().backward()
    assert inspector.state.step == 3
    with torch.no_grad():
        model(X)
    model.eval()(X)
    assert inspector.state.step == 3
    model.train()[0](X)  # a part is not the model
    assert inspector.state.step == 3


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_repetition_by_checkpointing_is_no_second_step(model, inspect, reentrant):
    inspector = inspect()
    for _ in range(2):
        checkpoint(model, X.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()
    assert inspector.state.step == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_model_that_is_checkpointed_as_a_whole_shows_its_training_passes_also_after_an_evaluation(model, reentrant):
    lens = OutputNorm(inplace=False, include=nn.Linear)
    inspector = PyTorchInspector([lens], module=model, visualizer="dummy", on_error="raise")
    for _ in range(2):
        checkpoint(model, X.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()
        with torch.no_grad():
            model(X)
    assert (inspector.state.step, inspector.state.passes) == (2, 2)
    assert inspector._steps.run_statistics.samples == 2 * len(X)
    expected = nn.functional.linear(X, model[0].weight, model[0].bias).double().norm(dim=1).mean().item()
    assert lens._preprocessors[0].value["0"] == pytest.approx([expected] * 2)


def test_the_steps_of_the_first_optimizer_are_counted(model, train, inspect):
    first, second = sgd(model[0]), sgd(model[2])
    inspector = inspect(optimizer=[first, second])
    train(model, first, steps=3)
    train(model, second, steps=2)
    model(X)
    assert inspector.state.step == 3


def test_micro_batches_are_one_step(model, inspect):
    optimizer = sgd(model)
    inspector = inspect(optimizer=optimizer)
    for _ in range(2):
        for _ in range(4):
            model(X).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    inspector.tick_epoch()
    assert inspector.state.step == 2
    assert {record.step for record in inspector.records()} == {2}


def test_a_step_with_a_closure_is_one_step_however_often_it_is_evaluated(model, inspect):
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
    inspector, evaluations = inspect(optimizer=optimizer), []

    def closure():
        evaluations.append(1)
        optimizer.zero_grad()
        loss = (model(X) - 1).pow(2).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure=closure)
    assert len(evaluations) > 2
    assert inspector.state.step == 2


@pytest.mark.parametrize("plays", ["the model", "a part", None])
def test_a_model_whose_parts_are_called_in_training_has_its_passes_also_if_it_was_called_before(model, inspect, plays):
    """An agent plays with its policy, and then trains parts of it."""
    optimizer = sgd(model)
    inspector = inspect(optimizer=optimizer)
    for number in range(1, 4):
        if plays is not None:
            model.eval()
            with torch.no_grad():
                (model if plays == "the model" else model[2])(X if plays == "the model" else torch.ones(4, 4))
            model.train()
        model[2](model[1](model[0](X))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert (inspector.state.passes, inspector.state.step) == (number, number)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("with_optimizer", [True, False])
def test_a_compiled_model_counts_the_same(model, train, inspect, with_optimizer):
    torch.compiler.reset()
    counters.clear()
    compiled, optimizer = torch.compile(model, backend="eager"), sgd(model)
    inspector = inspect(compiled, optimizer=optimizer if with_optimizer else None)
    train(compiled, optimizer, steps=4)
    with torch.no_grad():
        compiled(X)
    assert inspector.state.step == 4
    torch.compiler.reset()


def test_hooks_go_with_the_inspector(model, train, inspect, count_hooks):
    optimizers = [sgd(model[0]), sgd(model[2])]
    inspector = inspect(optimizer=optimizers)
    assert count_hooks(model, *optimizers) > 0
    inspector.detach()
    assert count_hooks(model, *optimizers) == 0
    train(model, optimizers[0])
    assert inspector.state.step == 0


@pytest.mark.parametrize(
    "given", [torch.optim.SGD, "adam", nn.Linear(1, 1), [object()]], ids=["class", "name", "module", "list"]
)
def test_what_is_no_optimizer_is_refused(given):
    with pytest.raises((OptionError, TypeError), match=r"optimizer|iterable"):
        PyTorchInspector([OutputNorm()], visualizer="dummy", optimizer=given)


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 1, 0)])
def test_where_optimizers_take_turns_only_calls_end_a_step(model, inspect, order):
    parts = model[0], model[-1]
    optimizers = [sgd(part) for part in parts]
    inspector = inspect(optimizer=optimizers)
    inspector.end_steps_by_call()
    for step in range(3):
        for place in order:
            model(X).sum().backward()
            optimizers[place].step()
            assert inspector.state.step == step
        inspector.step()
        assert inspector.state.step == step + 1


class Block(nn.Module):
    """Calls a function, which only a mode of torch sees."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, inputs):
        return nn.functional.relu(self.linear(inputs))


class Outer(Block):
    """Calls a part that the model has, too."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return self.inner(super().forward(inputs))


class Parts(nn.Module):
    """Is not called itself."""

    def __init__(self):
        super().__init__()
        inner = Block()
        self.blocks = nn.ModuleList([Block(), Outer(inner), Block(), inner])

    def step(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return inputs.sum()


def test_of_a_model_that_is_not_called_all_parts_show_their_calls():
    model = Parts()
    optimizer, shown = sgd(model), []
    options = {"visualizer": "dummy", "on_error": "raise", "optimizer": optimizer}
    inspector = PyTorchInspector([ActivationHealth(), OutputNorm(include=nn.Linear)], module=model, **options)
    for _ in range(3):
        model.step(X).backward()
        optimizer.step()
        inspector.tick()
        shown.append({record.layer for record in inspector.records() if record.lens == "ActivationHealth"})
    assert inspector.state.passes == inspector.state.step == 3
    assert shown[-1] == {f"blocks.{part}.linear" for part in ("0", "1", "1.inner", "2")}
    inspector.detach()
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())
