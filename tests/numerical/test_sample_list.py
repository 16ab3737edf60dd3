import copy
import json
import math
import operator
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monitorch.numerical.series import SampleList

finite = st.floats(allow_nan=False, allow_infinity=False)


def waiting(*samples):
    """A list whose samples are all still tensors."""
    result = SampleList()
    for sample in samples:
        result.append(torch.tensor(sample, dtype=torch.float64))
    return result


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.floats(), st.booleans()), max_size=30))
def test_order_and_values_are_kept_whatever_comes(samples):
    kept = SampleList()
    for sample, as_tensor in samples:
        kept.append(torch.tensor(sample, dtype=torch.float64) if as_tensor else sample)
    np.testing.assert_array_equal(np.asarray(kept), np.array([sample for sample, _ in samples], dtype=np.float64))


@settings(deadline=None, max_examples=50)
@given(st.lists(finite), st.lists(finite), st.lists(finite))
def test_merge_is_concatenation(a, b, c):
    left, right = waiting(*a), waiting(*b)
    left.merge(waiting(*b))
    left.merge(c)
    right.merge(c)
    outer = waiting(*a)
    outer.merge(right)
    assert left == outer == a + b + c


READS = {
    "len": (len, 3),
    "bool": (bool, True),
    "list": (list, [3.0, 1.0, 2.0]),
    "unpacking": (lambda x: [*x], [3.0, 1.0, 2.0]),
    "index": (lambda x: x[1], 1.0),
    "slice": (lambda x: x[:2], [3.0, 1.0]),
    "in": (lambda x: 1.0 in x, True),
    "reversed": (lambda x: list(reversed(x)), [2.0, 1.0, 3.0]),
    "sorted": (sorted, [1.0, 2.0, 3.0]),
    "max": (max, 3.0),
    "sum": (math.fsum, 6.0),
    "equal": (lambda x: x == [3.0, 1.0, 2.0], True),
    "equal, from the right": (partial(operator.eq, [3.0, 1.0, 2.0]), True),
    "not equal": (lambda x: x != [3.0, 1.0, 2.0], False),
    "equal to another": (lambda x: x == waiting(3.0, 1.0, 2.0), True),
    "equal to no list": (lambda x: x == (3.0, 1.0, 2.0), False),
    "less": (lambda x: x < [3.0, 1.0], False),
    "plus": (lambda x: operator.add(x, [4.0]), [3.0, 1.0, 2.0, 4.0]),
    "plus, from the right": (partial(operator.add, [4.0]), [4.0, 3.0, 1.0, 2.0]),
    "times": (lambda x: x * 2, [3.0, 1.0, 2.0, 3.0, 1.0, 2.0]),
    "count": (lambda x: x.count(2.0), 1),
    "position": (lambda x: x.index(2.0), 2),
    "copy": (lambda x: x.copy(), [3.0, 1.0, 2.0]),
    "pop": (lambda x: x.pop(), 2.0),
    "repr": (repr, "[3.0, 1.0, 2.0]"),
    "json": (json.dumps, "[3.0, 1.0, 2.0]"),
    "numpy": (lambda x: np.asarray(x).tolist(), [3.0, 1.0, 2.0]),
    "numpy, float32": (lambda x: np.asarray(x, dtype=np.float32).dtype, np.float32),
    "tensor": (lambda x: torch.tensor(x).tolist(), [3.0, 1.0, 2.0]),
}
CHANGES = {
    "append": (lambda x: x.append(4), [3.0, 1.0, 2.0, 4.0]),
    "extend": (lambda x: x.extend([4.0]), [3.0, 1.0, 2.0, 4.0]),
    "insert": (lambda x: x.insert(0, 4.0), [4.0, 3.0, 1.0, 2.0]),
    "remove": (lambda x: x.remove(1.0), [3.0, 2.0]),
    "sort": (lambda x: x.sort(), [1.0, 2.0, 3.0]),
    "reverse": (lambda x: x.reverse(), [2.0, 1.0, 3.0]),
    "clear": (lambda x: x.clear(), []),
    "set": (lambda x: x.__setitem__(0, 7.0), [7.0, 1.0, 2.0]),
    "delete": (lambda x: x.__delitem__(0), [1.0, 2.0]),
    "merge with itself": (lambda x: x.merge(x), [3.0, 1.0, 2.0, 3.0, 1.0, 2.0]),
}


@pytest.mark.parametrize(("read", "expected"), READS.values(), ids=READS)
def test_every_way_of_reading_sees_what_was_waiting(read, expected):
    assert read(waiting(3.0, 1.0, 2.0)) == expected


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_every_change_comes_after_what_was_waiting(change, expected):
    samples = waiting(3.0, 1.0, 2.0)
    change(samples)
    assert samples == expected


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_hold_what_was_still_waiting(clone):
    original = waiting(1.0, 2.0)
    cloned = clone(original)
    original.append(9.0)
    cloned.append(torch.tensor(3.0))
    assert type(cloned) is SampleList
    assert cloned == [1.0, 2.0, 3.0]


def test_samples_are_floats():
    samples = SampleList([1, np.float32(2)])
    samples.append(torch.tensor(3))
    samples.append(True)
    assert [type(sample) for sample in samples] == [float] * 4


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (torch.zeros(2), ValueError, r"shape \(2,\)"),
        (torch.zeros(0), ValueError, r"shape \(0,\)"),
        ("x", ValueError, "x"),
    ],
)
def test_a_sample_is_one_number(bad, error, text):
    samples = waiting(1.0)
    with pytest.raises(error, match=text):
        samples.append(bad)
    assert samples == [1.0]
