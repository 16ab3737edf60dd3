"""Under torch.compile all lenses see what they see in eager mode, and add no graph, no break and no compilation."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import monitorch
from monitorch import MonitorchWarning, PyTorchInspector
from monitorch.lens import (
    Distribution,
    LossMetrics,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    TargetStatistics,
)
from tests.marks import slow

# the compiler hides these warnings of its own, but cannot where warnings are errors
pytestmark = [
    pytest.mark.filterwarnings("ignore:two OutputGradientGeometry lenses"),  # so that both kinds are in one graph
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
WIDTH, BATCH, STEPS = 80, 64, 3  # an output has more elements than a sketch has numbers


class Pair(nn.Linear):
    def forward(self, x):
        return x.argmax(1), super().forward(x)


class Named(nn.Linear):
    def forward(self, x):
        return {"ids": x.argmax(1), "hidden": super().forward(x)}


class Net(nn.Module):
    """A stack of layers, one after the other; of tuples and dictionaries the part that is no index goes on."""

    def __init__(self, *layers, calls=1):
        super().__init__()
        self.first, self.layers, self.last = nn.Linear(3, WIDTH), nn.ModuleList(layers), nn.Linear(WIDTH, 1)
        self.calls = calls

    def forward(self, x):
        x = self.first(x)
        for layer in [*self.layers] * self.calls:
            x = layer(x)
            x = x["hidden"] if isinstance(x, dict) else x[1] if isinstance(x, tuple) else x
        return self.last(x)


EXAMPLE = "layer called twice"
"""A build takes seconds: the other ones are slow tests."""

MODELS = {
    "in-place activation": lambda: Net(nn.ReLU(inplace=True)),
    "layer called twice": lambda: Net(nn.Linear(WIDTH, WIDTH), nn.ReLU(), calls=2),
    "tuple output": lambda: Net(Pair(WIDTH, WIDTH), nn.Tanh()),
    "dictionary output": lambda: Net(Named(WIDTH, WIDTH), nn.Tanh()),
    "layer that returns its input": lambda: Net(nn.Identity(), nn.ReLU()),
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.act = nn.Linear(WIDTH, WIDTH), nn.ReLU()

    def forward(self, x):
        return x + self.act(self.linear(x))


@pytest.fixture
def everything():
    """A model with all of this at once."""
    return Net(nn.ReLU(inplace=True), Pair(WIDTH, WIDTH), Named(WIDTH, WIDTH), nn.GELU(), calls=2)


def watch(model, loss_fn, **options):
    lenses = [
        OutputNorm(include=nn.Linear, record_eval=True),
        OutputActivation(include=nn.Linear),
        OutputGradientGeometry(skip_activation=False),
        OutputGradientGeometry(correlation="sketch"),
        LossMetrics(loss_fn=loss_fn),
    ]
    return PyTorchInspector(lenses, module=model, visualizer="dummy", on_error="raise", **options)


def train(step, model, after=lambda: None):
    for number in range(STEPS):
        model.zero_grad()
        step(torch.linspace(-1, 1, 3 * BATCH).reshape(BATCH, 3) * (number + 1)).backward()
        after()


def numbers(inspector):
    """Everything that a tick shows."""
    inspector.tick_epoch()
    return {
        (index, record.layer, record.tag, record.statistic): record.value
        for index, lens in enumerate(inspector.lenses)
        for record in lens.records(1)
    }


def step_of(model, loss_fn, target):
    return lambda x: loss_fn(model(x), target)


def eager_numbers(model):
    model, loss_fn = copy.deepcopy(model), nn.MSELoss()
    inspector = watch(model, loss_fn)
    train(step_of(model, loss_fn, torch.ones(BATCH, 1)), model)
    found = numbers(inspector)
    assert len(found) > 50
    return pytest.approx(found, rel=1e-5, abs=1e-6, nan_ok=True)


def graphs_of_bare(model, compiled):
    """How many graphs a model needs that nobody watches; two models of a class would share graphs."""
    model = copy.deepcopy(model)
    train(compiled(model), model)
    found = counters["stats"]["unique_graphs"]
    torch.compiler.reset()
    counters.clear()
    return found


def compiled_step(model, loss_fn=None, **options):
    return torch.compile(step_of(model, loss_fn or nn.MSELoss(), torch.ones(BATCH, 1)), **options)


@pytest.mark.parametrize(
    "model", [name if name == EXAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_one_graph_without_breaks_shows_what_eager_mode_shows(model):
    model, loss_fn = MODELS[model](), nn.MSELoss()
    expected = eager_numbers(model)
    inspector = watch(model, loss_fn)
    with torch._dynamo.config.patch(error_on_recompile=True):
        train(compiled_step(model, loss_fn, backend="aot_eager", fullgraph=True), model)
    assert numbers(inspector) == expected
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_a_step_compiled_as_a_whole_by_inductor(everything):
    expected, loss_fn = eager_numbers(everything), nn.MSELoss()
    inspector = watch(everything, loss_fn)
    with torch._dynamo.config.patch(error_on_recompile=True):
        train(compiled_step(everything, loss_fn, fullgraph=True), everything)
    assert numbers(inspector) == expected
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_a_compiled_model_watched_before_it_runs_with_graphs_of_the_device():
    model, loss_fn = MODELS["in-place activation"](), nn.MSELoss()
    expected = eager_numbers(model)
    compiled = torch.compile(model, mode="reduce-overhead")  # on a CPU the same as the default
    inspector = watch(compiled, loss_fn)
    with torch._dynamo.config.patch(error_on_recompile=True):
        train(step_of(compiled, loss_fn, torch.ones(BATCH, 1)), model)
    assert numbers(inspector) == expected
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_a_model_compiled_in_place_by_inductor_and_watched_later():
    model, loss_fn = MODELS["in-place activation"](), nn.MSELoss()
    expected = eager_numbers(model)
    model.compile()
    step = step_of(model, loss_fn, torch.ones(BATCH, 1))
    train(step, model)
    assert counters["stats"]["unique_graphs"] == 1
    with pytest.warns(MonitorchWarning, match=r"torch.compiler.reset\(\)"):
        inspector = watch(model, loss_fn)
    train(step, model)
    assert numbers(inspector) == expected
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


@pytest.mark.slow
def test_equal_blocks_compiled_one_by_one_share_graphs():
    def compiled(model, loss_fn=None):
        for block in model.layers:
            block.compile(fullgraph=True)
        return step_of(model, loss_fn or nn.MSELoss(), torch.ones(BATCH, 1))

    model = Net(*(Block() for _ in range(4)))
    expected, bare = eager_numbers(model), graphs_of_bare(model, compiled)
    loss_fn = nn.MSELoss()
    inspector = watch(model, loss_fn)
    train(compiled(model, loss_fn), model)
    assert numbers(inspector) == expected
    assert counters["stats"]["unique_graphs"] == bare


def test_train_and_evaluation_passes_keep_their_graphs_apart():
    def epochs(step, model):
        for _ in range(2):
            train(step, model.train())
            with torch.no_grad():
                step(torch.ones(BATCH, 3))
                model.eval()
                step(torch.ones(BATCH, 3))
        model.train()

    model, shown, graphs = Net(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.ReLU()), [], []
    for backend in (None, "eager"):
        for watched in (True, False):
            torch.compiler.reset()
            counters.clear()
            twin, loss_fn = copy.deepcopy(model), nn.MSELoss()
            inspector = watch(twin, loss_fn) if watched else None
            step = step_of(twin, loss_fn, torch.ones(BATCH, 1))
            torch.manual_seed(3)
            epochs(step if backend is None else torch.compile(step, backend=backend, fullgraph=True), twin)
            graphs.append(counters["stats"]["unique_graphs"])
            shown += [numbers(inspector)] if watched else []
    assert graphs[2] == graphs[3] > 1
    assert shown[1] == pytest.approx(shown[0], rel=1e-5, abs=1e-6, nan_ok=True)


@pytest.mark.slow
def test_idle_steps_have_one_graph_more_and_only_the_loss(everything):
    expected, loss_fn = eager_numbers(everything), nn.MSELoss()
    optimizer = torch.optim.SGD(everything.parameters(), lr=0.0)
    inspector = watch(everything, loss_fn, optimizer=optimizer, every=lambda step: step <= STEPS)
    step = compiled_step(everything, loss_fn, backend="aot_eager", fullgraph=True)
    train(step, everything, after=optimizer.step)
    assert numbers(inspector) == expected
    train(step, everything, after=optimizer.step)
    assert {layer for _, layer, _, _ in numbers(inspector)} == {"Loss"}
    assert counters["stats"]["unique_graphs"] == 2


class Subtracts(nn.Module):
    """A loss that changes its input in place."""

    def forward(self, input, target):
        input -= target
        return input.pow(2).mean()


class Keeps(nn.Module):
    """Keeps what it returns."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x):
        self.last = x @ self.weight
        return self.last


class Aliases(nn.Module):
    """Changes what layers have returned in place, and reads it under another name."""

    def __init__(self):
        super().__init__()
        self.first, self.same, self.keeps = nn.Linear(4, 4), nn.Identity(), Keeps()

    def forward(self, x):
        first = self.first(x)
        same = self.same(first)
        same.mul_(2)
        self.keeps(first).mul_(3)
        return first * first + same + self.keeps.last


def loss_of_aliases(lenses):
    torch.manual_seed(0)
    torch.compiler.reset()
    model, loss_fn, x, y = Aliases(), Subtracts(), torch.randn(5, 4), torch.randn(5, 4)
    chosen = lenses(loss_fn)
    stop = watched(chosen)(model, None) if chosen else lambda: None

    def step():
        output = model(x)
        return loss_fn(input=output, target=y) + output.sum()

    loss = torch.compile(step, backend="aot_eager", fullgraph=True)()
    loss.backward()
    stop()
    return [loss.item(), *model.first.weight.grad.flatten().tolist()]


@pytest.mark.parametrize(
    "lenses",
    [
        lambda _: [OutputNorm(include=(nn.Module,))],
        lambda _: [Distribution("output")],
        lambda loss_fn: [TargetStatistics(loss_fn)],
    ],
    ids=["outputs", "distribution", "targets"],
)
def test_what_a_layer_returns_may_be_changed_in_place_under_another_name(lenses):
    assert loss_of_aliases(lenses) == pytest.approx(loss_of_aliases(lambda _: []), rel=1e-6)


class Mapped(nn.Linear):
    def forward(self, x):
        return torch.vmap(super().forward)(x)


class Branched(nn.Module):
    """A layer that is called in a branch."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.inner(x).sin(), lambda x: self.inner(x).cos(), (x,))


def jagged():
    return torch.nested.nested_tensor_from_jagged(torch.ones(6, 3), torch.tensor([0, 2, 6]))


@pytest.mark.filterwarnings("ignore::monitorch.MonitorchWarning")
@pytest.mark.parametrize(
    ("model", "data"),
    [
        (nn.Sequential(Mapped(3, 3), nn.Linear(3, 2)), torch.ones(4, 3)),
        (nn.Sequential(Branched(), nn.Linear(3, 2)), torch.ones(4, 3)),
        (nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), jagged()),
    ],
    ids=["vmap", "cond", "jagged"],
)
@pytest.mark.parametrize(
    "lenses", ["standard", slow("all"), slow([OutputNorm(include=(nn.Linear,))])], ids=["standard", "all", "one"]
)
def test_models_that_operators_of_ours_do_not_fit_into_run_as_they_are(model, data, lenses):
    losses = []
    for lens in (None, lenses):
        torch.compiler.reset()
        own = copy.deepcopy(model)
        stop = (lambda: None) if lens is None else watched(lens)(own, None)
        output = torch.compile(own, backend="aot_eager")(data)
        loss = (output.values() if output.is_nested else output).pow(2).sum()
        loss.backward()
        losses.append([loss.item(), *own[-1].weight.grad.flatten().tolist()])
        stop()
    assert losses[0] == losses[1]


def kept_for_backward(model, loss_fn=None):
    """The bytes that a compiled model keeps, by type; with a loss function it is part of the graph."""
    x, targets = torch.ones(BATCH, 4, 64).cumsum(1), torch.zeros(BATCH * 4, dtype=torch.int64)

    def call():
        output = model(x)
        return output if loss_fn is None else loss_fn(output.flatten(0, 1), targets)

    with torch.autocast("cpu", torch.bfloat16):
        found = torch.compile(call, fullgraph=True)()  # as long as it lives nothing is freed
    node = found.grad_fn
    while not hasattr(node, "saved_tensors"):
        node = node.next_functions[0][0]
    kept = node.saved_tensors
    torch.compiler.reset()
    return {
        dtype: sum(tensor.nbytes for tensor in kept if tensor.dtype == dtype)
        for dtype in (torch.float32, torch.bfloat16)
    }


def watched(lenses):
    def watch(model, loss_fn):
        return monitorch.watch(model, loss_fn=loss_fn, lenses=lenses, every=1, visualizer="dummy").close

    return watch


@pytest.mark.filterwarnings("ignore:calls of functions are not seen")
@pytest.mark.parametrize("has_loss", [slow(False, id="model"), pytest.param(True, id="loss")])
@pytest.mark.parametrize(
    "watch",
    [
        slow(lambda model, loss_fn: watch(model, loss_fn).detach, id="lenses"),
        pytest.param(watched("standard"), id="standard"),
        pytest.param(watched("all"), id="all"),
        pytest.param(lambda model, _: watched([OutputNorm(include=(nn.Module,))])(model, None), id="outputs"),
        slow(lambda model, _: watched([Distribution("output")])(model, None), id="distribution"),
        slow(
            lambda model, loss_fn: watched([OutputNorm(include=(nn.Linear,)), TargetStatistics(loss_fn)])(model, None),
            id="targets",
        ),
    ],
)
def test_no_more_is_kept_for_backward_than_without_a_watch(watch, has_loss):
    layers = nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)
    model, loss_fn = nn.Sequential(*layers), nn.CrossEntropyLoss()
    bare = kept_for_backward(copy.deepcopy(model), nn.CrossEntropyLoss() if has_loss else None)
    stop = watch(model, loss_fn)
    assert kept_for_backward(model, loss_fn if has_loss else None) == bare
    assert bare[torch.bfloat16] > 2 * BATCH * 4 * 64 * 4  # outputs are kept as they are
    stop()
