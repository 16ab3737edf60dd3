"""What tests of several packages share: keepers of what gatherers hand over, oracles, counters, real processes."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.overrides import TorchFunctionMode

from monitorch.engine.engine import Engine
from monitorch.inspector.inspector_state import InspectorState
from monitorch.numerical import RunningMeanVar
from monitorch.preprocessor import (
    AbstractBackwardPreprocessor,
    AbstractForwardPreprocessor,
    AbstractModulePreprocessor,
    AbstractTensorPreprocessor,
)
from tests.programs import Programs


class Keeper(
    AbstractForwardPreprocessor, AbstractBackwardPreprocessor, AbstractModulePreprocessor, AbstractTensorPreprocessor
):
    """Keeps everything in order; raises ``error`` instead where one is set."""

    needs_grad_input = False

    def __init__(self):
        self.calls, self.remembered, self.gaps = [], [], []
        self.error = None

    value = property(lambda self: {})

    def _take(self, *data):
        if self.error is not None:
            raise self.error
        self.calls.append(data)

    process_fw = process_bw = process_module = _take

    def process_tensor(self, name, tensor):
        self._take(name, tensor.detach().clone())

    def remember(self, name, tensor):
        self.remembered.append(tensor.detach().clone())

    def interrupt(self, name):
        self.gaps.append(name)


class FullKeeper(Keeper):
    """One that also wants the gradients of a module's inputs."""

    needs_grad_input = True


@pytest.fixture
def keeper():
    return Keeper()


@pytest.fixture
def full_keeper():
    return FullKeeper()


@pytest.fixture
def state():
    return InspectorState()


@pytest.fixture
def measured():
    """The state of an inspector with an engine; errors are told."""
    state = InspectorState()
    state.engine = Engine(state, torch.device("cpu"))
    return state


@pytest.fixture
def rows_of():
    """The layers of all rows that wait in the engine."""

    def layers(state):
        infos = np.array(state.engine.buffers[torch.device("cpu")].infos, int).reshape(-1, 6)
        return [state.engine.meters[number].name for number in infos[:, 0]]

    return layers


class Cracked(torch.Tensor):
    """A tensor that falls apart when it is looked at."""

    def numpy(self, **options):
        raise RuntimeError("it fell apart")


@pytest.fixture
def cracked():
    return lambda *shape: torch.ones(shape).as_subclass(Cracked)


@pytest.fixture
def strict_state():
    return InspectorState(on_error="raise")


@pytest.fixture
def count_hooks():
    def count(*things):
        hooks = [getattr(thing, name) for thing in things for name in dir(thing) if name.endswith("_hooks")]
        return sum(len(found) for found in hooks if isinstance(found, dict))

    return count


@pytest.fixture
def linear():
    return nn.Linear(3, 2)


@pytest.fixture
def fresh_compiler():
    """No graphs from before, none from a disk, and none that is compiled over and over."""
    torch.compiler.reset()
    counters.clear()
    with (
        torch._dynamo.config.patch(fail_on_recompile_limit_hit=True),
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield
    torch.compiler.reset()


@pytest.fixture(scope="session")
def assert_moments():
    """Compare moments with the samples behind them, in float64 and in any order of magnitude."""

    def check(found, samples):
        accumulator = found if isinstance(found, RunningMeanVar) else RunningMeanVar(*found[:5], nonfinite=found[5])
        count, mean, var, low, high, nonfinite = accumulator.state()
        finite = [x for x in samples if math.isfinite(x)]
        assert (count, nonfinite) == (len(finite), len(samples) - len(finite))
        assert (low, high) == (min(finite, default=math.inf), max(finite, default=-math.inf))
        scale = max(map(abs, finite), default=0.0)
        expected = math.fsum(finite) / len(finite) if finite else 0.0
        assert abs(mean - expected) <= 1e-12 * scale + 1e-320
        deviation = float(np.std(np.array(finite) / scale)) if scale else 0.0
        assert abs(accumulator.std - deviation * scale) <= 1e-6 * scale + 1e-150
        spread = deviation**2 * scale * scale
        if spread < 1e300:
            assert abs(var - spread) <= 1e-12 * scale * scale + 1e-300
        else:
            assert var > 1e299

    return check


READING = {"cpu", "item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__"}


class HostReads(TorchFunctionMode):
    """Counts the calls that bring numbers to the host."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls[func.__name__] += func.__name__ in READING
        return func(*args, **(kwargs or {}))


@pytest.fixture
def host_reads():
    return HostReads


@pytest.fixture(scope="session")
def programs():
    started = Programs()
    yield started
    started.close()


@pytest.fixture
def run_program(programs, tmp_path):
    """Run a text as a program, with arguments and in the folder of the test; returns what ``subprocess.run`` would."""
    return lambda code, *arguments: programs.run(code, *arguments, folder=tmp_path)


@pytest.fixture(scope="session")
def run_ranks(programs, tmp_path_factory):
    """Call ``function(rank, folder)`` of a test file in gloo processes; returns what each rank returned."""

    def run(function, world_size=2, **options):
        return programs.run_ranks(function, world_size, tmp_path_factory.mktemp("ranks"), **options)

    return run
