"""Which passes count: repetitions of activation checkpointing and passes that do not train are not samples."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from monitorch import PyTorchInspector
from monitorch.engine.passes import RecomputationFilter
from monitorch.engine.torch_private import inside_backward
from monitorch.gatherer import BackwardGatherer, FeedForwardGatherer
from monitorch.lens import OutputActivation as OutputActivationLens
from monitorch.lens import OutputGradientGeometry, ParameterGradientGeometry
from monitorch.lens import OutputNorm as OutputNormLens
from monitorch.preprocessor import OutputNorm


@pytest.fixture(params=[True, False], ids=["reentrant", "not reentrant"])
def block(request):
    """A layer under checkpointing, as a function."""
    layers = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def run(x):
        return checkpoint(layers, x, use_reentrant=request.param)

    run.layers = layers
    return run


def train(block, steps=2):
    for _ in range(steps):
        block(torch.ones(4, 3, requires_grad=True)).pow(2).sum().backward()


@pytest.mark.parametrize("record_eval", [False, True])
@pytest.mark.parametrize("evaluation_from_grad", [None, True, False])
def test_forward_lenses_see_one_sample_per_step(block, state, evaluation_from_grad, record_eval):
    norms = OutputNorm(False, False, record_eval, evaluation_from_grad)
    gatherer = FeedForwardGatherer(block.layers[1], [norms], "tanh", state)
    train(block)
    gatherer.detach()
    expected = block.layers(torch.ones(4, 3)).double().norm(dim=1).mean().item()
    assert norms.value["tanh"] == pytest.approx([expected] * 2, rel=1e-6)


def test_output_gradient_has_one_sample_per_step(block, state, keeper):
    gatherer = BackwardGatherer(block.layers[0], [keeper], "lin", state)
    train(block)
    gatherer.detach()
    hidden = block.layers[0](torch.ones(4, 3))
    [expected] = torch.autograd.grad(block.layers[1](hidden).pow(2).sum(), hidden)
    assert len(keeper.calls) == 2
    for *_, (gradient,) in keeper.calls:
        torch.testing.assert_close(gradient, expected)


def test_weights_stay_bit_identical_under_checkpointing(block, state, keeper):
    train(block, steps=1)
    bare = block.layers[0].weight.grad.clone()
    block.layers.zero_grad()
    FeedForwardGatherer(block.layers[0], [keeper], "lin", state)
    BackwardGatherer(block.layers[0], [keeper], "lin", state)
    train(block, steps=1)
    assert torch.equal(block.layers[0].weight.grad, bare)


class Repeats(torch.autograd.Function):
    """Runs a function without gradients, and once more inside backward."""

    @staticmethod
    def forward(ctx, x, function):
        ctx.function = function
        function()
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.function()
        return gradient, None


def test_the_repetition_counts_of_a_pass_that_ran_without_gradients():
    passes, judged = RecomputationFilter(None), []

    def judge():
        judged.append((inside_backward(), passes.counts()))

    for _ in range(2):
        judge()  # a plain pass of the same layer, which is not repeated
        x = 2 * Repeats.apply(torch.ones(1, requires_grad=True), judge)
        x.register_hook(lambda _: judge())  # as checkpointing repeats a pass that had gradients
        x.sum().backward()
    assert judged == [(False, True), (False, False), (True, False), (True, True)] * 2
    assert not inside_backward()


def test_an_evaluation_pass_is_not_one_to_be_repeated(state):
    passes, judged = RecomputationFilter(state), []
    state.pass_has_grad = False
    with torch.no_grad():
        assert passes.counts()
    state.pass_has_grad = True
    Repeats.apply(torch.ones(1, requires_grad=True), lambda: None).register_hook(lambda _: None)
    y = Repeats.apply(torch.ones(1, requires_grad=True), lambda: inside_backward() and judged.append(passes.counts()))
    y.sum().backward()
    assert judged == [False]


def samples_of(model, backward, steps=2, **options):
    """How many samples lenses have seen of the output and of the gradient of each layer."""
    outputs = OutputNormLens(inplace=False, include=nn.Linear, **options)
    gradients = OutputGradientGeometry(inplace=False)
    inspector = PyTorchInspector([outputs, gradients], module=model, visualizer="dummy", on_error="raise")
    for _ in range(steps):
        backward(model(torch.randn(4, 3, requires_grad=True)).sum())
    found = outputs._preprocessors[0].value, gradients._preprocessors[0].value
    counts = [
        {name: len(kept[0]) if isinstance(kept, tuple) else len(kept) for name, kept in of.items()} for of in found
    ]
    inspector.detach()
    return counts


class InCheckpoints(nn.Module):
    """A layer inside so many checkpoints, each with a layer of its own behind the inner one."""

    def __init__(self, reentrant):
        super().__init__()
        self.layers, self.reentrant = nn.ModuleList(nn.Linear(3, 3) for _ in reentrant), reentrant

    def forward(self, x, level=0):
        if level == len(self.layers):
            return x
        run = lambda x: self.layers[level](self.forward(x, level + 1))  # noqa: E731
        return checkpoint(run, x, use_reentrant=self.reentrant[level])


@pytest.mark.parametrize("options", [{}, {"record_eval": True}, {"evaluation_from_grad": False}])
@pytest.mark.parametrize(
    "reentrant", [(True,), (True, True), (True, True, True), (True, False), (False, True), (False,)]
)
def test_a_layer_in_a_checkpoint_inside_another_is_one_sample_per_step(reentrant, options):
    expected = {f"layers.{level}": 2 for level in range(len(reentrant))}
    assert samples_of(InCheckpoints(reentrant), torch.Tensor.backward, **options) == [expected, expected]


def test_going_back_twice_through_a_checkpoint_is_one_forward_pass():
    def twice(loss):
        loss.backward(retain_graph=True)
        loss.backward()

    outputs, _ = samples_of(InCheckpoints((True,)), twice)
    assert outputs == {"layers.0": 2}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("compiled", [False, True])
def test_a_part_without_gradients_is_not_one_to_be_repeated(compiled):
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            with torch.no_grad():
                features = self.first(x)
            return self.second(features + x)

    model = Frozen()
    if compiled:
        model.compile(backend="aot_eager")
    outputs, gradients = samples_of(model, torch.Tensor.backward, evaluation_from_grad=False)
    assert outputs == {"first": 2, "second": 2}
    assert gradients == {"second": 2}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_checkpoint_that_no_gradient_reaches_is_not_one_to_be_repeated():
    class OnData(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.second(checkpoint(self.first, x.detach(), use_reentrant=True))

    outputs, gradients = samples_of(OnData(), torch.Tensor.backward, evaluation_from_grad=False)
    assert outputs == {"first": 2, "second": 2}
    assert gradients == {"second": 2}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_an_evaluation_of_a_checkpointed_block_is_one_sample(block):
    lens = OutputNormLens(inplace=False, record_eval=True)
    model = nn.Module()
    model.layers, model.forward = block.layers, block
    inspector = PyTorchInspector([lens], module=model, visualizer="dummy", on_error="raise")
    with torch.no_grad():
        for x in (torch.ones(4, 3), torch.ones(4, 3, requires_grad=True)):
            model(x)
    assert len(lens._preprocessors[0].value["layers.1"]) == 2
    inspector.detach()


@pytest.mark.parametrize("shared_first", [True, False])
def test_a_layer_shared_by_a_checkpointed_and_a_plain_block_shows_both_calls(shared_first):
    act, first, second = nn.ReLU(), nn.Linear(3, 5), nn.Linear(5, 5)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.first, self.second = act, first, second

        def forward(self, x):
            if shared_first:
                return act(second(checkpoint(lambda x: act(first(x)), x, use_reentrant=True)))
            return checkpoint(lambda x: act(second(x)), act(first(x)), use_reentrant=True)

    model, lens = Model(), OutputActivationLens(inplace=False)
    inspector = PyTorchInspector([lens], module=model, visualizer="dummy", on_error="raise")
    x = torch.randn(4, 3, requires_grad=True)
    model(x).sum().backward()
    with torch.no_grad():
        hidden = first(x).relu()
        expected = [(values > 0).double().mean().item() for values in (hidden, second(hidden).relu())]
    assert sorted(lens._preprocessors[0].value["act"][0]) == pytest.approx(sorted(expected))
    inspector.detach()


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
