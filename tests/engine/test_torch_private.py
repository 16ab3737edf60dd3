"""What the private names of torch do, to notice a release that changes one; and that no other file uses any."""

import ast
import dataclasses
import inspect
import subprocess
import sys
import threading
import warnings
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.graph import get_gradient_edge
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # registers the backend "fake"
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import monitorch
from monitorch.engine import torch_private
from monitorch.engine.torch_private import (
    BRANCHES,
    CHECKPOINTED_INSIDE,
    COMPILED_INSIDE,
    COMPILER_FILES,
    MODULE_CALL,
    NO_TASK,
    PIPELINE_STAGE,
    STEP_PRE_HOOKS,
    BatchNorm,
    Convolution,
    Dropout,
    FakeTensor,
    Normalization,
    OperatorMode,
    after_backward,
    allows_operators,
    arrived,
    backward_node,
    connect,
    content_of,
    copy_all,
    current_device,
    current_stream,
    default_store,
    divide_all,
    end_graph,
    forget_empty_hooks,
    graph_task,
    has_compiled_call,
    has_global_hooks,
    hook_gradient,
    inside_backward,
    is_container,
    is_exported,
    is_graph_function,
    is_traced,
    is_transformed,
    last_operator_mode,
    loss_scale_tensor,
    mark_constant,
    mark_static,
    may_have_graphs,
    multiply_all,
    norm_all,
    number_of_graphs,
    path_in_graph,
    processes_sharding,
    put_back_hook,
    raise_all,
    reduce_in_place,
    remove_mode,
    root_all,
    running_parallel,
    running_steps,
    skip_frame,
    step_pre_hooks,
    tree_leaves,
    tree_map,
    will_execute,
    without_compiler,
    without_functions,
    without_graphs,
    without_modes,
    without_modes_of_others,
    without_operator_modes,
    without_overrides,
)

X = torch.ones(2)
compiling = pytest.mark.usefixtures("fresh_compiler")


class Graphs(list):
    """A backend that keeps the graphs it is given, and runs them as they are."""

    def __call__(self, graph, _):
        self.append(graph)
        return graph.forward

    def operations(self):
        return [sum(node.op.startswith("call_") for node in graph.graph.nodes) for graph in self]


def leaf():
    return torch.ones(1, requires_grad=True)


class Wrapped(Tensor):
    """A tensor of the user's own class."""


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


# torch.compile: what functions and tensors are to it


def halved(x):
    return x / 2


def shifted_half(x):
    return halved(x) + 1


@skip_frame
def skipped_shifted_half(x):
    return halved(x) + 1


@compiling
@pytest.mark.parametrize(("function", "graphs"), [(shifted_half, 1), (skipped_shifted_half, 0)])
def test_a_skipped_frame_is_no_graph_of_its_own_and_neither_is_what_it_calls(function, graphs):
    found = Graphs()
    assert torch.equal(torch.compile(function, backend=found)(X), X * 1.5)
    assert len(found) == graphs


@compiling
def test_a_skipped_frame_is_traced_into_the_graph_of_its_caller():
    found = Graphs()
    compiled = torch.compile(lambda x: skipped_shifted_half(x) * 4, backend=found, fullgraph=True)
    assert torch.equal(compiled(X), X * 6)
    assert found.operations() == [3]


@compiling
def test_a_graph_ends_before_a_function_that_ends_it_and_the_next_one_begins_after_it():
    found, seen = Graphs(), []

    @end_graph
    @skip_frame  # otherwise it would be compiled on its own
    def look():
        seen.append(torch.compiler.is_compiling())

    def compute(x):
        x = x + 1
        look()
        return x * 2

    compiled = torch.compile(compute, backend=found)
    for _ in range(2):
        assert torch.equal(compiled(X), X * 4)
    assert found.operations() == [1, 1]
    assert seen == [False, False]


@compiling
def test_a_constant_function_is_called_while_tracing_and_not_by_the_graph():
    calls = []

    @mark_constant
    def factor():
        calls.append(1)
        return 3

    compiled = torch.compile(lambda x: x * factor(), backend="eager", fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(X), X * 3)
    assert len(calls) == 1


@compiling
def test_only_marked_inputs_are_static_to_the_compiler():
    plain, static, found = torch.ones(1), torch.ones(3), []

    def compiler(graph, inputs):
        static_inputs = torch._guards.TracingContext.get().fw_metadata.static_input_indices
        found.extend(tuple(inputs[number].shape) for number in static_inputs)
        return make_boxed_func(graph.forward)

    assert mark_static(static) is static
    compiled = torch.compile(lambda x: x.sum() * plain + static, backend=aot_autograd(fw_compiler=compiler))
    assert torch.equal(compiled(X), torch.full((3,), 3.0))
    assert found == [(3,)]


# torch.compile: what was compiled


def test_a_compiled_module_keeps_the_module_inside(linear):
    compiled = torch.compile(linear, backend="eager")
    assert compiled._modules[COMPILED_INSIDE] is linear
    assert COMPILED_INSIDE not in linear._modules


@compiling
@pytest.mark.parametrize("hidden", [False, True])
def test_a_warning_of_the_compiler_comes_from_its_files(hidden):
    compiled = torch.compile(lambda x: Tripled.apply(x) * 2, backend="eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if hidden:
            warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning, COMPILER_FILES)
            assert compiled(leaf()).item() == 2
        else:
            with pytest.raises(Exception, match="should not be instantiated"):
                compiled(leaf())


def test_a_module_that_was_compiled_in_place_is_known(linear):
    other = torch.compile(nn.Linear(3, 2), backend="eager")
    assert not has_compiled_call(linear)
    assert not has_compiled_call(other)
    linear.compile(backend="eager")
    assert has_compiled_call(linear)


@compiling
def test_graphs_are_counted_in_total_and_known_by_their_code_until_a_reset():
    found, before = Graphs(), number_of_graphs()

    def compute(x):
        return x + 1

    assert not may_have_graphs(compute.__code__)
    compiled = torch.compile(compute, backend=found, dynamic=False)
    for size in (2, 3, 3):
        compiled(torch.ones(size))
    assert number_of_graphs() - before == len(found) == 2
    assert may_have_graphs(compute.__code__)
    assert not may_have_graphs(halved.__code__)
    torch.compiler.reset()
    assert number_of_graphs() - before == 2
    assert not may_have_graphs(compute.__code__)


def test_code_may_have_graphs_where_torch_does_not_tell(monkeypatch):
    monkeypatch.delattr(torch._C._dynamo.eval_frame, "_debug_get_cache_entry_list")
    assert may_have_graphs(halved.__code__)


def test_the_function_inside_a_compiled_one_is_found():
    assert without_compiler(torch.compile(halved, backend="eager")) is halved
    assert without_compiler(halved) is None
    assert without_compiler(None) is None


class Paths(nn.Module):
    """Keeps where in a graph the compiler traces it."""

    found = []  # noqa: RUF012

    def forward(self, x):
        return x + len(note(path_in_graph()))


@mark_constant
def note(path):
    Paths.found.append(path)
    return path


@compiling
def test_the_path_in_a_graph_leads_from_where_it_begins_to_the_module_that_is_traced():
    Paths.found.clear()
    model = nn.Sequential(nn.Sequential(nn.ReLU(), Paths()), Paths())
    torch.compile(model, backend="eager", fullgraph=True)(X)
    assert Paths.found == ["0.1", "1"]
    assert path_in_graph() == ""


@mark_constant
def note_operators(allowed):
    Paths.found.append(allowed)
    return allowed


def noting(x):
    note_operators(allows_operators())
    return x.sin()


@compiling
@pytest.mark.parametrize(
    ("call", "allowed"),
    [
        (noting, {True}),
        (lambda x: checkpoint(noting, x, use_reentrant=False), {True}),
        (torch.vmap(noting), {False}),
        (lambda x: torch.cond(x.sum() > 0, noting, torch.cos, (x,)), {False}),
        (lambda x: torch.while_loop(lambda x: x.sum() < 4, lambda x: (noting(x) + 2,), (x,)), {False}),
    ],
    ids=["plain", "checkpoint", "vmap", "cond", "while_loop"],
)
def test_operators_may_be_put_into_a_graph_but_not_into_transforms_and_branches(call, allowed):
    Paths.found.clear()
    torch.compile(call, backend="eager", fullgraph=True)(X)
    assert set(Paths.found) == allowed
    assert allows_operators()
    assert "cond" in BRANCHES


# modes


class PassBy(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("removed", range(4))
def test_a_mode_is_removed_from_among_others_which_keep_their_order(removed):
    modes = [PassBy() for _ in range(4)]
    others = [mode for mode in modes[:3] if mode is not modes[removed]]
    for mode in modes[:3]:
        mode.__enter__()
    remove_mode(modes[removed])  # the last one is not on
    left = []
    while torch._C._len_torch_function_stack():
        left.insert(0, torch._C._pop_torch_function_stack())
    assert left == others


class NotesFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_see_nothing_inside_and_everything_again_outside():
    outer, inner = NotesFunctions(), NotesFunctions()
    with outer:
        with without_functions():
            torch.relu(X)
            inner.__enter__()  # one that is put on there is on afterwards
        torch.sin(X)
        inner.__exit__(None, None, None)
    assert (outer.names, inner.names) == (["sin"], ["sin"])


class NotesOperators(OperatorMode):
    supports_higher_order_operators = True

    def __init__(self):
        super().__init__()
        self.names = []

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_mode_of_operators_sees_those_of_backward_too():
    assert last_operator_mode() is None
    weight = torch.ones(3, 2, requires_grad=True)
    with NotesOperators() as outer:
        assert last_operator_mode() is outer
        with NotesOperators() as inner:
            assert last_operator_mode() is inner
        (torch.ones(4, 3) @ weight).sum().backward()
    assert last_operator_mode() is None
    assert [name.split(".")[0] for name in outer.names].count("mm") == 2


@pytest.mark.parametrize("without", [without_modes, without_modes_of_others, without_operator_modes])
def test_modes_of_operators_see_nothing_inside_and_everything_again_outside(without):
    with NotesOperators() as outer, NotesOperators() as inner, NotesFunctions() as functions:
        with without():
            torch.relu(X)
            assert last_operator_mode() is (None if without is without_operator_modes else inner)
        assert last_operator_mode() is inner
        torch.sin(X)
        with pytest.raises(RuntimeError, match="inside"), without():
            raise RuntimeError("inside")
        assert last_operator_mode() is inner
    assert (outer.names, inner.names) == (["sin.default"], ["sin.default"])
    assert ("relu" in functions.names) is (without is without_operator_modes)
    with NotesFunctions() as functions, without():
        torch.relu(X)
    assert ("relu" in functions.names) is (without is without_operator_modes)


def test_modes_of_others_stay_on_while_one_of_ours_is_or_a_tracer_runs():
    with NotesOperators() as outer, NotesOperators() as ours:
        ours.is_ours = True
        with without_modes_of_others():
            torch.relu(X)
    assert outer.names == ours.names == ["relu.default"]
    with NotesOperators() as outer, FakeTensorMode(), without_modes_of_others():
        assert is_traced()
        torch.zeros(1)


def test_tensors_of_subclasses_do_as_they_like_where_there_are_no_modes():
    wrapped = X.as_subclass(Wrapped)
    with without_modes_of_others():
        assert type(wrapped + 1) is Wrapped
    with without_functions():
        assert type(wrapped + 1) is not Wrapped


@compiling
def test_a_mode_of_operators_does_not_keep_the_compiler_from_its_work():
    graphs = Graphs()
    compiled = torch.compile(lambda x: x @ x, backend=graphs)
    with NotesOperators() as mode:
        compiled(torch.ones(2, 2))
    assert len(graphs) == 1
    assert mode.names


def test_the_code_of_a_module_call_runs_while_a_module_runs():
    class Runs(nn.Module):
        def forward(self):
            frame, found = sys._getframe(), []
            while frame is not None:
                found += [frame.f_locals["self"]] if frame.f_code is MODULE_CALL else []
                frame = frame.f_back
            return found

    inner = Runs()
    outer = nn.Sequential()
    outer.forward = lambda: inner()
    assert inner() == [inner]
    assert outer() == [inner, outer]


def test_hooks_that_all_modules_call_are_known():
    assert not has_global_hooks()
    with register_module_forward_hook(lambda *_: None):
        assert has_global_hooks()
    assert not has_global_hooks()


@compiling
def test_nothing_is_compiled_where_graphs_are_not_wanted():
    backend = Graphs()
    compiled = torch.compile(halved, backend=backend)
    with without_graphs():
        assert torch.equal(compiled(X), halved(X))
    assert backend == []
    compiled(X)
    with without_graphs():
        compiled(X)
    compiled(X)
    assert len(backend) == 1


# tracers and transforms


def exported(call):
    class Net(nn.Module):
        def forward(self, x):
            return call(x)

    torch.export.export(Net(), (X,), strict=False)


def dual(call):
    with forward_ad.dual_level():
        call(forward_ad.make_dual(X, X))


def fake(call):
    with FakeTensorMode() as mode:
        call(mode.from_tensor(X))


def counted(call):
    with FlopCounterMode(display=False):
        call(X)


def without_gradient(call):
    with torch.no_grad():
        call(X)


TRACERS = {
    "eager": (lambda call: call(X), False),
    "without gradients": (without_gradient, False),
    "counting operations": (counted, False),
    "inside backward": (lambda call: checkpoint(call, leaf(), use_reentrant=False).sum().backward(), False),
    "compile": (lambda call: torch.compile(call, backend="eager")(X), True),
    "export": (exported, True),
    "jit.trace": (lambda call: torch.jit.trace(call, X, check_trace=False), True),
    "fx": (lambda call: torch.fx.symbolic_trace(call), True),
    "make_fx": (lambda call: make_fx(call)(X), True),
    "fake tensors": (fake, True),
    "functionalize": (lambda call: torch.func.functionalize(call)(X), True),
    "vmap": (lambda call: torch.func.vmap(call)(X), True),
    "grad": (lambda call: torch.func.grad(lambda x: call(x).sum())(X), True),
    "jvp": (lambda call: torch.func.jvp(call, (X,), (X,)), True),
    "dual numbers": (dual, True),
}


@compiling
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("way", TRACERS)
def test_tracers_and_transforms_are_noticed_while_they_run(way):
    run, expected = TRACERS[way]
    found = []

    def compute(x):
        found.append(is_traced())
        return x * x

    run(compute)
    assert found
    assert set(found) == {expected}
    assert not is_traced()


@compiling
def test_only_an_export_is_one():
    found = []

    def compute(x):
        found.append(is_exported())
        return x * x

    compute(X)
    torch.compile(compute, backend="eager", fullgraph=True)(X)
    assert set(found) == {False}
    found.clear()
    exported(compute)
    assert set(found) == {True}
    assert not is_exported()


def test_tensors_inside_transforms_are_known():
    found = []

    def compute(x):
        found.append(is_transformed(x))
        return (x * x).sum()

    compute(X)
    torch.func.vmap(compute)(X)
    torch.func.grad(compute)(X)
    assert found == [False, True, True]


# backward passes


def test_each_backward_pass_has_its_own_number():
    found = []
    for _ in range(2):
        x = leaf()
        y = x * 2
        for tensor in (x, y):
            tensor.register_hook(lambda _: found.append((graph_task(), inside_backward())))
        y.backward()
    (a, inside), b, c, d = found
    assert inside
    assert (a, inside) == b != c == d
    assert NO_TASK not in (a, c[0])
    assert graph_task() == NO_TASK
    assert not inside_backward()


@pytest.mark.parametrize("kind", [Tensor, Wrapped])
@pytest.mark.parametrize("others", [(), ("before",), ("after",), ("before", "after")])
def test_a_gradient_reaches_its_hook_and_those_of_others_once(kind, others):
    called, x = [], leaf()
    y = (x * 2).as_subclass(kind)
    if "before" in others:
        y.register_hook(lambda gradient: called.append(("before", gradient.item())))
    hook_gradient(y, lambda gradient: called.append(("ours", gradient.item())))
    handle = y.register_hook(lambda gradient: called.append(("after", gradient.item())))
    if "after" not in others:
        handle.remove()
    (y * 3).sum().backward()
    assert called == [(name, 3.0) for name in ("before", "ours", "after") if name in ("ours", *others)]
    assert x.grad.item() == 6.0


def test_an_in_place_change_after_a_hook_leaves_it_the_gradient_before_the_change():
    called, x = [], leaf()
    y = x * 2
    hook_gradient(y, called.append)
    y.mul_(5).sum().backward()
    assert [gradient.item() for gradient in called] == [5.0]


def test_a_backward_pass_inside_another_has_its_own_number():
    found, x = [], leaf()

    def compute(x):
        y = x * 2
        if y.requires_grad:
            y.register_hook(lambda _: found.append(graph_task()))
        return y

    z = checkpoint(compute, x, use_reentrant=True)
    z.register_hook(lambda _: found.append(graph_task()))
    z.backward()
    assert len(set(found)) == 2
    assert NO_TASK not in found


def test_the_running_node_is_the_one_of_the_tensor_whose_gradient_arrives():
    found, y = [], leaf() * 2
    y.register_hook(lambda _: found.append(backward_node()))
    assert backward_node() is None
    y.backward()
    assert found == [y.grad_fn]
    assert backward_node() is None


def test_which_leaves_get_a_gradient_is_known_in_advance():
    weight, x = leaf(), leaf()
    product, found = weight * x, []

    def look(_):
        try:
            found.append(will_execute(get_gradient_edge(weight).node))
        except RuntimeError:
            found.append("returned")

    product.register_hook(look)
    torch.autograd.grad(product, x, retain_graph=True)
    torch.autograd.grad(product, weight, retain_graph=True)
    product.backward()
    assert found == [False, "returned", True]


def test_callbacks_come_after_all_gradients_in_order_and_may_queue_others():
    weights, order = [leaf(), leaf()], []

    def note(what):
        order.append((what, [weight.grad is not None for weight in weights]))

    def first():
        note("first")
        after_backward(lambda: note("last"))

    def begin(_):
        after_backward(first)
        after_backward(lambda: note("second"))
        note("backward")

    y = weights[0] * weights[1]
    y.register_hook(begin)
    y.backward()
    assert order == [
        ("backward", [False, False]),
        ("first", [True, True]),
        ("second", [True, True]),
        ("last", [True, True]),
    ]


@compiling
def test_a_compiled_graph_is_told_from_other_autograd_functions():
    compiled = torch.compile(lambda x: x.sin() * 2, backend="aot_eager")
    assert is_graph_function(compiled(leaf()).grad_fn)
    assert not is_graph_function(Tripled.apply(leaf()).grad_fn)


# tensors


def test_without_overrides_an_uninitialised_parameter_takes_hooks():
    weight = nn.LazyLinear(2).weight
    with pytest.raises(ValueError, match="uninitialized parameter"):
        weight.register_post_accumulate_grad_hook(print)
    with without_overrides():
        weight.register_post_accumulate_grad_hook(print).remove()


def test_swapped_tensors_exchange_their_content():
    a, b = torch.zeros(1), torch.ones(1)
    before = content_of(a), content_of(b)
    assert before[0] != before[1]
    a.add_(1)
    assert (content_of(a), content_of(b)) == before
    torch.utils.swap_tensors(a, b)
    assert (content_of(b), content_of(a)) == before


@pytest.mark.parametrize("register", ["register_post_accumulate_grad_hook", "register_hook"])
@pytest.mark.parametrize("forgotten", [False, True])
def test_after_a_swap_hooks_are_called_if_the_empty_ones_were_forgotten(forgotten, register):
    weight, called = leaf(), []
    getattr(weight, register)(print).remove()
    torch.utils.swap_tensors(weight, leaf())
    if forgotten:
        forget_empty_hooks(weight)
    getattr(weight, register)(called.append)
    weight.sum().backward()
    assert bool(called) == forgotten  # if torch calls it in any case, nothing has to be forgotten any more


def test_hooks_of_others_are_not_forgotten():
    weight, called = leaf(), []
    weight.register_post_accumulate_grad_hook(lambda _: called.append("added"))
    weight.register_hook(lambda _: called.append("arrived"))
    forget_empty_hooks(weight)
    weight.sum().backward()
    assert called == ["arrived", "added"]


@pytest.mark.parametrize("before", [False, True])
def test_a_hook_that_is_put_back_is_one_that_was_registered_again(before):
    linear, called = nn.Linear(1, 1), []
    register = linear.register_forward_pre_hook if before else linear.register_forward_hook
    handle = register(lambda *call: called.append(len(call)), with_kwargs=True)
    hook = next(iter((linear._forward_pre_hooks if before else linear._forward_hooks).values()))
    handle.remove()
    put_back_hook(linear, handle.id, hook, before=before)
    linear(torch.ones(1, 1))
    assert called == [3 if before else 4]
    handle.remove()
    linear(torch.ones(1, 1))
    assert len(called) == 1


def test_all_tensors_are_copied_into_others_of_any_shape_and_dtype():
    originals = [torch.arange(3.0), torch.ones(2, 2, dtype=torch.float64), torch.tensor(5, dtype=torch.int64)]
    copies = [torch.zeros_like(tensor) for tensor in originals]
    addresses = [copy.data_ptr() for copy in copies]
    copy_all(copies, originals)
    assert all(map(torch.equal, copies, originals))
    assert [copy.data_ptr() for copy in copies] == addresses
    copy_all(copies[:1], [torch.full((3,), 2.0, dtype=torch.bfloat16)])
    assert copies[0].tolist() == [2, 2, 2]


def test_norms_of_many_tensors_are_computed_in_the_wanted_dtype():
    tensors = [torch.full((3, 4), 300.0, dtype=torch.float16), torch.tensor([3.0, 4.0]), torch.zeros(0), torch.ones(())]
    found = norm_all(tensors, 2, dtype=torch.float64)
    assert [norm.dtype for norm in found] == [torch.float64] * 4
    assert [norm.item() for norm in found] == pytest.approx([300 * 12**0.5, 5, 0, 1])  # 1039 squared is no float16


def test_many_tensors_are_divided_by_roots_that_are_scaled_and_have_a_least_value():
    squares = torch.tensor([4.0, 9.0]), torch.tensor([[0.0]])
    for factors in ([2.0, 3.0], [torch.tensor(2.0), torch.tensor(3.0)]):
        roots = root_all(squares)
        multiply_all(roots, factors)
        raise_all(roots, [5.0, 0.5])
        assert [root.tolist() for root in roots] == [[5.0, 6.0], [[0.5]]]
        assert [found.tolist() for found in divide_all([torch.ones(2), torch.ones(1, 1)], roots)][1] == [[2.0]]
    assert squares[0].tolist() == [4.0, 9.0]


def test_fake_tensors_are_known_though_they_have_a_device():
    with FakeTensorMode() as mode:
        made = mode.from_tensor(X)
    assert isinstance(made, FakeTensor)
    assert not made.is_meta
    assert not isinstance(X, FakeTensor)
    assert not isinstance(torch.empty(1, device="meta"), FakeTensor)


class Pair(NamedTuple):
    a: int
    b: int


@dataclasses.dataclass
class Unknown:
    a: int


@dataclasses.dataclass
class Registered:
    a: int


torch.export.register_dataclass(Registered)


def test_trees_are_mapped_leaf_by_leaf():
    tree = {"a": [1, (2, None)], "b": Pair(3, 4), "c": Registered(5)}
    assert tree_map(lambda x: x and -x, tree) == {"a": [-1, (-2, None)], "b": Pair(-3, -4), "c": Registered(-5)}
    assert tree_leaves(tree) == [1, 2, None, 3, 4, 5]


def test_only_registered_classes_are_looked_into():
    unknown = Unknown(1)
    seen = []
    tree_map(seen.append, [unknown, Registered(2)])
    assert seen == [unknown, 2]
    assert all(map(is_container, (list, tuple, dict, Registered)))
    assert not any(map(is_container, (Unknown, torch.Tensor, int)))


# kinds of modules


def layers(condition):
    found = inspect.getmembers(nn, lambda thing: isinstance(thing, type) and issubclass(thing, nn.Module))
    return {name for name, _ in found if condition(name)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Convolution, layers(lambda name: name.removeprefix("Lazy").startswith("Conv"))),
        (Normalization, layers(lambda name: "BatchNorm" in name or "InstanceNorm" in name)),
        (BatchNorm, layers(lambda name: "BatchNorm" in name)),
        (Dropout, layers(lambda name: "Dropout" in name)),
    ],
    ids=["convolution", "normalization", "batch normalization", "dropout"],
)
def test_all_layers_of_a_kind_and_no_others_have_the_common_base(kind, expected):
    assert len(expected) >= 6
    assert layers(lambda name: issubclass(getattr(nn, name), kind)) == expected


# optimizers and loss scalers


class Careful(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


@pytest.fixture
def optimizer():
    return torch.optim.SGD([leaf()], lr=0.1)


def test_step_pre_hooks_are_called_in_their_order(optimizer):
    order = []
    first = optimizer.register_step_pre_hook(lambda *_: order.append("first"))
    optimizer.register_step_pre_hook(lambda *_: order.append("second"))
    optimizer.step()
    hooks = step_pre_hooks(optimizer)
    assert next(iter(hooks)) == first.id
    hooks.move_to_end(first.id)
    optimizer.step()
    assert order == ["first", "second", "second", "first"]
    assert vars(optimizer)[STEP_PRE_HOOKS] is hooks


def test_a_hook_can_be_replaced_while_hooks_are_called(optimizer):
    order = []

    def replace_last(*_):
        hooks = step_pre_hooks(optimizer)
        hooks[next(reversed(hooks))] = lambda *_: order.append("new")

    optimizer.register_step_pre_hook(replace_last)
    optimizer.register_step_pre_hook(lambda *_: order.append("old"))
    optimizer.step()
    assert order == ["new"]


@pytest.mark.parametrize("thing", [None, object(), torch.optim.SGD.__new__(torch.optim.SGD)])
def test_what_is_no_optimizer_has_no_place_for_hooks(thing):
    assert step_pre_hooks(thing) is None


def test_running_steps_are_counted_for_each_optimizer(optimizer):
    nested, found = Careful([leaf()], lr=0.1), []

    def look(*_):
        found.append((running_steps(nested), running_steps(optimizer)))

    nested.register_step_pre_hook(look)
    nested.register_step_post_hook(look)
    optimizer.register_step_pre_hook(lambda *_: nested.step())
    look()
    optimizer.step()
    look()
    assert found == [(0, 0), (1, 1), (2, 1), (2, 1), (1, 1), (0, 0)]


def test_a_step_that_failed_is_not_running(optimizer):
    found = []

    def fail():
        found.append(running_steps(optimizer))
        raise KeyError("closure")

    for _ in range(2):
        with pytest.raises(KeyError):
            optimizer.step(fail)
    assert found == [1, 1]
    assert running_steps(optimizer) == 0


def test_the_scale_of_a_scaler_is_a_tensor_that_changes_in_place(optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert loss_scale_tensor(scaler) is None
    (parameter,) = optimizer.param_groups[0]["params"]
    scaler.scale(parameter.sum() * torch.inf).backward()
    scale = loss_scale_tensor(scaler)
    version = scale._version
    assert scale.item() == scaler.get_scale() == 8
    scaler.step(optimizer)
    scaler.update()
    assert loss_scale_tensor(scaler) is scale
    assert scale.item() == scaler.get_scale() == 4
    assert scale._version > version


# processes


@pytest.fixture
def one_process(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def eight_processes():
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


def test_a_checkpointed_module_is_inside_its_wrapper(linear):
    assert checkpoint_wrapper(linear)._modules[CHECKPOINTED_INSIDE] is linear


def test_a_pipeline_stage_is_known_by_the_name_of_its_base():
    assert PIPELINE_STAGE in {base.__name__ for base in PipelineStage.__mro__}


def test_the_default_store_is_the_one_that_the_group_was_made_with():
    store = dist.HashStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=2)
    try:
        default_store().set("a", "1")
        assert default_store().get("a") == b"1"
        assert default_store().clone().get("a") == b"1"
    finally:
        dist.destroy_process_group()


def test_processes_that_are_connected_by_a_store_reduce_without_a_default_group():
    store, limit = dist.HashStore(), timedelta(seconds=60)
    tensors = [torch.tensor([1.0, 5.0]), torch.tensor([3.0, 2.0])]

    def reduce(rank):
        group = connect(store, rank, 2, limit)
        for operation in (dist.ReduceOp.MAX, dist.ReduceOp.SUM):
            reduce_in_place(group, tensors[rank], operation, limit)

    threads = [threading.Thread(target=reduce, args=[rank]) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [tensor.tolist() for tensor in tensors] == [[6.0, 10.0]] * 2


@pytest.mark.usefixtures("one_process")
def test_a_parallel_module_is_running_during_its_forward_pass(linear):
    found = []
    linear.register_forward_hook(lambda *_: found.append(running_parallel()))
    linear(torch.ones(1, 3))
    parallel = DistributedDataParallel(linear)
    parallel(torch.ones(1, 3))
    assert found == [None, parallel]
    assert running_parallel() is None


SHARDINGS = {
    "one dimension": ((8,), ("data",), ("data",), 8),
    "shards and copies": ((2, 4), ("copies", "shards"), ("copies", "shards"), 8),
    "beside tensor parallelism": ((4, 2), ("data", "tensors"), ("data",), 4),
}


@pytest.mark.usefixtures("eight_processes")
@pytest.mark.parametrize("layout", SHARDINGS)
def test_processes_that_share_batches_are_not_counted_as_averaging(layout, linear):
    shape, names, used, processes = SHARDINGS[layout]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    assert processes_sharding(linear) == 0
    assert processes_sharding(fully_shard(linear, mesh=mesh[used])) == processes


@pytest.mark.usefixtures("one_process")
def test_a_sharded_module_without_parameters_of_its_own_counts_as_one_process(linear):
    model = nn.Sequential(fully_shard(linear))
    assert processes_sharding(fully_shard(model)) == 1


@pytest.mark.usefixtures("one_process")
def test_the_result_of_a_collective_is_waited_for():
    from torch.distributed import _functional_collectives as collectives

    coming = collectives.all_reduce(X * 3, "sum", dist.group.WORLD)
    assert type(coming) is not torch.Tensor
    there = arrived(coming)
    assert type(there) is torch.Tensor
    assert torch.equal(there, X * 3)
    assert arrived(X) is X


# CUDA


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_device_and_stream_are_the_current_ones_of_torch():
    for number in range(torch.cuda.device_count()):
        with torch.cuda.device(number), torch.cuda.stream(torch.cuda.Stream()):
            assert current_device() == torch.cuda.current_device() == number
            assert current_stream(number) == torch.cuda.current_stream().cuda_stream != 0


# the file itself, and all others

SOURCE = Path(monitorch.__file__).parent
OURS = SOURCE / "engine" / "torch_private.py"
OTHERS = sorted(file for file in SOURCE.rglob("*.py") if file != OURS)

STABLE = {
    # how modules keep what they are made of, and how other libraries read it, since the first releases of torch
    *("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"),
    "_load_from_state_dict",  # what modules override to load states of older versions
    "_version",  # how often a tensor was changed in place; the documentation of autograd names it
}
OF_PYTHON = {"_asdict", "_fields", "_make", "_replace", "_getframe", "_value_", "_repr_mimebundle_"}
PUBLIC_LOOKING = {"profile_hook_step", "trigger_wait", "SUPPORTED_NODES"}
"""Names without an underscore that torch does not document."""

OF_IGNITE = {"_event_handlers"}
"""Of another package, and held to it by the tests of that integration."""


def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def defined(tree):
    """Private names that a file gives to things of its own: functions, classes, variables and attributes of self."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def looked_up(tree):
    """Names that a file looks up in things, be it by their names as strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.lineno, node.value


def imported_from_torch(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, path) for path in paths if path.split(".")[0] == "torch")


def private_uses(tree, own, hidden):
    """Private names of torch in a file, with their lines.

    Args:
        own: private names that the package defines.
        hidden: names that belong to the one file for them, even as strings.
    """
    for line, path in imported_from_torch(tree):
        if any(map(is_private, path.split("."))) or path.split(".")[-1] in PUBLIC_LOOKING:
            yield line, path
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node).startswith("torch."):
            yield node.lineno, ast.unparse(node)
        elif (
            isinstance(node, ast.Attribute)
            and is_private(node.attr)
            and node.attr not in own | STABLE | OF_PYTHON | OF_IGNITE
        ):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "torch._" in node.value:
            yield node.lineno, node.value
    yield from ((line, name) for line, name in looked_up(tree) if name in hidden)


@pytest.fixture(scope="module")
def own_names():
    return {name for file in OTHERS for name in defined(tree_of(file)) if is_private(name)}


@pytest.fixture(scope="module")
def hidden_names(own_names):
    found = {name for _, name in looked_up(tree_of(OURS)) if is_private(name)}
    return (found - own_names - STABLE - OF_PYTHON) | PUBLIC_LOOKING


def test_no_other_file_uses_private_names_of_torch(own_names, hidden_names):
    assert {"_orig_mod", "_cdata", "_C", "_get_scale_async", "_torchdynamo_disable"} <= hidden_names
    found = [
        f"{file.relative_to(SOURCE)}:{line}: {name}"
        for file in OTHERS
        for line, name in private_uses(tree_of(file), own_names, hidden_names)
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import torch._dynamo",
        "from torch import _dynamo",
        "from torch._dynamo.utils import counters",
        "from torch.nn.modules.conv import _ConvNd",
        "torch._C._current_graph_task_id()",
        "torch._own(x)",
        "parameter._cdata",
        "parameter._backward_hooks",
        "getattr(optimizer, '_optimizer_step_pre_hooks')",
        "'torch._dynamo.utils' in sys.modules",
        "Optimizer.profile_hook_step",
    ],
)
def test_private_names_are_found_in_code(code, hidden_names):
    assert list(private_uses(ast.parse(code), {"_own"}, hidden_names))


@pytest.mark.parametrize(
    "code",
    ["thing._own", "module._parameters['weight']", "info._replace(a=1)", "from torch.nn import Conv2d", "'_own'"],
)
def test_other_names_are_not(code, hidden_names):
    assert not list(private_uses(ast.parse(code), {"_own"}, hidden_names))


def test_every_name_has_a_test_here_and_a_reason_there():
    tree, tests = tree_of(OURS), tree_of(Path(__file__))
    names = {name for name in defined(tree) if name in vars(torch_private) and not is_private(name)} - {"Function"}
    bodies = [node for node in tests.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
    used = {node.id for body in bodies for node in ast.walk(body) if isinstance(node, ast.Name)}
    assert names <= used
    reasons = {
        node.targets[0].id if isinstance(node, ast.Assign) else node.target.id
        for node, after in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(after, ast.Expr)
    }
    reasons |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and ast.get_docstring(node)}
    assert names <= reasons


def test_importing_the_file_loads_neither_the_compiler_nor_distributed_tensors():
    code = """
import sys
from monitorch.engine.torch_private import inside_backward, is_traced, number_of_graphs, skip_frame, without_graphs
skip_frame(lambda: None)
with without_graphs():
    pass
assert (number_of_graphs(), is_traced(), inside_backward()) == (0, False, False)
print(*({"torch._dynamo", "torch._inductor", "torch.distributed.tensor"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
