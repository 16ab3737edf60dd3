"""The hook that hands tensors of a module over: before and after it runs, only in observed steps, and from graphs."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from monitorch import MonitorchWarning, PyTorchInspector
from monitorch.engine.module_tap import ModuleTap, here
from monitorch.lens import OutputNorm, ParameterGradientGeometry

TRAINING, EVALUATION = 3, 0


class Doubles(nn.Module):
    """Counts its calls in a buffer, and doubles what it gets."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return 2 * x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.twice = nn.Linear(2, 2), Doubles()

    def forward(self, x):
        return self.twice(self.linear(x))


@pytest.fixture
def run():
    class Run:
        def __init__(self):
            self.model = self.call = Net()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.seen = []

        def watch(self, *lenses, **options):
            options = {"optimizer": self.optimizer, "visualizer": "dummy", "on_error": "raise", **options}
            self.inspector = PyTorchInspector([OutputNorm(include=nn.Linear), *lenses], module=self.model, **options)
            return self

        def tap(self, **options):
            read = options.pop("read", self.read)
            engine = self.inspector.state.engine
            return ModuleTap(engine, self.model.twice, self.pick, read, "testing", **options)

        @staticmethod
        def pick(module, args, kwargs, *output):
            return {"calls": module.calls, "input": args[0], **({"output": output[0]} if output else {})}

        def read(self, named, kind):
            self.seen.append((kind, {name: x.detach().clone() for name, x in named.items()}))

        def step(self, value=1.0):
            self.call(torch.full((3, 2), value)).sum().backward()
            self.optimizer.step()

    return Run()


@pytest.mark.parametrize("before", [False, True])
def test_it_looks_before_or_after_the_module_runs(run, before):
    run.watch().tap(before=before)
    run.step()
    ((kind, named),) = run.seen
    assert kind == TRAINING
    assert list(named) == (["calls", "input"] if before else ["calls", "input", "output"])
    assert named["calls"] == (0 if before else 1)
    assert before or torch.equal(named["output"], 2 * named["input"])


def test_the_kind_of_the_pass_is_told(run):
    run.watch().tap()
    with torch.no_grad():
        run.model.eval()(torch.ones(1, 2))
    assert [kind for kind, _ in run.seen] == [EVALUATION]


def test_only_observed_steps_count_not_those_that_are_compared_with(run):
    run.watch(ParameterGradientGeometry(), every=4).tap()
    for value in range(8):
        run.step(float(value))
    assert [named["calls"].item() for _, named in run.seen] == [4, 8]


def test_nothing_is_handed_over_after_it_was_removed(run):
    tap = run.watch().tap()
    tap.remove()
    run.step()
    assert run.seen == []
    assert not run.model.twice._forward_hooks


def test_an_error_of_the_reader_is_told_and_training_goes_on(run):
    def read(named, kind):
        raise RuntimeError("it cannot be read")

    run.watch(on_error="warn").tap(read=read)
    with pytest.warns(MonitorchWarning, match="testing.*it cannot be read"):
        run.step()
    assert run.model.linear.weight.grad is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_buffer_that_a_graph_changes_is_seen_before_and_after(run, backend):
    run.watch(every=2)
    run.tap(before=True)
    run.tap()
    run.call = torch.compile(run.model, backend=backend, fullgraph=True)
    for _ in range(4):
        run.step()
    assert [named["calls"].item() for _, named in run.seen] == [1, 2, 3, 4]  # of the second and the fourth step
    assert not counters["graph_break"]


def test_tensors_without_numbers_are_left_out():
    named = {"there": torch.ones(2), "meta": torch.ones(2, device="meta"), "sparse": torch.eye(2).to_sparse()}
    assert {name: x.layout for name, x in here(named).items()} == dict.fromkeys(("there", "sparse"), torch.strided)
