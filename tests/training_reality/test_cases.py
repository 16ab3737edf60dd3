"""Every row of the table: what the inspector shows is what an oracle in float64 says, and training does not notice."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch._dynamo.utils import counters

from monitorch import MonitorchWarning, PyTorchInspector
from monitorch.lens import (
    BatchNormStatistics,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterFacts,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
    Routing,
    SignalToNoise,
    UpdateRatio,
)
from tests.training_reality import loops
from tests.training_reality.cases import CHECKPOINTING, COMPILED, EAGER
from tests.training_reality.combinations import combinations
from tests.training_reality.journal import Training
from tests.training_reality.oracle import MEASURED, Oracle

# the compiler hides these warnings of its own, but cannot where warnings are errors
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
]
# a model that checkpoints is evaluated with the same code
EVALUATED = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
CASES = [*EAGER, *CHECKPOINTING, *COMPILED, *combinations(on_gpu=torch.cuda.is_available())]
QUICK = {
    "checkpointing": (
        *("gradient accumulation", "GradScaler, overflow", "steps inside backward"),
        *("parameters in no optimizer", "evaluation in between"),
    ),
    "reentrant checkpointing": ("plain", "gradient accumulation", "clipping", "GradScaler", "evaluation in between"),
    "compiled": ("gradient accumulation", "GradScaler, overflow", "tied weights"),
    "compiled, checkpointing": ("plain",),
}
"""Examples of combinations; the others are slow tests."""

LIKE_OTHERS_WITHOUT_A_GPU = "torch.compile, `mode='reduce-overhead'`"

ANY_ORDER = {("sparse gradients", "cuda")}
"""Where training does not repeat itself: a GPU adds up the rows of a sparse gradient in any order."""

LINES = {"line_aggregation": ("mean", "min", "max"), "range_aggregation": None}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
STATISTICS = {"mean", "min", "max", "activation_rate", "death_rate", "last", "noise_scale"}
FAMILIES = {
    "OutputNorm": "output norm",
    "OutputActivation": "activation rates",
    "OutputGradientGeometry": "output gradients",
    "ParameterGradientGeometry": "parameter gradients",
    "ParameterNorm": "parameter norms",
    "ParameterUpdateGeometry": "parameter updates",
    "UpdateRatio": "parameter updates",
    "Routing": "routing",
    "BatchNormStatistics": "BatchNorm statistics",
    "ParameterFacts": "parameter updates",
    "SignalToNoise": "parameter gradients",
}
LATER = {"UpdateRatio", "ParameterFacts", "SignalToNoise"}
"""A bias of 0 has no ratio at first, a first step no checksum before it, and some steps no noise."""


def lenses(case, optimizers):
    chosen = {"parameters": case.parameters}
    return [
        OutputNorm(include=MEASURED, comparison_plot=False, **LINES),
        *([OutputActivation(warning_plot=False)] if "activation rates" in case.records else []),
        *([OutputGradientGeometry(**LINES)] if "output gradients" in case.records else []),
        ParameterGradientGeometry(**chosen, **LINES),
        ParameterNorm(**chosen, comparison_plot=False),
        *(ParameterUpdateGeometry(optimizer, **chosen, **LINES) for optimizer in optimizers),
        *(UpdateRatio(optimizer, **chosen, **LINES) for optimizer in optimizers),
        *([Routing()] if "routing" in case.records else []),
        *([BatchNormStatistics(**LINES)] if "BatchNorm statistics" in case.records else []),
        *(SignalToNoise(optimizer) for optimizer in optimizers),
        ParameterFacts(optimizers),
    ]


def train(case, device, *, watched):
    torch.compiler.reset()
    counters.clear()
    torch.manual_seed(0)
    root = case.model()
    twin = copy.deepcopy(root)
    root.to(device)
    called = root if case.compiled is None else case.compiled(root)
    training = Training(root, called, case.optimizers(root), case.new_scaler(device), case.autocast, case.precision)
    if case.attach_after:
        loops.batch_loss(0)(called, case.precision)
    if watched:
        known = {"optimizer": training.optimizers, "grad_scaler": training.scaler, "gradient": case.view}
        told = {} if case.view == "backward" else {name: given for name, given in known.items() if given is not None}
        looks = lenses(case, training.optimizers)
        says = pytest.warns(MonitorchWarning, match="compiles again") if case.attach_after else nullcontext()
        with says:
            training.inspector = PyTorchInspector(looks, module=called, visualizer="dummy", on_error="raise", **told)
    case.loop(training)
    training.graphs, training.breaks = counters["stats"]["unique_graphs"], counters["graph_break"].total()
    return training, twin


def numbers(records):
    return {
        (record.tag, record.layer, record.statistic): record.value
        for record in records
        if record.lens in FAMILIES and record.statistic in STATISTICS and record.tag != "Parameter Checksum"
    }


@pytest.fixture(scope="module", params=DEVICES)
def device(request):
    """Where to train, with the precision that the dtype says."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield request.param


def row(case):
    # all tests of a row in one worker: it is trained once
    own = [EVALUATED] if case.loop is loops.evaluating else []
    base, _, way = case.name.rpartition(" + ")
    if base and base not in QUICK.get(way, ()):
        own.append(pytest.mark.slow)
    if case.name == LIKE_OTHERS_WITHOUT_A_GPU and not torch.cuda.is_available():
        own.append(pytest.mark.slow)
    return pytest.param(case, id=case.name, marks=[pytest.mark.xdist_group(case.name), *own])


@pytest.fixture(scope="module", params=map(row, CASES))
def run(request, device):
    training, twin = train(request.param, device, watched=True)
    state = torch.get_rng_state()
    yield request.param, training, twin, state
    training.inspector.detach()


def test_numbers_are_those_of_the_oracle(run):
    case, training, twin, _ = run
    oracle = Oracle(twin, case)
    expected = oracle.read(training.journal)
    assert training.counts == oracle.counts
    assert len(training.shown) == len(expected) > 0
    for records, (step, numbers_of_step) in zip(training.shown, expected, strict=True):
        assert {record.step for record in records} == {step}
        shown = numbers(records)
        assert shown.keys() == numbers_of_step.keys()
        assert shown == pytest.approx(numbers_of_step, rel=case.tolerance, abs=case.tolerance / 10)


def test_the_row_says_what_is_recorded_and_since_when(run):
    case, training, _, _ = run
    recorded, begins = set(), {}
    for tick, records in enumerate(training.shown, start=1):
        recorded |= {FAMILIES[record.lens] for record in records if record.lens in FAMILIES}
        others = [record for record in records if record.lens not in LATER]
        for key in numbers(others):
            begins.setdefault(key, tick)
    assert recorded == set(case.records)
    assert max(begins.values()) == case.since


def test_training_does_not_notice(run, device):
    case, training, _, state = run
    bare, _ = train(case, device, watched=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert (training.graphs > 0) == (bare.graphs > 0) == (case.compiled is not None)
    assert training.breaks == bare.breaks
    for (name, watched), parameter in zip(training.root.named_parameters(), bare.root.parameters(), strict=True):
        if case.exact and (case.name, device) not in ANY_ORDER:
            assert torch.equal(watched, parameter), name
        else:
            close = {} if case.autocast is None else {"rtol": case.tolerance, "atol": case.tolerance / 10}
            torch.testing.assert_close(watched, parameter, **close)
