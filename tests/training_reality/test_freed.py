"""Nothing outlives its owner: a dropped inspector goes with its hooks, a dropped model with its watch."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

import monitorch
from monitorch import PyTorchInspector
from monitorch.lens import OutputGradientGeometry, OutputNorm, ParameterGradientGeometry, ParameterNorm
from tests.training_reality import models

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def is_gone(*refs):
    gc.collect()
    return all(ref() is None for ref in refs)


def hooks_on(*things):
    parts = [part for thing in things for part in (thing.modules() if isinstance(thing, nn.Module) else (thing,))]
    tensors = [parameter for part in parts if isinstance(part, nn.Module) for parameter in part.parameters()]
    parts += [tensor for tensor in tensors if not is_lazy(tensor)]
    found = [getattr(part, name) for part in parts for name in dir(part) if name.endswith("_hooks")]
    return sum(len(hooks) for hooks in found if isinstance(hooks, dict))


def insides(inspector):
    """What an inspector is made of, so that it can be seen to go."""
    house = inspector.state.engine
    return [weakref.ref(one) for one in (inspector, house, house.gradients, *house._outputs.values())]


@pytest.mark.parametrize("rests", [False, True])
def test_a_dropped_inspector_goes_with_its_hooks(new_setting, rests):
    setting = new_setting("inspector")
    inspector = setting.watch(every=4 if rests else 1)
    setting.step()
    loss = setting.forward()
    refs = insides(inspector)
    del inspector
    assert is_gone(refs[0])
    assert hooks_on(setting.model, setting.loss_fn, setting.optimizer) == 0
    assert "step" not in vars(setting.scaler)
    setting.step(loss)
    del loss
    assert is_gone(*refs)
    setting.step()


def test_the_collector_may_come_while_torch_traces_another_model(new_setting):
    setting = new_setting("inspector")
    inspector = setting.watch()
    setting.step()
    with FakeTensorMode():
        ref = weakref.ref(inspector)
        del inspector
        assert is_gone(ref)
    assert hooks_on(setting.model, setting.loss_fn, setting.optimizer) == 0
    setting.step()


@pytest.mark.parametrize("compiled", ["whole", "in place"])
def test_a_dropped_inspector_leaves_compiled_graphs(new_setting, compiled):
    torch.compiler.reset()
    setting = new_setting("inspector")
    root = setting.model
    if compiled == "whole":
        setting.model = torch.compile(root, backend="aot_eager")
    else:
        root.compile(backend="aot_eager")
    inspector = setting.watch()
    for _ in range(2):
        setting.step()
    refs = insides(inspector)
    del inspector
    assert is_gone(refs[0])
    assert hooks_on(root, setting.optimizer) == 0
    setting.step()
    torch.compiler.reset()  # the graphs were made for the hooks
    assert is_gone(*refs)


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_dropped_inspector_leaves_lazy_modules(runs):
    model = models.lazy()
    own = hooks_on(models.lazy())
    inspector = PyTorchInspector([OutputNorm(), ParameterGradientGeometry()], module=model, visualizer="dummy")
    if runs:
        model(torch.ones(2, 4)).sum().backward()
    refs = insides(inspector)
    del inspector
    assert is_gone(*refs)
    assert hooks_on(model) == (0 if runs else own)


def test_of_several_inspectors_only_the_dropped_one_goes(new_setting):
    setting = new_setting("inspector")
    first, second = setting.watch(), setting.watch()
    setting.step()
    ref = weakref.ref(first)
    del first
    assert is_gone(ref)
    setting.step()
    assert second.state.step == 2
    second.tick_epoch()
    assert {record.layer for record in second.records() if record.tag == "Weight Gradient Norm"} == {
        "",
        "enter",
        "head",
    }
    del second
    gc.collect()
    assert hooks_on(setting.model, setting.loss_fn, setting.optimizer) == 0
    assert "step" not in vars(setting.scaler)


KEPT = ["nothing", "optimizer", "loss_fn", "scaler", "loss", "watcher"]


@pytest.mark.parametrize(
    ("compiled", "kept"),
    [
        *(pytest.param(False, kept, id=f"eager-{kept}") for kept in KEPT),
        pytest.param(True, "loss", id="compiled-loss"),
        *(pytest.param(True, kept, id=f"compiled-{kept}", marks=pytest.mark.slow) for kept in KEPT if kept != "loss"),
    ],
)
def test_a_dropped_model_goes_whatever_else_of_its_training_is_kept(kept, compiled, setting):
    torch.compiler.reset()
    watcher = setting.watch()
    called = torch.compile(setting.model, backend="aot_eager") if compiled else setting.model
    for _ in range(2):
        setting.step(setting.forward(called))
    loss = setting.forward(called)
    held = {"watcher": watcher, "loss": loss, "nothing": None}.get(kept, getattr(setting, kept, None))
    model, inspector = weakref.ref(setting.model), weakref.ref(getattr(watcher, "inspector", watcher))
    del watcher, loss, called
    setting.__dict__.clear()
    if compiled:
        torch.compiler.reset()
    assert is_gone(model)
    assert kept == "watcher" or is_gone(inspector)
    assert not isinstance(held, torch.optim.Optimizer) or hooks_on(held) == 0
    assert kept != "scaler" or "step" not in vars(held)


def test_without_cycles_of_its_own_a_model_goes_at_once(setting):
    watcher = setting.watch()
    setting.step()
    ref = weakref.ref(setting.model)
    gc.disable()
    try:
        setting.optimizer = setting.model = None
        assert ref() is None
    finally:
        gc.enable()
    assert repr(watcher)


def test_a_watch_that_nobody_holds_lasts_as_long_as_the_model(new_setting):
    setting = new_setting("watch")
    inspector = weakref.ref(setting.watch().inspector)
    gc.collect()
    setting.step()
    assert inspector().state.step == 1
    setting.model = None
    assert is_gone(inspector)
    assert hooks_on(setting.optimizer, setting.loss_fn) == 0


def test_a_layer_that_was_replaced_goes_and_ticks_go_on(new_setting):
    setting = new_setting("inspector")
    inspector = setting.watch()
    setting.step()
    ref = weakref.ref(setting.model.head)
    setting.model.head = nn.Linear(4, 1)
    assert is_gone(ref)
    setting.step()
    inspector.tick_epoch()
    assert "enter" in {record.layer for record in inspector.records() if record.tag == "Weight Norm"}
    lens = ParameterNorm()
    inspector.lenses.append(lens)
    inspector.tick_epoch()
    assert "head" in lens._layers


def test_a_model_of_its_own_weights_only_is_freed():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.weight

    model = Scale()
    lenses = [OutputNorm(include=Scale), OutputGradientGeometry(), ParameterGradientGeometry()]
    monitorch.watch(model, lenses=lenses, visualizer="dummy")
    model(torch.ones(2, 3)).sum().backward()
    ref = weakref.ref(model)
    del model, lenses
    assert is_gone(ref)
