"""On a GPU: what CUDA graphs have measured is what the same training shows without the compiler."""

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector, lens
from monitorch.engine.graph import _callbacks

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
]
STEPS, FULL, SHORT = 18, 8, 3


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 2)).cuda()


def batch(step, size):
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(step)).cuda()


def train(*, graphed, told, short_every=None, paused_at=(), **options):
    """Numbers of each tick, one every three steps."""
    torch.compiler.reset()
    model = new_model()
    called = torch.compile(model, mode="reduce-overhead") if graphed else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lenses = [lens.OutputNorm(include=nn.Linear), lens.OutputActivation(), lens.OutputGradientGeometry()]
    known = {"optimizer": optimizer} if told else {}
    inspector = PyTorchInspector(lenses, module=called, visualizer="dummy", on_error="raise", **known, **options)
    ticks = []
    for step in range(STEPS):
        inspector.state.paused = step in paused_at
        optimizer.zero_grad()
        called(batch(step, SHORT if short_every and step % short_every == 0 else FULL)).square().mean().backward()
        optimizer.step()
        if step % 3 == 2:
            inspector.tick_epoch()
            ticks.append({(r.tag, r.layer, r.statistic): r.value for r in inspector.records() if r.tag != "Logged"})
    inspector.detach()
    return ticks


@pytest.mark.parametrize("told", [True, False], ids=["at steps", "at passes"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"every": 3},
        {"paused_at": (6, 7, 12)},
        {"short_every": 4},
        {"short_every": 3, "every": 2},
    ],
    ids=["plain", "every", "paused", "short batches", "short batches, every"],
)
def test_numbers_are_those_of_eager_training(options, told):
    expected = train(graphed=False, told=told, **options)
    found = train(graphed=True, told=told, **options)
    assert [tick.keys() for tick in found] == [tick.keys() for tick in expected]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)


def test_memory_of_a_graph_outlives_the_inspector_until_backward_is_over():
    torch.compiler.reset()
    model = new_model()
    called = torch.compile(model, mode="reduce-overhead")
    inspector = PyTorchInspector([lens.OutputGradientGeometry()], module=called, visualizer="dummy")
    for step in range(4):
        model.zero_grad()
        called(batch(step, FULL)).sum().backward()
    model.zero_grad()
    loss = called(batch(9, FULL)).sum()
    held = [memory for door in _callbacks.values() for memory in door._held]
    assert held
    inspector.detach()
    del inspector, held
    others = [torch.zeros(size, device="cuda") for size in (320, 49152, 80, 16) for _ in range(50)]
    loss.backward()
    assert not any(other.any() for other in others)
