import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monitorch.numerical import RunningMeanVar

huge = st.floats(-1e300, 1e300)
anything = huge | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 5e-324, -5e-324])
streams = st.lists(anything, max_size=20)
bounded = settings(deadline=None, max_examples=100)


def folded(samples):
    accumulator = RunningMeanVar()
    for sample in samples:
        accumulator.update(sample)
    return accumulator


@bounded
@given(streams)
def test_moments_of_any_stream(assert_moments, samples):
    assert_moments(folded(samples), samples)


@bounded
@given(st.lists(streams, max_size=5))
def test_merging_parts_equals_folding_them_in_one_go(assert_moments, parts):
    merged = RunningMeanVar()
    for part in parts:
        merged.merge(folded(part))
    assert_moments(merged, [sample for part in parts for sample in part])


@bounded
@given(streams, streams, streams)
def test_merge_is_associative_and_commutative(assert_moments, a, b, c):
    left, right, swapped = folded(a), folded(b), folded(c)
    left.merge(folded(b))
    left.merge(folded(c))
    right.merge(folded(c))
    right.merge(folded(a))
    swapped.merge(folded(a))
    swapped.merge(folded(b))
    for accumulator in (left, right, swapped):
        assert_moments(accumulator, a + b + c)


@bounded
@given(st.lists(anything, max_size=30), st.integers(0, 2**30))
def test_tensors_and_numbers_mix(assert_moments, samples, choice):
    mixed = [torch.tensor(x, dtype=torch.float64) if choice >> i & 1 else x for i, x in enumerate(samples)]
    assert_moments(folded(mixed), samples)


def test_variance_survives_a_large_offset():
    noise = np.random.default_rng(0).standard_normal(2000)
    accumulator = folded(torch.from_numpy(noise + 1e8))
    assert accumulator.var == pytest.approx(np.var(noise), rel=1e-6)


def test_an_infinite_variance_is_not_nan():
    accumulator = folded([1e300, -1e300, 1e300])
    assert accumulator.var == math.inf
    assert accumulator.mean == pytest.approx(1e300 / 3)
    assert (accumulator.min_, accumulator.max_) == (-1e300, 1e300)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_samples_are_counted_and_poison_nothing(bad):
    accumulator = folded([1.0, bad, torch.tensor(bad), 3.0])
    assert accumulator.state() == (2, 2.0, 1.0, 1.0, 3.0, 2)


def test_empty_one_is_falsy_and_neutral():
    empty = RunningMeanVar()
    assert not empty
    assert empty.state() == (0, 0, 0, math.inf, -math.inf, 0)
    one = folded([4.0])
    one.merge(empty)
    assert one == folded([4.0])
    empty.merge(one)
    assert empty == one


def test_append_is_update():
    accumulator = RunningMeanVar()
    accumulator.append(1)
    accumulator.update(np.float32(2.0))
    accumulator.append(torch.tensor([[3.0]], requires_grad=True))
    assert (accumulator.mean, accumulator.count, len(accumulator)) == (2.0, 3, 3)


def test_fields_can_be_given_and_set():
    accumulator = RunningMeanVar(2, 1.5, 0.25, 1.0, 2.0)
    assert accumulator == folded([1.0, 2.0])
    accumulator.append(torch.tensor(9.0))
    accumulator.mean = 7.0
    assert (accumulator.count, accumulator.mean, accumulator.max_) == (3, 7.0, 9.0)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda acc: pickle.loads(pickle.dumps(acc))])
def test_copies_hold_what_was_still_waiting(clone):
    original = folded([torch.tensor(1.0), torch.tensor(5.0), math.nan])
    cloned = clone(original)
    original.update(100.0)
    assert cloned.state() == (2, 3.0, 4.0, 1.0, 5.0, 1)
    cloned.update(torch.tensor(3.0))
    assert cloned.mean == 3.0


def test_repr_names_every_field():
    expected = "RunningMeanVar(count=2, mean=2.0, var=1.0, min_=1.0, max_=3.0, nonfinite=1)"
    assert repr(folded([torch.tensor(1.0), 3.0, math.inf])) == expected


def test_equality_compares_all_samples():
    assert folded([1.0, 2.0]) == folded([torch.tensor(1.0), torch.tensor(2.0)])
    assert folded([1.0]) != folded([1.0, math.nan])
    assert folded([1.0]) != [1.0]
    with pytest.raises(TypeError, match="unhashable"):
        hash(RunningMeanVar())


def test_iterating_names_the_cure():
    with pytest.raises(TypeError, match="inplace=False"):
        iter(RunningMeanVar())


@pytest.mark.parametrize(
    ("sample", "error", "why"),
    [
        (torch.zeros(2, 3), ValueError, r"one number, not a tensor of shape \(2, 3\)"),
        (torch.zeros(0), ValueError, r"one number, not a tensor of shape \(0,\)"),
        (torch.tensor(1 + 2j), TypeError, "one real number, not a complex one"),
        ("many", ValueError, "could not convert string"),
    ],
    ids=["many", "none", "complex", "text"],
)
def test_a_sample_is_one_real_number(sample, error, why):
    accumulator = RunningMeanVar()
    with pytest.raises(error, match=why):
        accumulator.update(sample)
    assert accumulator == RunningMeanVar()
