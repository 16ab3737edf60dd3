"""What reducers and monitors make of a few samples: numbers worked out elsewhere, newest first."""

import math

import pytest
import torch

from monitorch.observe import (
    CAReducer,
    ConditionalCumulativeTraceReducer,
    ConditionalNearestTraceReducer,
    CumulativeTraceReducer,
    DifferenceMonitor,
    EMAReducer,
    EventReducer,
    NearestTraceReducer,
    PassthroughReducer,
    ScaledCumulativeTraceReducer,
    ScaledNearestTraceReducer,
)

inf, nan = math.inf, math.nan
SPIKES = (0, 1, 1, 0, 0.95)
GATED = ((1, False), (2, True), (3, False), (4, True))


def positive(x):
    return x > 0


def traced(kind, *args, duration=5.0):
    return lambda: kind(1.0, 10.0, *args, duration=duration)


DUMPS = {
    "passthrough": (lambda: PassthroughReducer(1.0, 4.0), (1, 2, 3, 4), (4, 3, 2, 1)),
    "passthrough, one slot": (lambda: PassthroughReducer(1.0), (1, 2, 3, 4), (4,)),
    "EMA": (lambda: EMAReducer(1.0, 0.25, 3.0), (2, 4, 9), (4.125, 2.5, 2.0)),
    "CA": (lambda: CAReducer(1.0, 3.0), (2, 4, 9), (5, 3, 2)),
    "event": (lambda: EventReducer(1.0, positive, duration=5.0), (1, 0, 0, 1, 0), (1, 0, 2, 1, 0)),
    "event, inf": (lambda: EventReducer(0.5, positive, "inf", 2.0), (0, 0, 1, 0), (0.5, 0, inf, inf)),
    "event, zero": (lambda: EventReducer(0.5, positive, "Zero", 2.0), (0, 0, 1, 0), (0.5, 0, 0.5, 0)),
    "event, nan": (lambda: EventReducer(0.5, positive, "NaN", 2.0), (0, 0, 1, 0), (0.5, 0, nan, nan)),
    "nearest": (traced(NearestTraceReducer, 2, 1), SPIKES, (1.6375, 1.8097, 2, 2, 0)),
    "nearest, tolerant": (traced(NearestTraceReducer, 2, 1, 0.1), SPIKES, (2, 1.8097, 2, 2, 0)),
    "cumulative": (traced(CumulativeTraceReducer, 2, 1), SPIKES, (3.1191, 3.4471, 3.8097, 2, 0)),
    "scaled nearest": (
        traced(ScaledNearestTraceReducer, 2, 3, lambda x: x > 0.5),
        SPIKES,
        (4.85, 4.5242, 5, 5, 0),
    ),
    "scaled cumulative": (
        traced(ScaledCumulativeTraceReducer, 2, 3, lambda x: x > 0.5),
        SPIKES,
        (12.6477, 8.6178, 9.5242, 5, 0),
    ),
    "conditional nearest": (
        traced(ConditionalNearestTraceReducer, 2, 3, duration=4.0),
        GATED,
        (14, 7.2387, 8, 0),
    ),
    "conditional cumulative": (
        traced(ConditionalCumulativeTraceReducer, 2, 3, duration=4.0),
        GATED,
        (20.5498, 7.2387, 8, 0),
    ),
}
VIEWS = {
    "passthrough": (
        lambda: PassthroughReducer(1.0, 4.0),
        (1, 2, 3, 4),
        {0: 4, 1: 3, 0.25: 3, 0.5: 3, 0.75: 3, 2.9: 1, 3: 1},
    ),
    "passthrough, inclusive": (lambda: PassthroughReducer(1.0, 4.0, inclusive=True), (0, 1, 2, 3, 4), {4.0: 0}),
    "EMA": (
        lambda: EMAReducer(1.0, 1, duration=4.0),
        (1, 2, 3, 4),
        {0.25: 3.75, 0.5: 3.5, 0.75: 3.25, 2.9: 1.1},
    ),
    "event": (
        lambda: EventReducer(1.0, positive, duration=5.0),
        (1, 0, 0, 1, 0),
        {0.25: 0.75, 0.75: 0.25, 1.25: 2.75, 1.75: 2.25, 3.5: 0.5},
    ),
    "nearest": (
        traced(NearestTraceReducer, 1, 1, duration=3.0),
        (1, 0, 0),
        {0.25: math.exp(-0.175), 0.75: 0.8825, 1.5: 0.95123},
    ),
}


def feed(reducer, samples):
    for sample in samples:
        parts = sample if isinstance(sample, tuple) else (sample,)
        reducer(*(torch.tensor([float(p)]) if not isinstance(p, bool) else torch.tensor([p]) for p in parts))
    return reducer


@pytest.mark.parametrize("inplace", [False, True], ids=["copy", "inplace"])
@pytest.mark.parametrize("case", DUMPS)
def test_dump(case, inplace):
    build, samples, expected = DUMPS[case]
    reducer = build()
    reducer.inplace = inplace
    assert reducer.dump() is None
    assert feed(reducer, samples).dump()[:, 0].tolist() == pytest.approx(expected, rel=5e-5, nan_ok=True)
    assert reducer.latest.tolist() == reducer.peek().tolist() == reducer.dump()[0].tolist()
    assert reducer.count == len(samples)


@pytest.mark.parametrize("case", VIEWS)
def test_view(case):
    build, samples, expected = VIEWS[case]
    reducer = build()
    assert reducer.view(1e9) is None
    feed(reducer, samples)
    for time, value in expected.items():
        assert reducer.view(time).item() == pytest.approx(value, rel=1e-4), time


def test_view_beyond_the_record_is_refused():
    reducer = feed(PassthroughReducer(1.0, 4.0), (1, 2, 3, 4))
    with pytest.raises(ValueError, match="between 0 and 3 before now"):
        reducer.view(4.0)


def test_difference_of_a_state(rebinding):
    monitor = DifferenceMonitor(PassthroughReducer(1.0, 4.0), "st", rebinding)
    for x in (1.0, 2.0, 3.0):
        rebinding(x)
    assert monitor.dump()[:, 0].tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("partially", [False, True])
def test_difference_by_an_operation_of_ones_own(rebinding, partially):
    def op(after, before):
        return 10 * after + before

    if partially:
        monitor = DifferenceMonitor.partialconstructor(PassthroughReducer(1.0), op_=op)("st", rebinding)
    else:
        monitor = DifferenceMonitor(PassthroughReducer(1.0), "st", rebinding, op_=op)
    for _ in range(2):
        rebinding(1.0)
    assert monitor.latest.tolist() == [21]
