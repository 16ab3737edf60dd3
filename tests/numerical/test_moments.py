import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monitorch.numerical import RunningMeanVar, moments

samples = st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf, 5e-324])
bounded = settings(deadline=None, max_examples=100)


def rows(values):
    return moments.of_samples(torch.tensor(values, dtype=torch.float64))


@bounded
@given(st.lists(samples, min_size=1, max_size=30))
def test_merged_rows_are_the_moments_of_the_samples(assert_moments, values):
    assert_moments(RunningMeanVar.of_row(*moments.merge(rows(values)).tolist()), values)


@bounded
@given(st.lists(st.lists(samples, min_size=1, max_size=10), min_size=1, max_size=5), st.randoms())
def test_merging_in_parts_and_in_any_order(assert_moments, parts, random):
    merged = [moments.merge(rows(part)) for part in parts]
    random.shuffle(merged)
    whole = moments.merge(torch.stack(merged)).tolist()
    assert_moments(RunningMeanVar.of_row(*whole), [value for part in parts for value in part])


def test_a_row_of_one_sample():
    expected = [[1, 2.0, 0, 2.0, 2.0, 0], [0, 0, 0, math.inf, -math.inf, 1]]
    assert rows([2.0, math.nan]).tolist() == expected


def test_only_nonfinite_samples_have_no_mean():
    assert moments.merge(rows([math.nan, math.inf])).tolist() == [0, 0, 0, math.inf, -math.inf, 2]
