"""A watched model is the user's model still: it can be copied, saved, exported and changed, and behaves the same."""

import copy
import io
import pickle
import subprocess
import sys
from collections import OrderedDict
from functools import partial
from itertools import product

import onnx
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from tests.marks import slow, some_fast


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m)), "torch.save": saved_and_loaded}
LOAD_ALONE = """
import sys
sys.modules["monitorch"] = None
import torch
for file in sys.argv[1:]:
    model = torch.load(file, weights_only=False)
    model(torch.ones(2, 3)).sum().backward()
    print(model.enter.weight.grad.shape)
"""


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_copies_train_and_are_not_watched(duplicate, steps, setting, seen):
    watcher = setting.watch()
    for _ in range(steps):
        setting.step()
    before = seen(watcher)
    twin, loss_fn = duplicate(setting.model), duplicate(setting.loss_fn)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    weights = copy.deepcopy(twin.state_dict())
    loss_fn(twin(setting.x), torch.zeros(2, 1)).backward()
    optimizer.step()
    assert seen(watcher) == before
    assert not torch.equal(twin.head.bias, weights["head.bias"])
    setting.step()
    assert seen(watcher)[0][0] == steps + 1


@pytest.mark.parametrize("every", [1, 3])
def test_copies_may_be_watched_and_compiled(every, setting, seen, leave, new_setting):
    watcher = setting.watch(every=every)
    setting.step()
    twin = new_setting(setting.way, copy.deepcopy(setting.model))
    other, before = twin.watch(), seen(watcher)
    twin.step()
    assert seen(other)[0][0] == 1
    leave(other)
    compiled = torch.compile(twin.model, backend="aot_eager", fullgraph=True)
    compiled(setting.x).sum().backward()
    assert seen(watcher) == before


def test_a_saved_model_loads_where_this_package_is_not_installed(new_setting, tmp_path):
    files = {way: tmp_path / f"{way}.pt" for way in ("inspector", "watch")}
    for way, file in files.items():
        model = nn.Sequential(OrderedDict(enter=nn.Linear(3, 4), act=nn.ReLU(), head=nn.Linear(4, 1)))
        setting = new_setting(way, model)  # of classes that the other process knows
        watcher = setting.watch()
        setting.step()
        torch.save(setting.model, file)
        assert repr(watcher)
    command = [sys.executable, "-c", LOAD_ALONE, *files.values()]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "torch.Size([4, 3])\n" * 2


@pytest.mark.parametrize("what", ["optimizer", "scaler"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, COPIES["pickle"]], ids=["deepcopy", "pickle"])
def test_copies_of_optimizers_and_scalers_are_not_watched(duplicate, what, setting, seen):
    watcher = setting.watch()
    setting.step()
    twin = duplicate(getattr(setting, what))
    before = seen(watcher)
    if what == "optimizer":
        twin.step()
    else:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
        twin.scale(optimizer.param_groups[0]["params"][0].sum()).backward()
        twin.step(optimizer)
    assert seen(watcher) == before


def program(model, x, strict):
    exported = torch.export.export(model, (x,), strict=strict)
    return str(exported.graph_signature), str(exported.graph)


@pytest.mark.parametrize(
    ("strict", "every", "training"),
    some_fast(
        product((True, False), (1, 3), (True, False)),
        lambda strict, every, training: every == 1 and (training or not strict),
    ),
)
def test_exported_programs_are_those_of_the_bare_model_and_nothing_is_recorded(strict, every, training, setting, seen):
    setting.model.train(training)
    bare = program(setting.model, setting.x, strict)
    watcher = setting.watch(every=every)
    before = seen(watcher)
    for _ in range(2):
        assert program(setting.model, setting.x, strict) == bare
    assert seen(watcher) == before
    setting.model.train()
    for _ in range(every):
        setting.step()
    assert program(setting.model.train(training), setting.x, strict) == bare
    assert seen(watcher)[0][0] == every


def onnx_program(model, x, path, dynamo):
    torch.onnx.export(model, (x,), path, dynamo=dynamo)
    return [(node.op_type, list(node.input), list(node.output)) for node in onnx.load(path).graph.node]


@pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript-based ONNX export", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the exporter's own
@pytest.mark.parametrize(
    ("setting", "dynamo"),
    [("inspector", False), ("watch", True), ("watch", False), slow("inspector", True)],
    indirect=["setting"],
)
def test_onnx_programs_are_those_of_the_bare_model_and_nothing_is_recorded(dynamo, setting, seen, tmp_path):
    setting.model.eval()
    bare = onnx_program(setting.model, setting.x, tmp_path / "bare.onnx", dynamo)
    watcher = setting.watch()
    before = seen(watcher)
    assert onnx_program(setting.model, setting.x, tmp_path / "watched.onnx", dynamo) == bare
    assert bare
    assert seen(watcher) == before


def hooks(setting):
    """All hooks on everything that may have some."""
    modules = [*setting.model.modules(), setting.loss_fn]
    things = [*modules, *setting.model.parameters(), setting.optimizer, setting.scaler]
    found = {}
    for number, thing in enumerate(things):
        for name in dir(thing):
            value = getattr(thing, name) if "hook" in name and not name.startswith("__") else None
            if value is not None and not callable(value):
                found[number, name] = list(value.items()) if isinstance(value, dict) else value
    found["scaler"] = vars(setting.scaler).get("step")
    return {place: value for place, value in found.items() if value}


def test_no_hook_is_left(setting, leave):
    mine = setting.model.enter.register_forward_hook(lambda *_: None)
    setting.model.weight.register_post_accumulate_grad_hook(lambda _: None)
    setting.optimizer.register_step_post_hook(lambda *_: None)
    before = hooks(setting)
    watcher = setting.watch()
    for _ in range(2):
        setting.step()
    assert hooks(setting) != before
    leave(watcher)
    assert hooks(setting) == before
    mine.remove()


@pytest.mark.parametrize("every", [1, 2])
def test_random_numbers_and_weights_are_the_same(every, setting, new_setting):
    bare = new_setting(setting.way, copy.deepcopy(setting.model))
    watcher = setting.watch(every=every)
    states = []
    for one in (setting, bare):
        torch.manual_seed(0)
        for _ in range(4):
            one.step()
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    pairs = zip(setting.model.parameters(), bare.model.parameters(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in pairs)
    assert repr(watcher)


def anatomy(model):
    names = [(name, id(module)) for name, module in model.named_modules()]
    tensors = [(name, id(tensor)) for name, tensor in (*model.named_parameters(), *model.named_buffers())]
    return names, tensors, list(model.state_dict()), str(model), type(model).__mro__


def test_the_model_has_the_same_parts(setting):
    before, state = anatomy(setting.model), copy.deepcopy(setting.model.state_dict())
    watcher = setting.watch()
    assert anatomy(setting.model) == before
    setting.step()
    assert anatomy(setting.model) == before
    setting.model.load_state_dict(state)
    assert torch.equal(setting.model.head.bias, state["head.bias"])
    assert repr(watcher)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


CHANGES = {
    "parametrized": (
        partial(parametrize.register_parametrization, tensor_name="weight", parametrization=Doubled()),
        partial(parametrize.remove_parametrizations, tensor_name="weight"),
    ),
    "pruned": (partial(prune.l1_unstructured, name="weight", amount=2), partial(prune.remove, name="weight")),
}


@pytest.mark.parametrize(("change", "change_back"), CHANGES.values(), ids=CHANGES)
def test_layers_may_be_changed_while_watched(change, change_back, setting, leave, new_setting):
    bare = new_setting(setting.way, copy.deepcopy(setting.model))
    before = hooks(setting)
    watcher = setting.watch(optimizer=None, grad_scaler=None)
    inspector = getattr(watcher, "inspector", watcher)
    gradients = next(lens for lens in inspector.lenses if type(lens).__name__ == "ParameterGradientGeometry")
    for stage in (lambda _: None, change, change_back):
        for one in (setting, bare):
            stage(one.model.head)
            torch.manual_seed(0)
            one.forward().backward()
        assert set(gradients._by_parameter["weight"].value) == {"", "enter", "head"}
        inspector.tick_epoch()
    for mine, other in zip(setting.model.parameters(), bare.model.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)
    leave(watcher)
    assert hooks(setting) == before
