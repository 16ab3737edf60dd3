"""What folds do with dtypes, devices, times and wrong samples."""

import math

import numpy as np
import pytest
import torch

from monitorch import MonitorchWarning
from monitorch.observe import (
    CAReducer,
    ConditionalCumulativeTraceReducer,
    EMAReducer,
    EventReducer,
    FoldReducer,
    NearestTraceReducer,
    PassthroughReducer,
    ScaledCumulativeTraceReducer,
)

SAMPLES = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.3, 0.7], [1.0, 0.0], [0.2, 2.0]])


def feed(reducer, samples=SAMPLES):
    for sample in samples:
        reducer(sample)
    return reducer


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.complex64, torch.bfloat16, torch.bool, torch.uint8]
)
def test_kept_samples_have_their_own_dtype(dtype):
    sample = torch.tensor([1, 0]).to(dtype)
    reducer = PassthroughReducer(1.0, 2.0)
    reducer(sample)
    assert reducer.latest.dtype == dtype
    assert torch.equal(reducer.latest, sample)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float64, torch.float64),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.int64, torch.float64),
        (torch.int32, torch.float64),
        (torch.int16, torch.float32),
        (torch.uint8, torch.float32),
        (torch.bool, torch.float32),
    ],
)
def test_running_states_do_not_round_away_what_they_add_up(running_reducer, dtype, expected):
    for _ in range(2):
        running_reducer(torch.tensor([1, 0]).to(dtype))
    assert running_reducer.latest.dtype == expected


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (torch.complex32, (1 + 2j, 3 - 4j), torch.complex64),
        (torch.complex128, (1e200 + 2j, 3e200 - 4j), torch.complex128),
        (torch.float8_e4m3fn, (1.0, 3.0), torch.float32),
    ],
)
@pytest.mark.parametrize("build", [lambda: CAReducer(1.0), lambda: EMAReducer(1.0, 0.5)])
def test_averages_of_the_rarer_types(build, dtype, values, expected):
    reducer = build()
    for value in values:
        reducer(torch.tensor([value], dtype=torch.complex128 if isinstance(value, complex) else None).to(dtype))
    assert reducer.latest.dtype == expected
    assert reducer.latest.item() == pytest.approx(sum(values) / 2)


def test_mean_of_large_whole_numbers_is_exact():
    reducer = CAReducer(1.0)
    for value in (2**40 + 1, 2**40 + 3):
        reducer(torch.tensor([value]))
    assert reducer.latest.item() == 2**40 + 2


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1e300, torch.float64),
        (2**24 + 1, torch.int64),
        (True, torch.bool),
        (1e300 + 1j, torch.complex128),
        (np.float32(0.1), torch.float32),
        (np.bool_(True), torch.bool),
    ],
)
def test_numbers_are_kept_exactly(value, dtype):
    reducer = PassthroughReducer(1.0)
    reducer(value)
    assert (reducer.latest.item(), reducer.latest.dtype) == (value, dtype)


def test_sparse_samples_are_kept_dense(build_reducer):
    sparse, dense = build_reducer(duration=3.0), build_reducer(duration=3.0)
    for sample in SAMPLES:
        sparse(sample.to_sparse())
        dense(sample)
    assert torch.equal(sparse.dump(), dense.dump())


def test_nested_tensor_is_refused_with_the_cure():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"not a nested tensor\. Give the monitor a map_"):
        PassthroughReducer(1.0)(nested)


def test_small_weights_move_a_half_precision_average():
    reducer = EMAReducer(1.0, 1e-4)
    for value in (1.0, *[2.0] * 50):
        reducer(torch.tensor(value, dtype=torch.float16))
    assert reducer.latest.item() == pytest.approx(2 - (1 - 1e-4) ** 50, rel=1e-6)


def test_storage_moves_to_the_device_of_the_sample(build_reducer):
    reducer = feed(build_reducer(duration=3.0))
    reducer(SAMPLES[0].to("meta"))
    assert reducer.data.device.type == "meta"
    assert reducer.data.shape == (3, 2)


def test_times_of_a_reducer(build_reducer):
    reducer = build_reducer(duration=2.0)
    reducer.dt = 0.5
    reducer.duration = 0.0
    assert (reducer.dt, reducer.duration, reducer.data_.recordsz) == (0.5, 0.0, 1)
    reducer.duration = 1.5
    assert (reducer.dt, reducer.duration, reducer.data_.recordsz) == (0.5, 1.5, 3)
    feed(reducer)
    expected = reducer.dump()
    reducer.duration = 1.0
    assert torch.equal(reducer.dump(), expected[:2])


def test_growing_an_event_record_fills_in_its_initial_value():
    reducer = feed(EventReducer(1.0, lambda x: x > 0.5, duration=2.0), SAMPLES[:2])
    reducer.duration = 3.0
    assert reducer.dump().tolist() == [[0, 0], [math.inf, 0], [math.inf, math.inf]]


def test_fill_that_is_no_whole_number_stands_beside_whole_numbers():
    class Last(FoldReducer):
        def fold(self, obs, state):
            return obs

        def interpolate(self, prev_data, next_data, sample_at, step_time):
            return prev_data

    for fill, expected in ((math.nan, [7, math.nan]), (0.5, [7, 0.5]), (1j, [7, 1j]), (3, [7, 3])):
        reducer = Last(1.0, 2.0, fill=fill)
        reducer(torch.tensor(7))
        assert reducer.dump().tolist() == pytest.approx(expected, nan_ok=True)
        assert reducer.data.dtype == (torch.int64 if fill == 3 else reducer.data.dtype)


def test_decay_follows_the_step_time():
    reducer = NearestTraceReducer(1.0, 10.0, 2, 1)
    assert reducer.decay == math.exp(-0.1)
    reducer.dt = 2.0
    assert reducer.decay == math.exp(-0.2)


def test_nan_outside_of_events_does_not_come_through():
    nan = torch.tensor([math.nan])
    scaled = ScaledCumulativeTraceReducer(1.0, 10.0, 0, 1, lambda x: x > 0)
    conditional = ConditionalCumulativeTraceReducer(1.0, 10.0, 0, 1)
    for _ in range(2):
        scaled(nan)
        conditional(nan, torch.tensor([False]))
    assert (scaled.latest.item(), conditional.latest.item()) == (0, 0)


def test_failed_sample_leaves_no_trace():
    reducer = CAReducer(1.0)
    reducer(torch.tensor([1.0]))
    with pytest.raises(TypeError, match="not str"):
        reducer("no number")
    with pytest.warns(MonitorchWarning):
        reducer(torch.ones(2))
    reducer(torch.tensor([0.0]))
    assert (reducer.latest.item(), reducer.count) == (0.5, 2)


@pytest.mark.parametrize(("dtype", "expected"), [(torch.complex64, torch.float32), (torch.complex128, torch.float64)])
def test_time_since_an_event_of_complex_samples_is_real(dtype, expected):
    reducer = EventReducer(1.0, lambda x: x.real > 0)
    for value in (1j, 1, 1j):
        reducer(torch.tensor([value, 1j], dtype=dtype))
    assert reducer.latest.dtype == expected
    assert reducer.latest.tolist() == [1, math.inf]


def test_sample_at_the_edge_of_the_tolerance_matches():
    reducer = NearestTraceReducer(1.0, 10.0, 2, 1, tolerance=0.5)
    assert reducer(torch.tensor([0.25, 0.5, 1.5, 1.75])).tolist() == [0, 2, 2, 0]


def test_criterion_must_answer_in_bools():
    with pytest.raises(TypeError, match=r"bool tensor.*not torch.float32"):
        EventReducer(1.0, lambda x: x * 1.0)(torch.ones(1))


def test_a_fold_is_all_that_a_reducer_needs():
    class Largest(FoldReducer):
        def fold(self, obs, state):
            return obs if state is None else torch.maximum(obs, state)

        def interpolate(self, prev_data, next_data, sample_at, step_time):
            return prev_data

    reducer = feed(Largest(1.0, 2.0))
    assert reducer.latest.tolist() == [1, 2]


def test_average_of_complex_numbers():
    reducer = CAReducer(1.0)
    for value in (1 + 2j, 3 - 4j):
        reducer(value)
    assert reducer.latest.item() == 2 - 1j
