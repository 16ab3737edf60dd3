"""An inspector may come and leave at any moment, also between a forward pass and its backward pass."""

import copy
import gc
from contextlib import nullcontext
from itertools import product

import pytest
import torch

from monitorch import MonitorchWarning, PyTorchInspector
from monitorch.lens import OutputActivation, OutputGradientGeometry, OutputNorm, ParameterGradientGeometry
from tests.marks import some_fast
from tests.training_reality import loops, models

# the compiler hides these warnings of its own, but cannot where warnings are errors
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
MODELS = {
    "plain": models.mlp,
    "in place": lambda: models.mlp(inplace=True),
    "called twice": models.CalledTwice,
    "checkpointed, reentrant": lambda: models.Checkpointed(True),
    "checkpointed, non-reentrant": lambda: models.Checkpointed(False),
    "blocks": models.blocks,
}
COMPILED = {"eager": lambda model: model, "compiled": lambda model: torch.compile(model, backend="aot_eager")}


def watch(model, **options):
    lenses = [OutputNorm(), OutputActivation(), OutputGradientGeometry(), ParameterGradientGeometry()]
    return PyTorchInspector(lenses, module=model, visualizer="dummy", on_error="raise", **options)


def detach(watching):
    watching[0].detach()


def drop(watching):
    watching.clear()
    gc.collect()


def take_lenses_out(watching):
    watching[0].lenses.clear()
    watching[0].tick_epoch()


def pause(watching):
    watching[0].state.paused = True


def assert_gradients_are_equal(watched, bare):
    for mine, other in zip(watched.parameters(), bare.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, other.grad)


@pytest.fixture
def pair(request):
    """A model, the same again, an optimizer of the first, and how they are to be called."""
    torch.compiler.reset()
    model, compiled = MODELS[request.param[0]](), COMPILED[request.param[1]]
    return model, copy.deepcopy(model), torch.optim.SGD(model.parameters(), lr=0.1), compiled


def in_all_ways(name, values, quick):
    """Each with each model, compiled or not; the compiler takes seconds, and has one model with the quick one."""

    def is_quick(value, pair):
        return pair[1] == "eager" or (pair[0] == "plain" and value is quick)

    pairs = some_fast(product(values, product(MODELS, COMPILED)), is_quick)
    return pytest.mark.parametrize((name, "pair"), pairs, indirect=["pair"], ids=id_of)


def id_of(part):
    return "-".join(part) if isinstance(part, tuple) else getattr(part, "__name__", str(part))


@in_all_ways("leave", [detach, drop, take_lenses_out, pause], quick=drop)
def test_backward_goes_on_without_the_inspector(leave, pair):
    watched, bare, optimizer, compiled = pair
    watching = [watch(watched, optimizer=optimizer, gradient="before_clip")]
    losses = [loops.batch_loss(0)(compiled(one), torch.float32) for one in (watched, bare)]
    leave(watching)
    for loss in losses:
        loss.backward()
    assert_gradients_are_equal(watched, bare)
    optimizer.step()
    assert leave is not detach or watching[0].records() == []


@in_all_ways("knows_optimizer", [True, False], quick=True)
def test_backward_goes_on_with_an_inspector_that_came_late(knows_optimizer, pair):
    watched, bare, optimizer, compiled = pair
    called = compiled(watched)
    losses = [loops.batch_loss(0)(one, torch.float32) for one in (called, compiled(bare))]
    with nullcontext() if called is watched else pytest.warns(MonitorchWarning, match="compiles again"):
        inspector = watch(called, optimizer=optimizer if knows_optimizer else None)
    for loss in losses:
        loss.backward()
    assert_gradients_are_equal(watched, bare)
    with pytest.warns(MonitorchWarning, match="no layer .* was called since") if knows_optimizer else nullcontext():
        optimizer.step()
    inspector.tick_epoch()
    shown = {record.tag for record in inspector.records()}
    assert not any(tag.startswith("Output") for tag in shown)
    optimizer.zero_grad()
    loops.batch_loss(1)(called, torch.float32).backward()
    optimizer.step()
    inspector.tick_epoch()
    shown = {record.tag for record in inspector.records()}
    assert {"Output Activations", "Output Gradient Norm", "Weight Gradient Norm"} <= shown
