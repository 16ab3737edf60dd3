"""On a GPU: norms of every step stay there, nothing waits for them, and a fault is found from them soon after."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import monitorch
from monitorch import PyTorchInspector
from monitorch.engine import step_norms
from monitorch.engine.norm_ring import OF_GRADIENTS, OF_PARAMETERS, STEPS, UNMEASURED
from monitorch.lens import GradientNorm
from monitorch.store import flight_records, read_flight_record

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
]


@pytest.fixture
def at_any_price(monkeypatch):
    monkeypatch.setattr(step_norms, "SHARE", math.inf)


@pytest.fixture(autouse=True)
def may_wait_afterwards():
    yield
    torch.cuda.set_sync_debug_mode("default")


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)).cuda()


CALM = 21
"""From this step on nothing may wait: the first observed ones build kernels."""


class Training:
    """Trains while nothing may wait, and copies what the norms are computed from."""

    def __init__(self, model, optimizer, **options):
        self.model, self.optimizer, self.called = model, optimizer, model
        self.lens = GradientNorm(inplace=False)
        arguments = {"visualizer": "dummy", "on_error": "raise", "every": 10, "optimizer": optimizer, **options}
        self.inspector = PyTorchInspector([self.lens], module=model, **arguments)
        self.norms = self.inspector.state.engine.norms
        self.norms.keep()
        self.inputs = torch.randn(200, 8, 16, device="cuda")
        self.gradients, self.weights, self.step = [], [], 0

    def run(self, steps, mode="error"):
        for _ in range(steps):
            torch.cuda.set_sync_debug_mode(mode if self.step >= CALM else "default")
            self.optimizer.zero_grad()
            self.called(self.inputs[self.step % 200]).square().mean().backward()
            own = list(self.model.parameters())
            self.gradients.append([parameter.grad.clone() for parameter in own])
            self.weights.append([parameter.detach().clone() for parameter in own])
            self.optimizer.step()
            torch.cuda.set_sync_debug_mode("default")
            self.step += 1

    def kept(self, line):
        self.inspector.state.engine.settle()
        return self.norms.read().numbers[:, line]


def numpy_norms(steps):
    return np.array([[np.linalg.norm(one.double().cpu().numpy()) for one in tensors] for tensors in steps])


@pytest.mark.usefixtures("at_any_price")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("every", [1, 10])
def test_norms_of_every_step_are_those_of_numpy_and_nothing_waits_for_them(every, dtype):
    model = new_model().to(dtype)
    training = Training(model, torch.optim.AdamW(model.parameters(), foreach=True), every=every)
    training.inputs = training.inputs.to(dtype)
    training.run(STEPS + 20)
    expected = numpy_norms(training.gradients)
    assert training.kept(OF_GRADIENTS) == pytest.approx(expected[-STEPS:], rel=1e-5)
    assert training.kept(OF_PARAMETERS) == pytest.approx(numpy_norms(training.weights)[-STEPS:], rel=1e-5)
    found = [float(number) for values in training.lens._norm.norms.values() for number in values]
    assert found == pytest.approx(np.sqrt((expected**2).sum(1)), rel=1e-4)


@pytest.mark.usefixtures("at_any_price")
def test_graphs_that_are_replayed_leave_the_same_norms():
    model = new_model()
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.01))
    training.called = torch.compile(model, mode="reduce-overhead")
    training.run(30, mode="default")
    assert training.kept(OF_GRADIENTS) == pytest.approx(numpy_norms(training.gradients), rel=1e-4)
    torch.compiler.reset()


@pytest.mark.usefixtures("at_any_price")
def test_a_step_that_is_captured_as_a_whole_works_as_without():
    results = []
    for is_watched in (False, True):
        model, inputs = new_model(), torch.ones(8, 16, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
        if is_watched:
            lenses, options = [GradientNorm()], {"visualizer": "dummy", "on_error": "raise", "every": 1000}
            inspector = PyTorchInspector(lenses, module=model, optimizer=optimizer, **options)
            inspector.state.engine.norms.keep()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())

        def train(model=model, optimizer=optimizer, inputs=inputs):
            optimizer.zero_grad(set_to_none=True)
            model(inputs).square().mean().backward()
            optimizer.step()

        with torch.cuda.stream(stream):
            for _ in range(3):
                train()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            train()
        for _ in range(5):
            graph.replay()
        results.append([parameter.detach().cpu() for parameter in model.parameters()])
    for bare, watched in zip(*results, strict=True):
        assert torch.equal(bare, watched)


@pytest.mark.usefixtures("at_any_price")
def test_steps_that_a_scaler_skips_are_no_alarm():
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    training = Training(model, optimizer, grad_scaler=scaler)
    for step in range(1, 21):
        optimizer.zero_grad()
        scaler.scale(model(training.inputs[step]).square().mean()).backward()
        if step == 7:
            model[2].weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
    found = training.kept(OF_GRADIENTS)
    assert (found[6] == UNMEASURED).all()
    assert np.isfinite(found).all()
    assert (np.delete(found, 6, axis=0) > 0).all()
    assert training.inspector.first_not_finite is None
    assert training.inspector.events() == []


@pytest.mark.usefixtures("at_any_price")
@pytest.mark.parametrize("where", ["backward", "step"])
@pytest.mark.parametrize("layer", [0, 2, 4])
def test_a_fault_is_told_soon_after_it_with_the_norms_of_the_steps_before(where, layer, tmp_path):
    model, loss_fn = new_model(), nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters())
    options = {"loss_fn": loss_fn, "folder": tmp_path, "run": "run", "every": 10, "tick_every": 10_000}
    with monitorch.watch(model, optimizer, **options) as watched:
        for step in range(1, 60):
            torch.cuda.set_sync_debug_mode("error" if CALM <= step < 54 else "default")
            optimizer.zero_grad()
            loss_fn(model(torch.ones(8, 16, device="cuda")), torch.zeros(8, 2, device="cuda")).backward()
            if (step, where) == (54, "backward"):
                model[layer].weight.grad[0, 0] = math.nan
            optimizer.step()
            if (step, where) == (54, "step"):
                with torch.no_grad():
                    model[layer].weight[0, 0] = math.inf
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()  # so that the host has heard of it in the next step but one
        assert watched._ticks == 1
        (found,) = [event for event in watched.events() if event.kind == "not finite"]
        origin = watched.inspector.first_not_finite
    assert (found.step, found.layer) == (54, str(layer))
    assert (origin.where, origin.parameter) == (where, "weight")
    record = read_flight_record(flight_records(tmp_path / "run")[0])
    assert record.norms.steps.tolist() == list(range(1, 55))
    is_finite = np.isfinite(record.norms.gradients)
    assert is_finite[:-1].all()
    assert is_finite[-1].all() == (where == "step")


def test_where_steps_are_too_short_for_it_norms_are_given_up():
    model = nn.Linear(4, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = Training(model, optimizer)
    for _ in range(300):
        optimizer.zero_grad()
        model(training.inputs[0, :, :4]).sum().backward()
        optimizer.step()
    assert training.norms._price.is_low is False
    assert not training.norms.wants_every_step
