"""Calls of functions inside a model: who makes them, and that the mode which sees them never stays on."""

import threading

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.overrides import TorchFunctionMode

from monitorch import MonitorchWarning, PyTorchInspector
from monitorch.engine.torch_private import remove_mode
from monitorch.gatherer.call_gatherer import CallGatherer
from monitorch.lens import Attention
from monitorch.lens.base import Lens
from monitorch.preprocessor.accumulating import AccumulatingPreprocessor
from tests.marks import slow

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def modes():
    return torch._C._len_torch_function_stack()


def read(result, input, *args, **kwargs):
    return "relu", (result,), ()


READERS = dict.fromkeys([torch.relu, nn.functional.relu, torch.Tensor.relu_, torch.Tensor.relu], read)


class Zeros(AccumulatingPreprocessor):
    """Sum of what ``relu`` returns; keeps the order of the calls, too."""

    readers, kinds = READERS, frozenset({"relu"})

    def __init__(self):
        super().__init__(inplace=True)
        self.calls, self.error = [], None

    def passes(self):
        return frozenset({3})

    def process_call(self, name, content):
        self.calls.append(name)
        if self.error is not None:
            raise self.error
        self._record(name, content[1][0].sum())


class Calls(Lens):
    """Listens to every module."""

    def __init__(self):
        super().__init__([Zeros()], [])

    @property
    def names(self):
        (zeros,) = self._preprocessors
        found, zeros.calls = zeros.calls, []
        return found

    def register_leaf_module(self, module, module_name, inspector_state):
        gatherer = CallGatherer(module, self._preprocessors, module_name, inspector_state)
        self._watch(gatherer, module_name, module_name)

    register_non_leaf_module = register_leaf_module


@pytest.fixture
def watch():
    """Watch a model; returns what was called in it."""
    kept = []

    def build(model, **options):
        lens = Calls()
        kept.append(PyTorchInspector([lens], module=model, **{"visualizer": "dummy", "on_error": "raise", **options}))
        return lens

    yield build
    assert modes() == 0
    for inspector in kept:
        if inspector.state.attached:
            inspector.detach()


class Rectified(nn.Module):
    def __init__(self, call=torch.relu):
        super().__init__()
        self.linear, self.call = nn.Linear(4, 4), call

    def forward(self, x):
        return self.call(self.linear(x))


class Model(nn.Module):
    """Calls ``relu`` in two parts, then itself; ``during`` is called in the middle of the pass."""

    def __init__(self, during=lambda model, x: x):
        super().__init__()
        self.first, self.second, self.act = Rectified(), Rectified(lambda x: x.relu_()), nn.ReLU()
        self.during = during

    def forward(self, x):
        return torch.relu(self.act(self.during(self, self.second(self.first(x)))))


NAMES = ["first", "second", "act", ""]


def test_a_call_belongs_to_the_innermost_module_that_runs(watch):
    model = Model()
    lens = watch(model)
    model(X).sum().backward()
    assert lens.names == NAMES


def test_nothing_is_called_where_nobody_listens():
    model = Model()
    inspector = PyTorchInspector([], module=model, visualizer="dummy")
    seen = []
    model.during = lambda _, x: seen.append(modes()) or x
    model(X)
    assert seen == [0]
    assert not model._forward_hooks
    inspector.detach()


def test_idle_steps_have_neither_mode_nor_hook(watch):
    seen = []
    model = Model(lambda model, x: seen.append((modes(), len(model._forward_hooks))) or x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lens = watch(model, every=3, optimizer=optimizer)
    for _ in range(7):
        model(X).sum().backward()
        optimizer.step()
    assert seen == [(0, 0), (0, 0), (1, 1)] * 2 + [(0, 0)]
    assert lens.names == NAMES * 2


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_passes_that_nobody_wants_run_without_the_mode(context, watch):
    seen = []
    model = Model(lambda _, x: seen.append(modes()) or x)
    lens = watch(model)
    with context():
        model(X)
    model.eval()(X)
    assert seen == [0, 0]
    assert lens.names == []


def test_a_part_without_gradients_or_in_eval_mode_does_not_count(watch):
    def frozen(model, x):
        with torch.no_grad():
            model.first(x)
        return x

    model = Model(frozen)
    model.act.eval()
    lens = watch(model)
    model(X)
    assert lens.names == ["first", "second", ""]


def test_an_exception_inside_the_model_takes_the_mode_off(watch):
    def fail(model, x):
        raise KeyError("of the user")

    model = Model(fail)
    lens = watch(model)
    for _ in range(2):
        with pytest.raises(KeyError, match="of the user"):
            model(X)
        assert modes() == 0
    model.during = lambda _, x: x
    assert lens.names == ["first", "second"] * 2
    model(X)
    assert lens.names == NAMES


def test_an_exception_of_another_hook_takes_the_mode_off(watch):
    model = Model()
    watch(model)

    def fail(*_):
        raise KeyError("of a hook")

    model.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="of a hook"):
        model(X)
    assert modes() == 0


def test_after_an_interrupt_the_next_pass_starts_clean(watch):
    def interrupt(model, x):
        raise KeyboardInterrupt

    model = Model(interrupt)
    lens = watch(model)
    with pytest.raises(KeyboardInterrupt):
        model(X)
    torch.relu(X)  # not a call of the model
    assert lens.names == ["first", "second"]
    model.during = lambda _, x: x
    model(X)
    assert modes() == 0
    assert lens.names == NAMES


@pytest.mark.parametrize("end", [PyTorchInspector.detach, lambda inspector: setattr(inspector.state, "paused", True)])
def test_an_interrupt_leaves_no_mode_behind_when_watching_ends_or_rests(end):
    class Interrupted(nn.Linear):
        def forward(self, x):
            raise KeyboardInterrupt

    model = nn.Sequential(nn.Linear(3, 3), Interrupted(3, 3))
    inspector = PyTorchInspector([Attention()], module=model, visualizer="dummy")
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(2, 3))
    end(inspector)
    assert modes() == 0


def test_a_model_that_calls_itself(watch):
    def again(model, x):
        model.during = lambda _, x: x
        return model(x)

    model = Model(again)
    lens = watch(model)
    model(X)
    assert modes() == 0
    assert lens.names == ["first", "second", *NAMES, "act", ""]


def test_two_models_one_inside_the_other_each_see_their_own(watch):
    inner = Model()
    outer = Model(lambda _, x: inner(x))
    outer.inner = inner
    lenses = watch(inner), watch(outer)
    outer(X)
    assert [lens.names for lens in lenses] == [
        NAMES,
        ["first", "second", "inner.first", "inner.second", "inner.act", "inner", "act", ""],
    ]


def test_a_mode_of_the_user_that_is_left_on_stays_on(watch):
    class Mine(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    mine = Mine()
    model = Model(lambda _, x: mine.__enter__() and x)
    lens = watch(model)
    model(X)
    assert torch._C._get_function_stack_at(0) is mine
    mine.__exit__(None, None, None)
    assert modes() == 0
    assert lens.names == NAMES


def test_a_mode_that_is_not_on_cannot_be_taken_off():
    with torch.overrides.BaseTorchFunctionMode() as other:
        remove_mode(torch.overrides.BaseTorchFunctionMode())
        assert torch._C._get_function_stack_at(0) is other


def test_threads_do_not_disturb_each_other(watch):
    barrier = threading.Barrier(2, timeout=60)
    seen = []

    def meet(_, x):
        barrier.wait()
        seen.append(modes())
        barrier.wait()
        return x

    model = Model(meet)
    lens = watch(model)
    threads = [threading.Thread(target=lambda: (model(X), seen.append(modes()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [0, 0, 1, 1]
    assert sorted(lens.names) == sorted(NAMES * 2)


def test_a_pass_that_is_a_generator_leaves_nothing_on(watch):
    class Lazy(Model):
        def forward(self, x):
            yield super().forward(x)

    model = Lazy()
    lens = watch(model)
    assert modes() == 0
    (result,) = model(X)
    assert modes() == 0
    assert torch.equal(result, Model.forward(model, X))
    assert lens.names == []


def test_functional_transforms_are_not_looked_at(watch):
    model = Model()
    lens = watch(model)
    torch.func.vmap(model)(X)
    assert lens.names == []


def test_an_error_of_ours_is_told_once_and_does_not_reach_the_model(watch):
    model = Model()
    lens = watch(model, on_error="warn")
    lens._preprocessors[0].error = ValueError("of ours")
    with pytest.warns(MonitorchWarning, match="Calls stops watching layer 'first': ValueError: of ours") as told:
        [model(X) for _ in range(2)]
    assert len(told) == 1
    assert lens.names == NAMES  # each layer is tried once


def test_an_unreadable_call_is_told_once_and_does_not_reach_the_model(watch, monkeypatch):
    monkeypatch.setitem(READERS, torch.relu, lambda result: None)
    model = Model()
    lens = watch(model, on_error="warn")
    with pytest.warns(MonitorchWarning, match="looking at a call inside the model failed: TypeError") as told:
        [model(X) for _ in range(2)]
    assert len(told) == 1
    assert lens.names == ["second", "act"] * 2


def test_after_detaching_nothing_is_left(watch):
    model = Model()
    lens = watch(model)
    model(X)
    lens._state.engine.close()
    lens.detach_from_module()
    assert not model._forward_hooks
    model(X)
    assert lens.names == NAMES


# compiled


def compiling(test):
    """The compiler hides these warnings of its own, but cannot where warnings are errors."""
    for filtered in ("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not a leaf"):
        test = pytest.mark.filterwarnings(filtered)(test)
    return pytest.mark.usefixtures("fresh_compiler")(test)


class Unflattened(nn.Module):
    """Calls a method that the compiler cannot trace under every mode."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x).unflatten(-1, (2, 2))).flatten(1)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(Rectified(), Unflattened()) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return torch.relu(x)


STACK = [f"blocks.{block}.{part}" for block in range(3) for part in range(2)] + [""]


def whole(model):
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def by_method(model):
    model.compile(fullgraph=True, backend="aot_eager")
    return model


def by_blocks(model):
    for block in model.blocks:
        block.compile(fullgraph=True, backend="aot_eager")
    return model


def graphs_of_bare(compiled):
    torch.compiler.reset()
    counters.clear()
    compiled(Stack())(X).sum().backward()
    found = counters["stats"]["unique_graphs"]
    torch.compiler.reset()
    counters.clear()
    return found


@compiling
@pytest.mark.parametrize("compiled", [whole, slow(by_method), by_blocks])
def test_calls_inside_graphs_have_the_same_names_with_one_more_graph_and_no_break(compiled, watch):
    bare = graphs_of_bare(compiled)
    model = Stack()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lens = watch(model, optimizer=optimizer, every=2)
    called = compiled(model)
    for _ in range(6):
        called(X).sum().backward()
        assert modes() == 0
        optimizer.step()
        optimizer.zero_grad()
    assert lens.names == STACK * 3
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 2 * bare


@compiling
def test_inductor_hands_over_the_same_numbers(watch):
    torch.manual_seed(0)
    model = Stack()
    found = []
    for called in (model, torch.compile(model, fullgraph=True)):
        lens = watch(model)
        called(X).sum().backward()
        assert lens.names == STACK
        found.append({layer: moments.mean for layer, moments in lens._preprocessors[0].value.items()})
        lens._state.engine.close()
        lens.detach_from_module()
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@compiling
def test_a_model_inside_a_larger_compiled_function_is_not_seen_and_that_is_said(watch):
    model = Stack()
    lens = watch(model)
    step = torch.compile(lambda x: model(x).sum(), fullgraph=True, backend="aot_eager")
    with pytest.warns(MonitorchWarning, match="inside a larger compiled function") as told:
        [step(X).backward() for _ in range(3)]
    assert len(told) == 1
    assert lens.names == []


@compiling
def test_a_sequential_model_is_seen_if_it_is_compiled_in_place_and_the_warning_says_so(watch):
    model = nn.Sequential(Stack())
    lens = watch(model)
    with pytest.warns(MonitorchWarning, match="as Sequential does in torch.compile.* Call model.compile"):
        torch.compile(model, fullgraph=True, backend="aot_eager")(X).sum().backward()
    assert lens.names == []
    model.compile(fullgraph=True, backend="aot_eager")
    model(X).sum().backward()
    assert len(lens.names) == len(STACK)
