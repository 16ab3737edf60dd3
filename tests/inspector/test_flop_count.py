"""FLOPs of a step: those of torch's own counter, in the ways that people train, without a trace in training."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import monitorch
from monitorch import PyTorchInspector
from monitorch.engine.torch_private import OperatorMode, last_operator_mode
from monitorch.errors import OptionError
from monitorch.inspector import flop_count
from monitorch.inspector.flop_count import FLOAT32, HALF, PEAKS, TF32, FlopCount, peak_of
from monitorch.inspector.step_clock import StepClock
from monitorch.lens import Attention, OutputNorm, ParameterGradientGeometry

PEAK, NAME = 1e9, "model FLOP/s utilisation"
X = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def no_graphs(monkeypatch):
    """As if this process had compiled nothing: other tests may have."""
    monkeypatch.setattr(flop_count, "number_of_graphs", lambda: 0)


class Net(nn.Module):
    """A convolution, a hidden block, which may be checkpointed, and attention that is written by hand."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(8, 2)
        self.hidden = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.reentrant = reentrant

    def forward(self, x):
        x = self.conv(x).flatten(2)
        x = self.hidden(x) if self.reentrant is None else checkpoint(self.hidden, x, use_reentrant=self.reentrant)
        weights = (x @ x.mT)[:, None].softmax(-1)
        return self.last(weights[:, 0] @ x)


class Run:
    def __init__(self, reentrant=None, **options):
        torch.manual_seed(0)
        self.model = self.call = Net(reentrant)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.passes, self.losses, self.around = 1, [], nullcontext
        self.inspector = None
        if options:
            lenses = [OutputNorm(), ParameterGradientGeometry(), Attention()]
            options = {"visualizer": "dummy", "on_error": "raise", "optimizer": self.optimizer, **options}
            self.inspector = PyTorchInspector(lenses, module=self.model, **options)

    def compute(self):
        for _ in range(self.passes):
            loss = self.call(X).square().mean()
            loss.backward()
            self.losses.append(loss.detach())

    def step(self):
        with self.around():
            self.compute()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def counted(self):
        return self.inspector._steps._flops.flops

    @property
    def shown(self):
        self.inspector.tick_epoch()
        return {record.statistic: record.value for record in self.inspector.records()}.get(f"{NAME} mean")


def flops_of(run):
    """What torch's counter says of a step."""
    other = Run()
    other.passes = run.passes
    with FlopCounterMode(display=False) as counter:
        other.compute()
    return counter.get_total_flops()


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize("passes", [1, 3])
def test_a_step_is_counted_once_whatever_is_observed_or_repeated(every, reentrant, passes):
    run = Run(reentrant, peak_flops=PEAK, every=every)
    run.passes = passes
    modes = []
    for _ in range(4):
        run.step()
        modes.append(last_operator_mode() is not None)
    assert run.counted.total() == flops_of(run)
    assert modes == [True, False, False, False]  # from the end of the first step to the end of the second


@pytest.mark.parametrize("with_closure", [False, True])
def test_operations_of_the_optimizer_do_not_count(with_closure):
    class Multiplies(torch.optim.SGD):
        def step(self, closure=None):
            result = super().step(closure)
            torch.ones(50, 50) @ torch.ones(50, 50)
            return result

    run = Run()
    run.optimizer = Multiplies(run.model.parameters(), lr=0.1)
    lenses = [OutputNorm()]
    inspector = PyTorchInspector(lenses, module=run.model, optimizer=run.optimizer, peak_flops=PEAK, visualizer="dummy")

    def closure():
        run.optimizer.zero_grad()
        run.compute()
        return run.losses[-1]

    for _ in range(3):
        if with_closure:
            run.optimizer.step(closure)
        else:
            closure()
            run.optimizer.step()
    extra = 2 * 50**3 if with_closure else 0  # the closure is part of the step, and so is what comes after it
    assert inspector._steps._flops.flops.total() == flops_of(run) + extra


def test_utilisation_is_operations_per_second_over_the_peak():
    run = Run(peak_flops=PEAK)
    for _ in range(3):
        run.step()
    count = run.inspector._steps._flops
    assert count.utilisation(2.0) == 2 * flops_of(run) / PEAK
    assert 0 < run.shown < 1e6


@pytest.mark.parametrize("options", [{"every": 1}, {"peak_flops": PEAK, "optimizer": None}])
def test_nothing_is_counted_without_a_peak_or_without_an_optimizer(options):
    run = Run(**options)
    for _ in range(3):
        run.step()
        assert last_operator_mode() is None
    assert not run.counted
    assert run.shown is None


def test_weights_and_random_numbers_are_the_same():
    ends = []
    for options in ({}, {"peak_flops": PEAK}):
        run = Run(**options)
        run.model.hidden.add_module("drop", nn.Dropout(0.3))
        torch.manual_seed(1)
        for _ in range(4):
            run.step()
        ends.append([*run.losses, *run.model.parameters(), torch.get_rng_state()])
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))


def test_records_are_the_same():
    ends = []
    for options in ({"every": 1}, {"every": 1, "peak_flops": PEAK}):
        run = Run(**options)
        for _ in range(4):
            run.step()
        run.inspector.tick_epoch()
        ends.append({(r.tag, r.layer, r.statistic): r.value for r in run.inspector.records() if r.tag != "Logged"})
    assert ends[0] == ends[1]
    assert len(ends[0]) > 20


@pytest.mark.usefixtures("no_graphs")
def test_an_evaluation_in_between_spoils_a_step_and_the_next_one_is_counted():
    run = Run(peak_flops=PEAK)
    for is_evaluated in (True, True, False, False):
        run.step()
        if is_evaluated:
            with torch.no_grad():
                run.model.eval()(X)
            run.model.train()
            assert last_operator_mode() is None  # evaluations may be long
    assert run.counted.total() == flops_of(run)
    assert last_operator_mode() is None


@pytest.mark.usefixtures("no_graphs")
def test_a_probe_in_between_is_not_counted():
    run = Run(peak_flops=PEAK)
    run.step()
    run.inspector.probe(X, torch.zeros(8, 4, 2), loss_fn=nn.MSELoss())
    for _ in range(2):
        run.step()
    assert run.counted.total() == flops_of(run)


def test_after_three_spoilt_steps_none_is_counted():
    run = Run(peak_flops=PEAK)
    for _ in range(5):
        run.step()
        with torch.no_grad():
            run.model(X)
    assert not run.counted
    assert run.shown is None
    assert last_operator_mode() is None


class PassBy(OperatorMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("no_graphs")
def test_modes_of_the_user_stay_what_they_are():
    run = Run(peak_flops=PEAK)
    with PassBy() as around:
        run.step()  # no place for another mode
        assert last_operator_mode() is around
    run.step()
    run.around = PassBy
    run.step()
    assert last_operator_mode() is None
    assert run.counted.total() == flops_of(run)


def test_a_mode_of_the_user_that_is_on_at_the_step_keeps_ours_until_it_is_off():
    run = Run(peak_flops=PEAK)
    run.step()
    ours = last_operator_mode()
    with PassBy() as around:
        run.step()
        assert last_operator_mode() is around
    assert last_operator_mode() is ours
    assert not ours.is_on
    run.step()
    assert last_operator_mode() is None
    assert run.counted.total() == flops_of(run)


@pytest.mark.parametrize("with_optimizer", [True, False])
def test_steps_that_are_told_by_hand(with_optimizer):
    run = Run(peak_flops=PEAK, **({} if with_optimizer else {"optimizer": None}))
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)  # whose steps are not noticed
    for _ in range(3):
        run.step()
        run.inspector.step()
    assert run.counted.total() == (flops_of(run) if with_optimizer else 0)
    assert last_operator_mode() is None


def test_a_mode_of_the_user_that_stays_on_ends_the_search():
    run = Run(peak_flops=PEAK)
    with PassBy() as around:
        for _ in range(5):
            run.step()
            assert last_operator_mode() is around
    run.step()
    assert not run.counted
    assert not run.inspector._steps._flops.is_wanted
    assert last_operator_mode() is None


@pytest.mark.parametrize("leave", ["detach", "close"])
def test_nothing_stays_when_watching_ends_early(leave):
    run = Run()
    watched = monitorch.watch(run.model, run.optimizer, visualizer="dummy", peak_flops=PEAK)
    run.step()
    assert last_operator_mode() is not None
    watched.close() if leave == "close" else watched.inspector.detach()
    assert last_operator_mode() is None
    watched.close()


def test_a_pass_that_fails_is_no_reason_to_fail_later():
    run = Run(peak_flops=PEAK)
    run.step()
    with pytest.raises(RuntimeError, match="channels"):
        run.model(X[:, :2])
    for _ in range(2):
        run.step()
    assert last_operator_mode() is None
    assert run.counted.total() >= flops_of(run)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_steps_are_counted_without_another_graph_or_another_number(backend):
    ends, graphs = [], []
    for options in ({"every": 3}, {"every": 3, "peak_flops": PEAK}):
        torch.compiler.reset()
        counters.clear()
        run = Run(**options)
        run.call = torch.compile(run.model, backend=backend, fullgraph=True)
        for _ in range(4):
            run.step()
        ends.append([*run.losses, *run.model.parameters()])
        graphs.append(counters["stats"]["unique_graphs"])
        assert not counters["graph_break"]
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))
    assert graphs[0] == graphs[1]
    assert run.counted.total() == flops_of(run)


@pytest.mark.parametrize(
    ("dtype", "precision", "expected"),
    [
        (torch.float32, "highest", FLOAT32),
        (torch.float32, "high", TF32),
        (torch.bfloat16, "highest", HALF),
        (torch.float16, "highest", HALF),
        (torch.float64, "highest", "torch.float64"),
    ],
)
def test_operations_are_counted_by_precision(dtype, precision, expected):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        count = FlopCount(torch.device("cpu"), PEAK, StepClock())
        count.begin()
        torch.ones(3, 4, dtype=dtype) @ torch.ones(4, 5, dtype=dtype)
        count.end()
    finally:
        torch.set_float32_matmul_precision(before)
    assert count.flops == {expected: 2 * 3 * 4 * 5}


@pytest.mark.parametrize(
    ("name", "half", "single"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12, 66.9e12),
        ("NVIDIA H100 PCIe", 756e12, 51.2e12),
        ("NVIDIA H200", 989.4e12, 66.9e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, 19.5e12),
        ("NVIDIA A100-PCIE-40GB", 312e12, 19.5e12),
        ("NVIDIA A100 80GB PCIe", 312e12, 19.5e12),
        ("NVIDIA L40S", 362e12, 91.6e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12, 82.6e12),
        ("Tesla V100-SXM2-16GB", 125e12, 15.7e12),
        ("Tesla T4", 65e12, 8.1e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("NVIDIA GeForce RTX 4090 D", None, None),
        ("NVIDIA A10G", None, None),
        ("", None, None),
    ],
)
def test_peaks_of_cards(name, half, single):
    assert [peak_of(name, HALF), peak_of(name, FLOAT32)] == pytest.approx([half, single])


def test_short_numbers_are_faster_on_every_card():
    assert all(half >= (tf32 or single) >= single for half, tf32, single in PEAKS.values())


@pytest.mark.parametrize("peak", [0, -1.0, float("nan"), float("inf"), "fast", True])
def test_bad_peaks_are_refused(peak):
    with pytest.raises(OptionError, match="peak_flops takes a number above 0, or None"):
        PyTorchInspector([OutputNorm()], peak_flops=peak)


@pytest.mark.parametrize(
    ("peak", "graphs", "processes", "is_wanted"),
    [
        (None, 0, False, True),
        (None, 1, False, False),
        (None, 0, True, False),
        (PEAK, 1, False, True),
        (PEAK, 0, True, True),
    ],
)
def test_unasked_only_eager_training_of_one_process_is_counted(peak, graphs, processes, is_wanted, monkeypatch):
    monkeypatch.setattr(flop_count, "number_of_graphs", lambda: graphs)
    monkeypatch.setattr(flop_count, "several_processes", lambda: processes)
    monkeypatch.setattr(flop_count, "peak_of", lambda name, precision: PEAK)
    count = FlopCount(torch.device("cpu"), peak, StepClock())
    count.begin()
    assert (last_operator_mode() is not None) == is_wanted
    count.remove()
    assert last_operator_mode() is None
