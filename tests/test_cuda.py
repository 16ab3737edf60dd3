"""On a GPU: a training step never waits for the device, and a tick fetches what a CPU would have computed."""

import copy

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector, lens
from monitorch.inspector.step_clock import Phase
from monitorch.visualizer.record_sink import RecordSink
from tests.defaults import default_dtype

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]


class Collector(RecordSink):
    """Keeps every number by what it is."""

    def __init__(self):
        super().__init__()
        self.numbers = {}

    def write(self, records):
        self.numbers.update({(r.epoch, r.layer, r.tag, r.statistic): r.value for r in records})


def build():
    torch.manual_seed(0)
    features = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten()]
    return nn.Sequential(*features, nn.Linear(8 * 36, 16), nn.GELU(), nn.Linear(16, 4))


def watch(model, inplace):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss()
    lenses = [
        lens.LossMetrics(loss_fn=loss_fn, loss_fn_inplace=inplace),
        lens.OutputActivation(inplace=inplace),
        lens.OutputNorm(inplace=inplace),
        lens.OutputGradientGeometry(inplace=inplace),
        lens.ParameterGradientGeometry(inplace=inplace),
        lens.ParameterGradientActivation(inplace=inplace),
        lens.ParameterUpdateGeometry(optimizer, inplace=inplace),
        lens.UpdateRatio(optimizer, inplace=inplace),
        lens.ParameterNorm(inplace=inplace),
        lens.ParameterCond(inplace=inplace),
    ]
    return PyTorchInspector(lenses, module=model, visualizer=Collector(), on_error="raise"), optimizer, loss_fn


def train(model, device, inplace, sync_is_an_error):
    model = copy.deepcopy(model).to(device)
    inspector, optimizer, loss_fn = watch(model, inplace)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(300, 16, 3, 8, 8, generator=generator).to(device)
    targets = torch.randint(0, 4, (300, 16), generator=generator).to(device)
    for epoch in range(3):
        for step in range(epoch * 100, epoch * 100 + 100):
            # the first step builds kernels and workspaces, which may wait
            torch.cuda.set_sync_debug_mode("error" if sync_is_an_error and step else "default")
            optimizer.zero_grad()
            loss = loss_fn(model(inputs[step]), targets[step])
            loss.backward()
            optimizer.step()
            inspector.push_metric("pushed", loss)
            torch.cuda.set_sync_debug_mode("default")
        inspector.tick_epoch()
    return inspector.visualizer.numbers


@pytest.mark.parametrize("inplace", [True, False])
def test_numbers_equal_those_of_a_cpu_without_waiting_between_ticks(inplace):
    model = build().double()
    with default_dtype(torch.float64):
        expected = train(model, "cpu", inplace, sync_is_an_error=False)
        found = train(model, "cuda", inplace, sync_is_an_error=True)
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)


def test_half_precision_steps_do_not_wait():
    model = build().cuda()
    inspector, optimizer, loss_fn = watch(model, inplace=True)
    inputs, targets = torch.randn(16, 3, 8, 8, device="cuda"), torch.randint(0, 4, (16,), device="cuda")
    for step in range(300):
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.set_sync_debug_mode("default")
    inspector.tick_epoch()
    assert inspector.visualizer.numbers[1, "Loss", "Loss", "train_loss mean"] > 0


def test_ticks_end_in_another_thread_while_graphs_are_captured():
    model = build().cuda()
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
    sink = Collector()
    sink.deferred = True
    lenses = [lens.OutputNorm(), lens.ParameterGradientGeometry()]
    inspector = PyTorchInspector(lenses, module=model, visualizer=sink, optimizer=optimizer, on_error="raise")
    x, y = torch.randn(8, 3, 8, 8, device="cuda"), torch.randint(0, 4, (8,), device="cuda")
    other, graphs = torch.zeros(1000, 1000, device="cuda"), []
    for tick in range(5):
        loss_fn(model(x), y).backward()
        optimizer.step()
        torch.cuda._sleep(50_000_000)  # the numbers of the tick come after this
        inspector.tick()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            for _ in range(200):
                other = other * 0.5 + tick
    inspector.detach()
    assert {epoch for epoch, *_ in sink.numbers} == {1, 2, 3, 4, 5}


def test_hooks_of_idle_steps_are_timed_on_the_device_now_and_then():
    model, loss_fn = build().cuda(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lenses = [lens.LossMetrics(loss_fn=loss_fn), lens.OutputNorm()]
    options = {"visualizer": "dummy", "optimizer": optimizer, "every": 400, "on_error": "raise"}
    inspector = PyTorchInspector(lenses, module=model, **options)
    x, y = torch.randn(8, 3, 8, 8, device="cuda"), torch.randint(0, 4, (8,), device="cuda")
    for _ in range(390):
        loss_fn(model(x), y).backward()
        optimizer.step()
    torch.cuda.synchronize()
    _ = inspector.overhead
    assert inspector.state.is_quiet  # in between
    assert inspector.state.clock.usual_share(Phase.IDLE) > 0
    inspector.detach()


def test_losses_of_idle_steps_are_those_that_were_computed():
    model, loss_fn = build().cuda(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lenses = [lens.LossMetrics(loss_fn=loss_fn, loss_fn_inplace=False)]
    options = {"visualizer": Collector(), "optimizer": optimizer, "every": 1000, "on_error": "raise"}
    inspector = PyTorchInspector(lenses, module=model, **options)
    x, y = torch.randn(8, 3, 8, 8, device="cuda"), torch.randint(0, 4, (8,), device="cuda")
    expected = []
    for step in range(700):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=step >= 400):
            scores = model(x)
        loss = loss_fn(scores.bfloat16() if step % 3 == 0 else scores.float(), y)
        expected.append(loss.detach().double())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            loss /= 7  # later code may do with it what it likes
    found = lenses[0].preprocessors[0].value["train_loss"]
    assert list(found) == torch.stack(expected).tolist()
    inspector.detach()
