"""Under torch.compile monitors record what they record without it, and nothing is compiled per sample."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from monitorch import MonitorchWarning
from monitorch.observe import CAReducer, DifferenceMonitor, EMAReducer, OutputMonitor, PassthroughReducer, StateMonitor

# the compiler hides this warning of its own, but cannot where warnings are errors
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
STEPS = 12


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).tanh())


def start_over():
    torch.compiler.reset()
    counters.clear()


@pytest.fixture(autouse=True)
def _compiler_that_admits_its_limits():
    start_over()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    start_over()


def watch(model):
    return [
        DifferenceMonitor(PassthroughReducer(1.0, 10.0), "running_mean", model.norm),
        DifferenceMonitor(CAReducer(1.0), "norm.num_batches_tracked", model),
        OutputMonitor(EMAReducer(1.0, 0.5, 3.0), model.first),
        StateMonitor(CAReducer(1.0, 4.0, inplace=True), "weight", model.last),
    ]


def train(model, steps=STEPS):
    for step in range(steps):
        model.zero_grad()
        model(torch.linspace(-1, 1, 15).reshape(5, 3) * (step + 1)).pow(2).sum().backward()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_numbers_are_those_of_eager_mode_and_nothing_is_compiled_per_sample(backend):
    plain, model = Net(), Net()
    expected, found = watch(plain), watch(model)
    train(plain)
    compiled = torch.compile(model, backend=backend)
    train(compiled, 2)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0
    train(compiled, STEPS)
    assert counters["stats"]["unique_graphs"] == graphs
    for monitor in found:
        monitor.clear()
    model.load_state_dict(Net().state_dict())
    train(compiled)
    assert counters["stats"]["unique_graphs"] == graphs
    for eager, monitor in zip(expected, found, strict=True):
        assert monitor.reducer.count == STEPS
        torch.testing.assert_close(monitor.dump(), eager.dump())


def test_monitor_on_the_compiled_wrapper_costs_no_graph():
    bare = torch.compile(Net(), backend="aot_eager")
    train(bare, 3)
    graphs = counters["stats"]["unique_graphs"]
    start_over()
    model = torch.compile(Net(), backend="aot_eager")
    monitor = DifferenceMonitor(PassthroughReducer(1.0, 3.0), "norm.num_batches_tracked", model, eval_update=False)
    train(model, 3)
    assert monitor.dump().tolist() == [1, 1, 1]
    assert counters["stats"]["unique_graphs"] == graphs
    model.eval()
    model(torch.ones(2, 3))
    assert monitor.reducer.count == 3


def test_watching_a_model_that_ran_compiled_says_that_it_compiles_anew():
    model = Net()
    model.compile(backend="aot_eager")
    train(model, 1)
    with pytest.warns(MonitorchWarning, match=r"torch.compiler.reset\(\)"):
        monitor = OutputMonitor(CAReducer(1.0), model)
    train(model, 2)
    assert monitor.reducer.count == 2


def test_copy_of_a_watched_model_compiles():
    model = Net()
    monitor = OutputMonitor(CAReducer(1.0), model.first)
    copied = torch.compile(copy.deepcopy(model), backend="aot_eager")
    train(copied, 3)
    assert monitor.reducer.count == 0
    monitor.deregister()
    assert counters["stats"]["unique_graphs"] > 0
