"""Under torch.compile numbers are those of eager mode; hooks stay out of copies and exported programs."""

import copy
import dataclasses
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from monitorch import MonitorchWarning, PyTorchInspector
from monitorch.engine import allocation
from monitorch.engine.compilation import has_graphs
from monitorch.gatherer import BackwardGatherer, FeedForwardGatherer, ParameterGradientGatherer
from monitorch.gatherer.channel_layout import ChannelLayout
from monitorch.lens import (
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterGradientGeometry,
    ParameterUpdateGeometry,
)
from monitorch.visualizer.record_sink import RecordSink

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # the compiler hides this warning of its own, but cannot where warnings are errors, watched or not
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]
STEPS = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.last = nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


class Numbers(RecordSink):
    def __init__(self):
        super().__init__()
        self.found = {}

    def write(self, records):
        self.found |= {(r.epoch, r.layer, r.tag, r.statistic): r.value for r in records}


def watch(model):
    lenses = [OutputNorm(), OutputActivation(), OutputGradientGeometry(), ParameterGradientGeometry()]
    return PyTorchInspector(lenses, module=model, visualizer=Numbers(), on_error="raise")


def train(model, inspector=None, epochs=1):
    for epoch in range(epochs):
        for step in range(STEPS):
            model.zero_grad()
            x = torch.linspace(-1, 1, 12).reshape(4, 3) * (step + epoch + 1)
            model(x).pow(2).sum().backward()
        if inspector is not None:
            inspector.tick_epoch()


@pytest.fixture
def eager_numbers():
    model = Net()
    inspector = watch(model)
    train(model, inspector, epochs=2)
    return inspector.visualizer.found


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), "aot_eager"])
@pytest.mark.parametrize("attach_first", [True, False], ids=["attach, compile", "compile, attach"])
def test_numbers_are_those_of_eager_mode(backend, attach_first, eager_numbers):
    model = Net()
    compiled = torch.compile(model, backend=backend)
    inspector = watch(model if attach_first else compiled)
    train(compiled, inspector, epochs=2)
    assert inspector.visualizer.found == pytest.approx(eager_numbers, rel=1e-5, abs=1e-7)
    assert counters["stats"]["unique_graphs"] > 0


class Wide(Net):
    """A model whose outputs and weights are larger than a sketch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 5000), nn.Linear(5000, 1)


@pytest.mark.parametrize("every", [1, 3])
def test_sketches_are_those_of_eager_mode(every, monkeypatch):
    monkeypatch.setattr(allocation, "MOST_COPIES", 0)
    found = []
    for backend in (None, "aot_eager"):
        model = Wide()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        lenses = [OutputGradientGeometry(correlation="auto"), ParameterUpdateGeometry(optimizer, correlation="auto")]
        compiled = model if backend is None else torch.compile(model, backend=backend)
        options = {"optimizer": optimizer, "every": every, "on_error": "raise"}
        inspector = PyTorchInspector(lenses, module=compiled, visualizer=Numbers(), **options)
        for step in range(2 * STEPS):
            optimizer.zero_grad()
            compiled(torch.linspace(-1, 1, 12).reshape(4, 3) * (step + 1)).pow(2).sum().backward()
            optimizer.step()
        inspector.tick_epoch()
        assert {record.error for record in inspector.records() if record.tag.endswith("Correlation")} == {0.022}
        found.append(
            {
                what: value
                for what, value in inspector.visualizer.found.items()
                if "Gradient" in what[2] or "Update" in what[2]
            }
        )
    assert found[0]
    assert found[1] == pytest.approx(found[0], rel=1e-5, abs=1e-6)


def test_attaching_to_a_model_that_ran_compiled_says_that_it_compiles_anew(eager_numbers):
    model = torch.compile(Net(), backend="aot_eager")
    train(model)
    with pytest.warns(MonitorchWarning, match=r"torch.compiler.reset\(\)"):
        inspector = watch(model)
    train(model, inspector, epochs=2)
    assert inspector.visualizer.found == pytest.approx(eager_numbers, rel=1e-5, abs=1e-7)


def test_a_model_compiled_in_place_is_noticed_too(eager_numbers):
    model = Net()
    model.compile(backend="aot_eager")
    train(model)
    with pytest.warns(MonitorchWarning, match=r"torch.compiler.reset\(\)"):
        inspector = watch(model)
    train(model, inspector, epochs=2)
    assert inspector.visualizer.found == pytest.approx(eager_numbers, rel=1e-5, abs=1e-7)


class OtherNet(Net):
    """Another class: no graph of Net runs in its place."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def test_graphs_of_other_models_and_from_before_a_reset_are_none_of_ours(eager_numbers):
    ran = torch.compile(Net(), backend="aot_eager")
    train(ran)
    assert has_graphs(ran)
    assert not has_graphs(torch.compile(OtherNet(), backend="aot_eager"))
    torch.compiler.reset()
    assert not has_graphs(ran)
    model = torch.compile(Net(), backend="aot_eager")
    inspector = watch(model)  # a warning would be an error
    train(model, inspector, epochs=2)
    assert inspector.visualizer.found == pytest.approx(eager_numbers, rel=1e-5, abs=1e-7)


def test_one_graph_for_recording_and_one_for_inactive_times():
    model = torch.compile(Net(), backend="aot_eager", fullgraph=True)
    inspector = watch(model)
    train(model, inspector, epochs=10)
    assert counters["stats"]["unique_graphs"] == 1
    for _ in range(3):
        with inspector.paused():
            train(model, inspector, epochs=2)
        train(model, inspector, epochs=2)
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


def test_detaching_from_a_compiled_model_leaves_it_trainable():
    model = torch.compile(Net(), backend="aot_eager")
    inspector = watch(model)
    train(model, inspector)
    inspector.detach()
    train(model)
    bare = Net()
    train(bare)
    torch.testing.assert_close(model._orig_mod.first.weight.grad, bare.first.weight.grad)


TRACERS = {
    "export": lambda model, x: torch.export.export(model, (x,)),
    "jit": lambda model, x: torch.jit.trace(model, x),
    "vmap": lambda model, x: torch.func.vmap(model)(x),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("tracer", TRACERS)
def test_tracing_a_watched_model_leaves_no_sample(tracer, eager_numbers):
    model = Net()
    inspector = watch(model)
    TRACERS[tracer](model, torch.ones(4, 3))
    train(model, inspector, epochs=2)
    assert inspector.visualizer.found == pytest.approx(eager_numbers)


def test_export_of_a_watched_model_computes_the_same():
    model, x = Net(), torch.ones(4, 3)
    bare = model(x)
    inspector = watch(model)
    exported = torch.export.export(model, (x,)).module()
    inspector.detach()
    torch.testing.assert_close(exported(x), bare)


class Stem(nn.Module):
    """A convolution in front of layers whose channels are last."""

    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Conv1d(3, 3, 1), Net()

    def forward(self, x):
        return self.body(self.stem(x).transpose(1, 2))


def test_channels_inside_a_compiled_part_are_not_those_of_the_layer_that_ran_outside():
    death = []
    for compiled in (False, True):
        model = Stem()
        model.body.first.bias.data = torch.tensor([-100.0] * 2 + [100.0] * 6)  # two of eight channels are dead
        if compiled:
            model.body.compile(backend="aot_eager", fullgraph=True)
        inspector = PyTorchInspector([OutputActivation()], module=model, visualizer="dummy", on_error="raise")
        for _ in range(3):
            model(torch.randn(4, 3, 5)).sum().backward()
        inspector.tick_epoch()
        death.append([record.value for record in inspector.records() if record.statistic == "death_rate"])
    assert death[0] == death[1] == [0.25]
    assert counters["stats"]["unique_graphs"] == 1


def train_every_third(compile_step):
    """What is shown at each of nine steps, three of which are observed."""
    model = Net()
    lenses = [OutputNorm(), OutputActivation(), OutputGradientGeometry(), ParameterGradientGeometry()]
    inspector = PyTorchInspector(lenses, module=model, visualizer=Numbers(), on_error="raise", every=3)
    step = compile_step(model)
    for number in range(9):
        model.zero_grad()
        step(torch.linspace(-1, 1, 12).reshape(4, 3).roll(number) * (number + 1)).pow(2).sum().backward()
        inspector.tick_epoch()
    return inspector.visualizer.found


@pytest.mark.parametrize("whole_step", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["model", "step"])
def test_observed_steps_are_those_of_eager_mode(whole_step):
    def compile_step(model):
        return torch.compile((lambda x: model(x)) if whole_step else model, backend="aot_eager", fullgraph=True)

    found = train_every_third(compile_step)
    assert {epoch for epoch, *_ in found} == {3, 6, 9}
    assert found == pytest.approx(train_every_third(lambda model: model), rel=1e-5, abs=1e-7)
    assert counters["stats"]["unique_graphs"] == 2


@dataclasses.dataclass
class Output:
    ids: list
    hidden: torch.Tensor


@dataclasses.dataclass(frozen=True)
class FrozenOutput:
    hidden: torch.Tensor


class Structured(Net):
    """A layer that returns an object of the user's own class."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first.forward = self._first

    def _first(self, x):
        hidden = nn.functional.linear(x, self.first.weight, self.first.bias)
        return Output([1, 2], hidden) if self.kind is Output else FrozenOutput(hidden)

    def forward(self, x):
        return self.last(self.act(self.first(x).hidden))


@pytest.mark.parametrize("kind", [Output, pytest.param(FrozenOutput, marks=pytest.mark.slow)])
def test_the_gradient_of_a_tensor_in_a_dataclass_is_seen_as_in_eager_mode(kind, eager_numbers):
    model = Structured(kind)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    inspector = watch(compiled)
    train(compiled, inspector, epochs=2)
    assert inspector.visualizer.found == pytest.approx(eager_numbers, rel=1e-5)
    assert any(layer == "first" and tag == "Output Gradient Norm" for _, layer, tag, _ in eager_numbers)


def test_a_watched_model_compiles_where_warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net, lens = Net(), OutputGradientGeometry()
        inspector = PyTorchInspector([lens], module=net, visualizer="dummy", on_error="raise")
        torch.compile(net, backend="eager")(torch.ones(2, 3)).sum().backward()
        inspector.tick_epoch()
    assert {record.layer for record in inspector.records()} == {"first", "last"}


def test_filters_of_warnings_are_left_alone_where_none_is_an_error():
    with warnings.catch_warnings():
        warnings.resetwarnings()
        before = list(warnings.filters)
        PyTorchInspector([OutputGradientGeometry()], module=Net(), visualizer="dummy")
        assert warnings.filters == before


DUPLICATES = {"deepcopy": copy.deepcopy, "pickle": lambda module: pickle.loads(pickle.dumps(module))}


@pytest.fixture(params=["outputs", "output gradients", "input gradients", "parameter gradients", "channels"])
def gather(request, keeper, full_keeper, state):
    """Put a gatherer that hooks by itself on a module."""

    def build(module):
        if request.param == "outputs":
            return FeedForwardGatherer(module, [keeper], "layer", state)
        if request.param == "parameter gradients":
            return ParameterGradientGatherer("weight", module, [keeper], "layer", state, follow=True)
        if request.param == "channels":
            layout = ChannelLayout()
            layout.watch(module)
            return layout
        return BackwardGatherer(module, [full_keeper if "input" in request.param else keeper], "layer", state)

    return build


@pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)
def test_a_copy_works_and_is_not_gathered_from(duplicate, gather, linear, keeper, full_keeper):
    gatherer = gather(linear)
    twin = duplicate(linear)
    twin(torch.ones(1, 3, requires_grad=True)).sum().backward()
    assert keeper.calls == full_keeper.calls == []
    assert twin.weight.grad is not None
    gatherer.detach()


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_has_no_trace_of_the_hook(strict, gather, keeper, full_keeper, request):
    if strict and "input gradients" in request.node.name:
        pytest.skip("torch itself does not trace full backward hooks")
    model, inputs = nn.Sequential(nn.Linear(3, 2)), (torch.ones(1, 3),)
    bare = str(torch.export.export(model, inputs, strict=strict).graph)
    gatherer = gather(model[0])
    program = str(torch.export.export(model, inputs, strict=strict).graph)
    assert program == bare or "input gradients" in request.node.name  # torch adds a view for such a hook
    assert keeper.calls == full_keeper.calls == []
    gatherer.detach()
