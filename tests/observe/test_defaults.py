"""Numbers do not depend on the default device and dtype of the program."""

from functools import partial

import pytest
import torch
from torch import nn

from monitorch.observe import DifferenceMonitor, EMAReducer, Module, PassthroughReducer, RecordTensor
from tests.defaults import default_dtype

SAMPLES = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.3, 0.7], [1.0, 0.0], [0.2, 2.0]])


@pytest.fixture(
    params=[
        partial(torch.device, "meta"),
        partial(default_dtype, torch.float64),
        partial(default_dtype, torch.bfloat16),
    ],
    ids=["device", "float64", "bfloat16"],
)
def defaults(request):
    return request.param


def equal(first, second):
    return first.dtype == second.dtype and first.device == second.device and torch.equal(first, second)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_reducers(build_reducer, defaults, dtype, inplace):
    def used():
        reducer = build_reducer(duration=3.0, inplace=inplace)
        for sample in SAMPLES.to(dtype):
            reducer(sample)
        reducer.duration = 4.0
        yield from (reducer.dump(), reducer.latest, reducer.view(1.0), reducer.view(0.4), reducer.data)
        fresh = build_reducer(duration=2.0)
        fresh.load_state_dict(reducer.state_dict())
        fresh(SAMPLES[0].to(dtype))
        yield fresh.dump()
        reducer.clear(keepshape=True)
        yield reducer(SAMPLES[0].to(dtype))
        reducer.clear()
        yield reducer(SAMPLES[1].to(dtype))

    expected = list(used())
    with defaults():
        found = list(used())
    assert all(map(equal, found, expected))


def test_numbers_as_samples(build_reducer, defaults):
    expected, reducer = build_reducer(), None
    with defaults():
        reducer = build_reducer()
        for value in (0, 0.7, 1.0):
            reducer(value)
    for value in (0, 0.7, 1.0):
        expected(value)
    assert equal(reducer.latest, expected.latest)


def test_monitors(build_monitor, defaults):
    def used(layer):
        monitor = build_monitor(EMAReducer(1.0, 0.5, 2.0), layer)
        for sample in SAMPLES:
            layer(sample)
        return monitor.dump()

    torch.manual_seed(0)
    expected = used(nn.Linear(2, 2))
    torch.manual_seed(0)
    layer = nn.Linear(2, 2)
    with defaults():
        assert equal(used(layer), expected)


def test_differences_where_one_side_is_no_tensor(new_setting, defaults):
    for states in ((None, 1.5), (2, None), (1, 2.5), (None, torch.ones(2))):
        module = new_setting(states[0])
        with defaults():
            monitor = DifferenceMonitor(PassthroughReducer(1.0), "st", module)
            module(states[1])
        after, before = (0 if state is None else state for state in states[::-1])
        assert monitor.latest.device.type == "cpu"
        assert monitor.latest.tolist() == (torch.as_tensor(after) - before).tolist()


def test_records(defaults):
    def used():
        record = RecordTensor(owner := Module(), "x", 1.0, 3.0, None)
        for sample in SAMPLES:
            record.push(sample)
        record.insert(SAMPLES[0], 1.3, offset=1)
        record.writerange(SAMPLES[:2].mT.clone(), 1)
        yield from (record.readrange(3), record.readrange(2, offsets), record.select(0.3), record.select(times))
        record.initialize((2,), "cpu", torch.float32)
        yield record.value
        yield owner._x_data

    offsets, times = torch.tensor([1, 2]), torch.tensor([0.3, 1.7])
    expected = list(used())
    with defaults():
        assert all(map(equal, used(), expected))
