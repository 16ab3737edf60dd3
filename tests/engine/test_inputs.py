"""What enters the model and the loss: which tensors, in which passes, and what it costs when nobody looks."""

import dataclasses

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from monitorch import MonitorchWarning, PyTorchInspector
from monitorch.engine.inputs import MOST_INPUTS, loss_arguments, named_inputs
from monitorch.lens import ActivationHealth, InputStatistics, OutputNorm, TargetStatistics

x, y, ids = torch.ones(2, 3), torch.zeros(2, 3), torch.ones(2, dtype=torch.int64)
EVERY = 4


@dataclasses.dataclass
class Batch:
    image: torch.Tensor
    label: int = 3


@pytest.mark.parametrize(
    ("args", "kwargs", "names"),
    [
        ((x,), {}, ["input"]),
        ((x, ids), {}, ["input.0", "input.1"]),
        ((x,), {"mask": ids}, ["input", "input.mask"]),
        ((), {"pixel_values": x, "labels": ids}, ["input.pixel_values", "input.labels"]),
        (([x, y],), {}, ["input.0", "input.1"]),
        (({"a": x, "b": (y, {"c": ids})},), {}, ["input.a", "input.b.0", "input.b.1.c"]),
        ((Batch(x),), {}, ["input.image"]),
        ((x, None, "text", 3), {"flag": True}, ["input.0"]),
        ((x > 0, x.to(torch.complex64), torch.empty(0, 3)), {}, []),
        ((), {}, []),
        (([x] * (MOST_INPUTS + 9),), {}, [f"input.{number}" for number in range(MOST_INPUTS)]),
    ],
)
def test_names_of_inputs(args, kwargs, names):
    assert list(named_inputs(args, kwargs)) == names


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((x, y), {}, {"output": x, "target": y}),
        ((x,), {"target": y}, {"output": x, "target": y}),
        ((), {"input": x, "target": y, "weight": ids}, {"output": x, "target": y}),
        ((x, y, ids), {}, {"output": x, "target": y}),
        (({"logits": x, "hidden": y}, [ids]), {}, {"output": x, "target": ids}),
        ((x,), {"labels": ids}, {"output": x, "target": ids}),
        ((x,), {}, {"output": x}),
        ((x, None), {}, {"output": x}),
        ((3, "text"), {"other": x}, {}),
    ],
)
def test_arguments_of_a_loss(args, kwargs, found):
    arguments = loss_arguments(args, kwargs)
    assert list(arguments) == list(found)
    assert all(arguments[name] is tensor for name, tensor in found.items())


@pytest.fixture
def run():
    """A model and a loss under watch, and how many samples there are of input, output and target."""

    class Run:
        def __init__(self):
            self.model, self.loss_fn = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), nn.CrossEntropyLoss()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.call, self.passes = self.model, 1

        def watch(self, *, with_optimizer=True, **options):
            lenses = [InputStatistics(), TargetStatistics(self.loss_fn)]
            options = {"visualizer": "dummy", "on_error": "raise", **options}
            optimizer = self.optimizer if with_optimizer else None
            self.inspector = PyTorchInspector(lenses, module=self.model, optimizer=optimizer, **options)
            return self

        def step(self):
            for _ in range(self.passes):
                self.loss_fn(self.call(torch.randn(5, 3)), torch.tensor([0, 1, 1, 0, 1])).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

        def evaluate(self, train, grad):
            self.model.train(train)
            with torch.set_grad_enabled(grad):
                self.loss_fn(self.call(torch.randn(5, 3)), torch.tensor([0, 1, 1, 0, 1]))
            self.model.train()

        @property
        def samples(self):
            values = [lens._preprocessors[0].value for lens in self.inspector.lenses]
            found = {**values[0], **values[1]}
            return {name: own["range"].count // 2 for name, own in found.items()}

    return Run()


@pytest.mark.parametrize("with_optimizer", [True, False])
@pytest.mark.parametrize(("every", "expected"), [(1, 8), (4, 2)])
def test_observed_steps_are_sampled(run, every, expected, with_optimizer):
    run.watch(every=every, with_optimizer=with_optimizer)
    for _ in range(8):
        run.step()
    assert run.samples == {"input": expected, "output": expected, "target": expected}


def test_every_micro_batch_is_a_sample(run):
    run.passes = 3
    run.watch(every=2)
    for _ in range(4):
        run.step()
    assert run.samples == {"input": 6, "output": 6, "target": 6}


@pytest.mark.parametrize(("train", "grad"), [(True, False), (False, True), (False, False)])
def test_evaluation_is_no_sample(run, train, grad):
    run.watch()
    run.step()
    run.evaluate(train, grad)
    assert run.samples == {"input": 1, "output": 1, "target": 1}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_repeats_nothing(run, reentrant):
    run.watch(every=2)
    run.call = lambda inputs: checkpoint(run.model, inputs.requires_grad_(), use_reentrant=reentrant)
    for _ in range(4):
        run.step()
    assert run.samples == {"input": 2, "output": 2, "target": 2}


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_loss_that_is_computed_again_counts_once(run, reentrant):
    run.watch()
    output = run.model(torch.randn(5, 3))
    checkpoint(lambda output: run.loss_fn(output, torch.tensor([0] * 5)), output, use_reentrant=reentrant).backward()
    assert run.samples == {"input": 1, "output": 1, "target": 1}


def test_paused_and_detached_nothing_is_read(run):
    run.watch()
    with run.inspector.paused():
        run.step()
    assert run.samples == {}
    run.step()
    assert run.samples == {"input": 1, "output": 1, "target": 1}
    tap = run.inspector.state.engine
    run.inspector.detach()
    run.step()
    assert tap.inputs.readers == tap.module_taps == []
    assert not run.loss_fn._forward_pre_hooks
    assert not run.model._forward_pre_hooks


def test_a_model_that_is_attached_later_is_read_alone(run):
    run.watch(with_optimizer=False)
    other = nn.Linear(3, 2)
    run.inspector.attach(other)
    run.step()
    assert run.samples == {"output": 1, "target": 1}  # the loss is the same
    run.loss_fn(other(torch.ones(5, 3)), torch.tensor([0] * 5)).backward()
    assert run.samples == {"input": 1, "output": 2, "target": 2}


def test_inputs_that_cannot_be_read_keep_nobody_from_looking():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.act = nn.Linear(4, 4), nn.ReLU()

        def forward(self, x, ragged):
            return self.act(self.layer(x))

    model = Net()
    inspector = PyTorchInspector(
        [InputStatistics(), ActivationHealth()], module=model, visualizer="dummy", on_error="raise"
    )
    ragged = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    model(torch.ones(5, 4), ragged).sum().backward()
    inspector.tick_epoch()
    found = {(record.tag, record.layer) for record in inspector.records()}
    assert ("Input Mean", "input.0") in found
    assert ("Activation Zeros", "act") in found


def test_idle_steps_have_no_hook_on_the_loss(run):
    run.watch(every=EVERY, with_optimizer=False)
    hooks = []
    for _ in range(2 * EVERY):
        run.step()
        hooks.append(len(run.loss_fn._forward_pre_hooks))
    assert hooks == [0, 0, 0, 1] * 2
    assert run.samples == {"input": 2, "output": 2, "target": 2}


def test_inputs_are_read_before_the_model_changes_them(run):
    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, inputs):
            return self.linear(inputs.mul_(0))

    run.model = run.call = Changes()
    run.watch()
    run.model(torch.full((4, 3), 7.0)).sum().backward()
    found = run.inspector.lenses[0]._preprocessors[0].value["input"]["mean"]
    assert found.mean == 7


def test_a_layer_that_is_called_instead_of_the_model_is_read(run):
    run.call = lambda inputs: run.model[2](run.model[1](run.model[0](inputs)))
    run.watch()
    run.inspector.lenses.append(OutputNorm(include=nn.Linear))
    run.inspector.attach(run.model)
    for _ in range(3):
        run.step()
    assert run.samples["input"] == 2  # the first pass shows which layer comes first


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("what", ["model", "model with its loss"])
@pytest.mark.parametrize("with_optimizer", [True, False])
def test_compiled_graphs_are_not_broken_and_pass_on_what_enters(run, what, with_optimizer):
    run.watch(every=2, with_optimizer=with_optimizer)
    run.call = torch.compile(run.model, backend="aot_eager", fullgraph=True)
    compute = torch.compile(lambda x, y: run.loss_fn(run.model(x), y), backend="aot_eager", fullgraph=True)
    batches = [(torch.randn(5, 3), torch.randint(0, 2, (5,))) for _ in range(8)]
    for inputs, targets in batches:
        loss = run.loss_fn(run.call(inputs), targets) if what == "model" else compute(inputs, targets)
        loss.backward()
        run.optimizer.step()
    assert run.samples == dict.fromkeys(("input", "output", "target"), 4)
    assert counters["stats"]["unique_graphs"] == 2  # one for observed steps, one for the others
    assert not counters["graph_break"]
    means = [inputs.double().mean().item() for inputs, _ in batches[1::2]]
    found = run.inspector.lenses[0]._preprocessors[0].value["input"]["mean"]
    assert found.mean == pytest.approx(sum(means) / len(means), abs=1e-6)


class Torn(torch.Tensor):
    """A tensor that falls apart when it is looked at."""

    def detach(self):
        raise RuntimeError("it fell apart")


def test_training_goes_on_with_data_that_cannot_be_read(run):
    run.watch(on_error="warn")
    with pytest.warns(MonitorchWarning, match="it fell apart"):
        output = run.model(torch.ones(5, 3).as_subclass(Torn)).as_subclass(torch.Tensor)
    run.loss_fn(output, torch.tensor([0] * 5)).backward()
    assert run.samples == {"output": 1, "target": 1}
    assert run.model[0].weight.grad is not None
