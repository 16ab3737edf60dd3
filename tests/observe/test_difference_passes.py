"""DifferenceMonitor: each way in which a forward pass can surprise it, and what it keeps."""

import contextlib
import threading
from collections import namedtuple

import pytest
import torch
from torch import nn

from monitorch.observe import CAReducer, DifferenceMonitor, PassthroughReducer


def watch(module, attr="st", slots=8, **options):
    return DifferenceMonitor(PassthroughReducer(1.0, float(slots)), attr, module, **options)


def seen(monitor):
    """All samples, oldest first."""
    dumped = monitor.dump()
    return [] if dumped is None else dumped[: monitor.reducer.count].flip(0).flatten().tolist()


class Recursive(nn.Module):
    """Calls itself, and writes into its state on each level."""

    def __init__(self):
        super().__init__()
        self.st = torch.zeros(1)

    def forward(self, depth):
        self.st.add_(10)
        if depth:
            self(depth - 1)
        self.st.add_(1)


def test_each_level_of_recursion_has_its_own_difference():
    module = Recursive()
    monitor = watch(module)
    module(2)
    assert seen(monitor) == [11, 22, 33]


class Failing(Recursive):
    def forward(self, depth):
        self.st = self.st + 10
        if depth == 0:
            raise ZeroDivisionError
        with contextlib.suppress(ZeroDivisionError):
            self(depth - 1)
        self.st = self.st + 1


def test_failed_pass_leaves_nothing_behind():
    module = Failing()
    monitor = watch(module)
    with pytest.raises(ZeroDivisionError):
        module(0)
    assert monitor._calls == {}
    assert monitor.reducer.count == 0
    try:
        raise RuntimeError  # a pass inside an except block is not a failed one
    except RuntimeError:
        module(1)
    assert seen(monitor) == [21]
    assert monitor._calls == {}


class Switching(Recursive):
    def forward(self, training):
        self.st = self.st + 1
        self.train(training)


def test_mode_counts_when_a_pass_begins():
    module = Switching()
    monitor = watch(module, eval_update=False)
    module(False)  # begins in train mode
    module(True)  # begins in eval mode
    module(True)
    assert seen(monitor) == [1, 1]
    assert monitor._calls == {}


def test_clear_inside_a_pass_drops_its_sample_only(rebinding):
    monitor = watch(rebinding)
    handle = rebinding.register_forward_pre_hook(lambda *_: monitor.clear())
    rebinding(1.0)
    assert monitor.reducer.count == 0
    handle.remove()
    rebinding(5.0)
    assert seen(monitor) == [5]


def test_monitor_that_comes_in_the_middle_of_a_pass_waits_for_the_next(rebinding):
    monitor = DifferenceMonitor(PassthroughReducer(1.0), "st")
    handle = rebinding.register_forward_pre_hook(lambda *_: monitor.register(rebinding))
    rebinding(1.0)
    handle.remove()
    assert monitor.latest is None
    rebinding(2.0)
    assert monitor.latest.tolist() == [2]


def test_threads_keep_their_own_before():
    """As replicas do: two passes of modules that share hooks overlap."""
    both_began, first_ended = threading.Barrier(2), threading.Event()

    class Overlapping(nn.Module):
        def forward(self, amount, wait):
            both_began.wait()
            self.st = self.st + amount
            if wait:
                first_ended.wait()
            return amount

    module = Overlapping()
    module.st = torch.zeros(1)
    monitor = watch(module)
    replica = module._replicate_for_data_parallel()
    replica.st = torch.full((1,), 100.0)
    slow = threading.Thread(target=module, args=(1.0, True))
    slow.start()
    replica(10.0, False)
    first_ended.set()
    slow.join()
    assert seen(monitor) == [10, 1]
    assert monitor._calls == {}


def test_nothing_of_a_pass_is_kept(writing):
    monitor = watch(writing)
    writing(1.0)
    assert monitor._calls == {}


def test_value_is_copied_only_for_passes_that_are_recorded(writing):
    class Counted(torch.Tensor):
        clones = 0

        def clone(self, **kwargs):
            Counted.clones += 1
            return super().clone(**kwargs)

    writing.st = torch.zeros(1).as_subclass(Counted)
    monitor = watch(writing, eval_update=False, map_=lambda after, before: (after.as_subclass(torch.Tensor),))
    writing.eval()(1.0)
    assert Counted.clones == 0
    writing.train()(1.0)
    assert Counted.clones == 1
    assert seen(monitor) == [2]


def test_graph_is_kept_only_when_asked_for():
    class Scale(nn.Linear):
        def forward(self, x):
            self.out = super().forward(x)
            return self.out

    for differentiable in (False, True):
        module = Scale(2, 1)
        module.out = None
        reducer = CAReducer(1.0, differentiable=differentiable)
        monitor = DifferenceMonitor(reducer, "out", module)
        module(torch.ones(1, 2))
        assert monitor.latest.requires_grad == differentiable
        if differentiable:
            monitor.latest.sum().backward()
            assert module.weight.grad.tolist() == [[1, 1]]


def test_gradients_flow_through_both_sides_of_a_difference():
    class Adding(nn.Linear):
        def forward(self, x):
            self.st = self.st + x * self.weight.sum()

    module = Adding(1, 1)
    module.st = 10 * module.weight.sum()
    monitor = DifferenceMonitor(PassthroughReducer(1.0, differentiable=True), "st", module)
    module(3.0)
    monitor.latest.backward()
    assert module.weight.grad.tolist() == [[3]]


def test_pass_without_gradients_has_none_in_a_record_that_keeps_graphs(layer):
    monitor = DifferenceMonitor(
        PassthroughReducer(1.0, differentiable=True), "weight", layer, map_=lambda after, before: (after * 2 - before,)
    )
    with torch.no_grad():
        layer(torch.ones(1, 2))
    assert not monitor.latest.requires_grad


def test_monitor_that_is_taken_off_in_the_middle_of_a_pass_keeps_nothing_of_it(rebinding):
    monitor = watch(rebinding)
    handle = rebinding.register_forward_pre_hook(lambda *_: monitor.deregister())
    rebinding(1.0)
    assert monitor._calls == {}
    handle.remove()
    monitor.register()
    rebinding(2.0)
    assert seen(monitor) == [2]


@pytest.mark.parametrize("kind", [namedtuple("Pair", "keys values"), lambda *parts: list(parts), lambda *parts: parts])
def test_value_before_the_pass_has_the_type_of_the_value(kind):
    class Cache(nn.Module):
        def forward(self, x):
            for part in self.st:
                part.add_(x)

    module, types = Cache(), []
    module.st = kind(torch.zeros(1), torch.ones(1))

    def compare(after, before):
        types.append((type(after), type(before)))
        return after[1] - before[1]

    monitor = watch(module, map_=compare)
    module(3.0)
    assert seen(monitor) == [3]
    assert types[0][0] is types[0][1]


def test_changes_between_passes_are_not_seen():
    layer = nn.Linear(2, 2)
    monitor = watch(layer, "weight")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert monitor.dump().abs().sum() == 0


def test_tensors_in_lists_and_dictionaries_are_copied_too():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.st = {"keys": [torch.zeros(1)]}

        def forward(self, x):
            self.st["keys"][0].add_(x)

    module = Cache()
    monitor = watch(module, map_=lambda after, before: after["keys"][0] - before["keys"][0])
    module(3.0)
    assert seen(monitor) == [3]
