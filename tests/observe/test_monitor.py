"""What all monitors promise: whom they watch, how long, and that forward passes do not suffer from it."""

import gc
import re
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import monitorch.observe
from monitorch import MonitorchWarning
from monitorch.observe import (
    CAReducer,
    DifferenceMonitor,
    EMAReducer,
    Monitor,
    MultiStateMonitor,
    OutputMonitor,
    PassthroughReducer,
    StateMonitor,
)

X = torch.ones(1, 2)


def hooks_on(module):
    return len(module._forward_pre_hooks) + len(module._forward_hooks)


def test_every_promised_name_is_there():
    promised = {
        *("Reducer", "RecordReducer", "FoldReducer", "NearestTraceReducer", "CumulativeTraceReducer", "EMAReducer"),
        *("ScaledNearestTraceReducer", "ScaledCumulativeTraceReducer", "ConditionalNearestTraceReducer", "CAReducer"),
        *("ConditionalCumulativeTraceReducer", "EventReducer", "PassthroughReducer", "Monitor", "InputMonitor"),
        *("OutputMonitor", "StateMonitor", "DifferenceMonitor", "MultiStateMonitor", "MonitorConstructor"),
        *("Observable", "MonitorPool", "Module", "RecordTensor", "Hook", "ContextualHook", "StateHook"),
    }
    assert promised == set(monitorch.observe.__all__)


# ---- life time


def test_dropped_monitor_takes_its_hooks_along_at_once(build_monitor, layer):
    monitor = build_monitor(PassthroughReducer(1.0), layer)
    layer(X)
    assert hooks_on(layer) > 0
    gc.disable()
    try:
        del monitor
        assert hooks_on(layer) == 0
    finally:
        gc.enable()


def test_monitor_dropped_before_its_first_sample_says_so(build_monitor, layer):
    with pytest.warns(MonitorchWarning, match="of Linear was dropped before its first sample. .* in a variable"):
        build_monitor(PassthroughReducer(1.0), layer)
    assert hooks_on(layer) == 0


def test_monitor_that_was_taken_off_or_outlived_its_module_goes_silently(build_monitor, layer):
    monitor = build_monitor(PassthroughReducer(1.0), layer)
    monitor.deregister()
    monitor = build_monitor(PassthroughReducer(1.0), nn.Linear(2, 2))
    gc.collect()
    del monitor
    build_monitor(PassthroughReducer(1.0))
    assert hooks_on(layer) == 0


def test_monitor_comes_back_to_its_module(build_monitor, layer):
    monitor = build_monitor(PassthroughReducer(1.0))
    with pytest.raises(RuntimeError, match=r"pass one to register\(\)"):
        monitor.register()
    monitor.register(layer)
    monitor.register()
    monitor.deregister()
    layer(X)
    assert (monitor.latest, monitor.registered) == (None, False)
    monitor.register()
    layer(X)
    assert monitor.latest is not None


def test_second_registration_is_refused_by_name_and_the_first_one_goes_on(build_monitor, layer):
    monitor, other = build_monitor(PassthroughReducer(1.0), layer), nn.Linear(2, 2)
    text = f"{type(monitor).__name__}(Monitor) is already registered to a module so register() was ignored"
    for module in (other, layer):
        with pytest.raises(RuntimeError, match=re.escape(text)):
            monitor.register(module)
    assert hooks_on(other) == 0
    layer(X)
    assert monitor.reducer.count == 1


def test_monitor_is_registered_until_it_is_taken_off_even_if_its_module_goes_first(build_monitor):
    monitor, dropped = build_monitor(PassthroughReducer(1.0), module := nn.Linear(2, 2)), weakref.ref(module)
    del module
    gc.collect()
    assert dropped() is None  # being registered keeps no module alive
    monitor.register()
    assert monitor.registered
    monitor.deregister()
    assert not monitor.registered
    with pytest.raises(RuntimeError, match=r"pass one to register\(\)"):
        monitor.register()


def test_monitor_whose_module_is_gone_moves_on(build_monitor, layer):
    monitor = build_monitor(PassthroughReducer(1.0), nn.Linear(2, 2))
    gc.collect()
    monitor.register(layer)
    layer(X)
    assert monitor.reducer.count == 1


def test_only_the_mode_of_the_watched_module_counts(build_monitor, layer):
    monitor = build_monitor(PassthroughReducer(1.0), layer).eval()
    monitor.evalexec = False
    layer(X)
    layer.eval()(X)
    assert monitor.reducer.count == 1
    with pytest.raises(NotImplementedError):
        monitor(X)


def test_reading_goes_to_the_reducer(layer):
    monitor = OutputMonitor(EMAReducer(1.0, 0.5, 3.0), layer)
    for _ in range(2):
        layer(X)
    reducer = monitor.reducer
    assert torch.equal(monitor.latest, reducer.latest)
    assert torch.equal(monitor.peek(), reducer.peek())
    assert torch.equal(monitor.dump(), reducer.dump())
    assert torch.equal(monitor.view(0.5), reducer.view(0.5))
    monitor.clear()
    assert reducer.latest is None


# ---- forward passes do not suffer


def test_short_last_batch_is_left_out_counted_and_told_once(layer):
    monitor = OutputMonitor(EMAReducer(1.0, 0.5), layer)
    layer(torch.ones(4, 2))
    expected = monitor.latest
    with pytest.warns(MonitorchWarning, match=r"its shape is \(3, 2\), but the first one had \(4, 2\).*map_"):
        layer(torch.zeros(3, 2))
    layer(torch.zeros(1, 2))  # would broadcast
    assert torch.equal(monitor.latest, expected)
    assert (monitor.reducer.count, monitor.reducer.skipped) == (1, 2)
    layer(torch.ones(4, 2))
    assert monitor.reducer.count == 2


def test_errors_of_the_users_functions_are_raised(layer):
    monitor = OutputMonitor(PassthroughReducer(1.0), layer, map_=lambda y: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        layer(X)
    assert monitor.registered


def test_errors_may_be_warnings_that_stop_the_monitor(layer):
    monitor = OutputMonitor(PassthroughReducer(1.0), layer, map_=lambda y: 1 / 0)
    monitor.on_error = "warn"
    with pytest.warns(MonitorchWarning, match="OutputMonitor stops watching Linear: ZeroDivisionError"):
        layer(X)
    layer(X)
    assert not monitor.registered


def test_monitor_needs_a_reducer_and_a_path():
    with pytest.raises(TypeError, match=r"needs a Reducer such as PassthroughReducer\(1.0\), not int"):
        OutputMonitor(3)
    with pytest.raises(TypeError, match="dotted path"):
        StateMonitor(PassthroughReducer(1.0), 3)
    with pytest.raises(TypeError, match="op_ must be a function, not 3"):
        DifferenceMonitor(PassthroughReducer(1.0), "bias", op_=3)
    with pytest.raises(RuntimeError, match="prehook"):
        Monitor(PassthroughReducer(1.0))


@pytest.mark.parametrize("option", ["filter_", "map_"])
@pytest.mark.parametrize(
    "kind",
    [
        OutputMonitor,
        partial(StateMonitor, attr="bias"),
        partial(MultiStateMonitor, attr="", subattrs="bias"),
        partial(DifferenceMonitor, attr="bias"),
    ],
    ids=["output", "state", "several states", "difference"],
)
def test_filter_and_map_must_be_functions(kind, option):
    with pytest.raises(TypeError, match=f"{option} must be a function, not 'mean'"):
        kind(PassthroughReducer(1.0), **{option: "mean"})


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_counts_once(build_monitor, layer, use_reentrant):
    monitor = build_monitor(PassthroughReducer(1.0), layer)
    for _ in range(3):
        checkpoint(layer, X.requires_grad_(), use_reentrant=use_reentrant).sum().backward()
    assert monitor.reducer.count == 3
    assert getattr(monitor, "_calls", {}) == {}


def test_results_that_checkpointing_saves_are_not_mixed_up_with_samples():
    layer, other = nn.Linear(2, 3), nn.Linear(3, 2)
    contexts = partial(create_selective_checkpoint_contexts, lambda *_, **__: CheckpointPolicy.MUST_SAVE)

    def gradient():
        x = torch.arange(8.0).reshape(4, 2).requires_grad_()
        part = checkpoint(lambda x: other(layer(x).abs().mul(3).clone()), x, use_reentrant=False, context_fn=contexts)
        part.square().sum().backward()
        return x.grad

    expected = gradient()
    average = OutputMonitor(EMAReducer(1.0, alpha=0.1), layer, map_=lambda y: (y.abs().mul(2).mean(),))
    difference = DifferenceMonitor(PassthroughReducer(1.0), "weight", layer)
    assert torch.equal(gradient(), expected)
    assert (average.reducer.count, difference.reducer.count) == (1, 1)


class IntoLayers(torch.fx.Tracer):
    """Traces the layers of torch, too, and so calls their hooks."""

    def is_leaf_module(self, m, module_qualified_name):
        return False


def call_under_fake_mode(layer):
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer(torch.ones(1, 2))


def call_with(layer, stand_in):
    """Call the layer with tensors that have no numbers, for its parameters too."""
    parameters = {name: stand_in(parameter.detach()) for name, parameter in layer.named_parameters()}
    torch.func.functional_call(layer, parameters, (stand_in(X.detach()),))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    "rehearse",
    [
        lambda layer: torch.export.export(layer, (X.detach(),)),
        lambda layer: torch.vmap(layer)(torch.ones(3, 1, 2)),
        lambda layer: torch.func.jvp(layer, (X.detach(),), (X.detach(),)),
        lambda layer: torch.func.grad(lambda x: layer(x).sum())(X.detach()),
        lambda layer: torch.func.functionalize(layer)(X.detach()),
        lambda layer: torch.jit.trace(layer, X.detach(), check_trace=False),
        lambda layer: IntoLayers().trace(nn.Sequential(layer)),
        call_under_fake_mode,
        lambda layer: call_with(layer, FakeTensorMode().from_tensor),
        lambda layer: call_with(layer, lambda tensor: tensor.to("meta")),
    ],
    ids=["export", "vmap", "jvp", "grad", "functionalize", "trace", "fx", "fake mode", "fake tensors", "meta tensors"],
)
def test_rehearsals_do_not_count(build_monitor, layer, rehearse):
    monitor = build_monitor(PassthroughReducer(1.0), layer)
    rehearse(layer)
    assert monitor.reducer.count == 0
    layer(X)
    assert monitor.reducer.count == 1
    assert getattr(monitor, "_calls", {}) == {}


def test_training_is_bit_identical(build_monitor):
    def train(watched):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(), nn.Linear(8, 2))
        monitors = [build_monitor(EMAReducer(1.0, 0.5, 4.0), part) for part in (model[0], model[2])] if watched else []
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(5, 2)).pow(2).sum().backward()
            optimizer.step()
        assert all(monitor.reducer.count == 4 for monitor in monitors)
        return torch.cat([parameter.flatten() for parameter in model.parameters()]), torch.get_rng_state()

    for plain, watched in zip(train(False), train(True), strict=True):
        assert torch.equal(plain, watched)


def test_no_sample_of_any_thread_is_lost():
    module = nn.Identity()
    monitor = OutputMonitor(CAReducer(1.0), module)
    samples = torch.arange(200, dtype=torch.float64)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(module, samples))
    assert monitor.reducer.count == 200
    assert monitor.latest.item() == pytest.approx(samples.mean().item())


# ---- memory


@pytest.mark.parametrize(
    ("kind", "reducer"),
    [
        (OutputMonitor, EMAReducer(1.0, 0.1, 4.0)),
        (partial(DifferenceMonitor, attr="bias"), PassthroughReducer(1.0, 4.0, inplace=True)),
    ],
    ids=["output", "difference"],
)
def test_memory_does_not_grow(kind, reducer, layer):
    """Not one tensor and not one byte more after 10,000 steps than after 10."""
    monitor = kind(reducer, module=layer)

    def held(steps):
        for _ in range(steps):
            layer(X)
        gc.collect()
        found = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, nn.Parameter)]
        dense = [tensor for tensor in found if tensor.layout == torch.strided]  # others may be left from other tests
        return len(found), sum(tensor.untyped_storage().nbytes() for tensor in dense)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gc meets deprecated things
        before = held(10)
        assert held(9_990) == before
    assert monitor.latest.grad_fn is None
    assert monitor.reducer.count == 10_000


def test_monitor_of_ones_own(layer):
    class Calls(Monitor):
        """Records the number of rows that go in."""

        def __init__(self, reducer, module=None):
            super().__init__(reducer, module, prehook="rows")

        def rows(self, module, args):
            self.record(len(args[0]))

    monitor, other = (Calls.partialconstructor(PassthroughReducer(1.0, 3.0))("", layer) for _ in range(2))
    for rows in (2, 5):
        layer(torch.ones(rows, 2))
    assert monitor.dump().tolist() == other.dump().tolist() == [5, 2, 0]
