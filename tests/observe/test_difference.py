"""DifferenceMonitor: each promise it makes, and each way in which a forward pass can surprise it."""

from collections import namedtuple

import pytest
import torch
from torch import nn

from monitorch import MonitorchWarning
from monitorch.observe import DifferenceMonitor, PassthroughReducer
from monitorch.observe.difference import subtract


def watch(module, attr="st", slots=8, **options):
    return DifferenceMonitor(PassthroughReducer(1.0, float(slots)), attr, module, **options)


def seen(monitor):
    """All samples, oldest first."""
    dumped = monitor.dump()
    return [] if dumped is None else dumped[: monitor.reducer.count].flip(0).flatten().tolist()


# ---- what it records


def test_difference_is_after_minus_before(rebinding):
    monitor = watch(rebinding)
    for x in (1.0, -2.0):
        rebinding(x)
    assert seen(monitor) == [1, -2]


def test_state_changed_in_place_is_measured(writing):
    monitor = watch(writing)
    for x in (1.0, 2.0):
        writing(x)
    assert seen(monitor) == [1, 2]


def test_batch_norm_statistics_are_measured():
    norm = nn.BatchNorm1d(3, momentum=0.1)
    mean, batches = watch(norm, "running_mean"), watch(norm, "num_batches_tracked")
    inputs = torch.randn(6, 3) + 5
    norm(inputs)
    torch.testing.assert_close(mean.latest, 0.1 * inputs.mean(0))
    assert batches.latest.tolist() == 1
    assert batches.latest.dtype == torch.int64


def test_attribute_may_be_nested_and_the_hook_is_on_the_module():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    monitor = watch(model, "0.num_batches_tracked")
    model[0](torch.randn(3, 2))
    assert monitor.latest is None
    model(torch.randn(3, 2))
    assert monitor.latest.tolist() == 1


def test_left_argument_is_after(rebinding):
    calls = []
    for name in ("filter_", "map_", "op_"):

        def note(after, before, name=name):
            calls.append((name, after.item(), before.item()))
            return after

        monitor = watch(rebinding, **{name: note})
        rebinding(1.0)
        assert monitor.registered
        del monitor
    assert calls == [("filter_", 1, 0), ("map_", 2, 1), ("op_", 3, 2)]


def test_op_is_only_used_without_map(rebinding):
    monitor = watch(rebinding, map_=lambda after, before: (after * 100,), op_=lambda after, before: 1 / 0)
    rebinding(1.0)
    assert seen(monitor) == [100]


def test_filter_decides(rebinding):
    monitor = watch(rebinding, filter_=lambda after, before: after > 2)
    for _ in range(4):
        rebinding(1.0)
    assert seen(monitor) == [1, 1]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((None, torch.tensor([5.0, 6.0])), [5, 6]),
        ((torch.tensor([5.0, 6.0]), None), [-5, -6]),
        ((None, 2.5), [2.5]),
        ((4, None), [-4]),
        ((None, (torch.tensor(1.0),)), [1]),
    ],
    ids=["appears", "vanishes", "number appears", "number vanishes", "tuple appears"],
)
def test_none_on_one_side_counts_as_zeros(new_setting, states, expected):
    module = new_setting(states[0])
    monitor = watch(module)
    module(states[1])
    assert monitor.latest.flatten().tolist() == expected


def test_none_is_zeros_for_op_too(new_setting):
    module = new_setting()
    monitor = watch(module, op_=lambda after, before: 10 * after + before)
    for state in (torch.ones(2), None):
        module(state)
    assert seen(monitor) == [10, 10, 1, 1]


def test_none_on_both_sides_is_rejected(new_setting):
    module = new_setting()
    monitor = watch(module)
    module(None)
    assert monitor.reducer.count == monitor.reducer.skipped == 0


def test_tuples_are_compared_part_by_part(new_setting):
    seen_parts = []

    class Keep(PassthroughReducer):
        def fold(self, first, second, state):
            seen_parts.append((first.item(), second.item()))
            return first

    Pair = namedtuple("Pair", "hidden cell")
    module = new_setting(Pair(torch.tensor(1.0), torch.tensor(2.0)))
    monitor = DifferenceMonitor(Keep(1.0), "st", module)
    module(Pair(torch.tensor(5.0), None))
    assert seen_parts == [(4, -2)]
    assert monitor.reducer.count == 1


@pytest.mark.parametrize(("before", "after", "expected"), [(None, (1.0, 2.0), [1, 2]), ((1.0, 2.0), None, [-1, -2])])
def test_none_counts_as_a_tuple_of_zeros_beside_a_tuple(new_setting, before, after, expected):
    class Both(PassthroughReducer):
        def fold(self, first, second, state):
            return torch.stack((first, second))

    monitor = DifferenceMonitor(Both(1.0), "st", module := new_setting(before))
    module(after)
    assert monitor.latest.tolist() == expected


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ((torch.ones(1), torch.ones(1)), (torch.ones(1),), "2 parts before forward and 1 after"),
        ((None,), (None,), "None before and after"),
        (torch.ones(4, 2), torch.ones(1, 2), r"\(4, 2\) to \(1, 2\)"),
        (torch.ones(2), torch.tensor(1.0), r"\(2,\) to \(\)"),
    ],
    ids=["tuples of unequal length", "part without value", "other batch", "would broadcast"],
)
def test_values_that_cannot_be_compared_are_left_out(new_setting, before, after, reason):
    module = new_setting(before)
    monitor = watch(module)
    with pytest.warns(MonitorchWarning, match=reason):
        module(after)
    assert (monitor.reducer.count, monitor.reducer.skipped) == (0, 1)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (torch.tensor([True, False]), torch.tensor([False, True]), [-1, 1]),
        (torch.tensor([5], dtype=torch.uint8), torch.tensor([4], dtype=torch.uint8), [-1]),
        (torch.tensor([2], dtype=torch.uint64), torch.tensor([1], dtype=torch.uint64), [-1]),
        (1.5, 4.0, [2.5]),
    ],
    ids=["bool", "unsigned", "unsigned, wide", "number"],
)
def test_differences_have_a_sign(new_setting, before, after, expected):
    module = new_setting(before)
    monitor = watch(module)
    module(after)
    assert monitor.latest.flatten().tolist() == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (1.5, 3, 1.5),
        (torch.tensor([1.5]), torch.tensor([3]), 1.5),
        (torch.tensor([True]), torch.tensor([2.5]), 1.5),
        (torch.tensor([2**40]), torch.tensor([2.0**40 + 1], dtype=torch.float64), 1),
        (torch.tensor([1 + 1j], dtype=torch.complex128), torch.tensor([1e200 + 1j], dtype=torch.complex128), 1e200),
        (torch.tensor([6e4], dtype=torch.float16), torch.tensor([-6e4], dtype=torch.float16), -120000),
        (torch.tensor([-1.0], dtype=torch.bfloat16), torch.tensor([256.0], dtype=torch.bfloat16), 257),
        (torch.tensor([1.0]).to(torch.float8_e4m3fn), torch.tensor([3.0]).to(torch.float8_e4m3fn), 2),
        (0.1, 1e300, 1e300),
    ],
    ids=[
        "number becomes whole",
        "becomes whole",
        "bool becomes float",
        "large whole number becomes float64",
        "complex128",
        "half, beyond its range",
        "bfloat16, beyond its digits",
        "float8",
        "large number",
    ],
)
def test_differences_have_all_their_digits(new_setting, before, after, expected):
    module = new_setting(before)
    monitor = watch(module)
    module(after)
    assert monitor.latest.item() == expected


def test_state_that_changes_its_device_is_compared_there():
    found = subtract(torch.ones(2, device="meta"), torch.ones(2))
    assert (found.device.type, found.shape) == ("meta", (2,))


def test_list_needs_a_map(new_setting):
    module = new_setting([torch.ones(1)])
    monitor = watch(module)
    with pytest.raises(TypeError, match="list cannot be subtracted: give the monitor a map_"):
        module([torch.ones(1)])
    assert monitor.latest is None
    monitor = watch(module, map_=lambda after, before: (after[0] - before[0],))
    module([torch.full((1,), 3.0)])
    assert seen(monitor) == [2]


@pytest.mark.parametrize("prepend", [False, True], ids=["after it was made", "before it is made"])
def test_lazy_state_counts_as_none(prepend):
    norm = nn.LazyBatchNorm1d(momentum=1.0)
    monitor = watch(norm, "running_mean", prepend=prepend)
    norm(torch.tensor([[1.0], [3.0]]))
    assert seen(monitor) == [2]


def test_missing_attribute_is_told_at_the_first_pass(rebinding):
    monitor = watch(rebinding, "st.data.spin")
    with pytest.raises(AttributeError, match=r"Rebinding has no 'st\.data\.spin': Tensor has no attribute 'spin'"):
        rebinding(1.0)
    assert monitor.latest is None


@pytest.mark.parametrize(("modes", "expected"), [((True, True), 2), ((True, False), 1), ((False, False), 0)])
def test_modes(rebinding, modes, expected):
    monitor = watch(rebinding, train_update=modes[0], eval_update=modes[1])
    for training in (True, False):
        rebinding.train(training)(1.0)
    assert monitor.reducer.count == expected


def test_prepend(rebinding):
    order = []
    rebinding.register_forward_hook(lambda *_: order.append("other"))
    monitor = watch(rebinding, prepend=True, filter_=lambda *_: order.append("monitor"))
    rebinding(1.0)
    assert order == ["monitor", "other"]
    assert monitor.registered


def test_clear_forgets_samples_and_keeps_watching(rebinding):
    monitor = watch(rebinding)
    rebinding(1.0)
    monitor.clear(keepshape=True)
    assert monitor.latest is None
    rebinding(2.0)
    assert seen(monitor) == [2]
