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

from monitorch.numerical import RunningMeanVar, RunningValue
from monitorch.numerical.series import SampleList, Series, SeriesColumn, sample_list

finite = st.floats(allow_nan=False, allow_infinity=False)


def waiting(*samples):
    """A list whose samples are all still tensors."""
    result = sample_list()
    for sample in samples:
        result.append(torch.tensor(sample, dtype=torch.float64))
    return result


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.floats(), st.booleans()), max_size=30))
def test_order_and_values_are_kept_whatever_comes(samples):
    kept = sample_list()
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
    samples = sample_list([1, np.float32(2)])
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


def test_running_value_is_a_plain_pair():
    assert RunningValue() == RunningValue(count=0, value=None)
    assert RunningValue(2, "x").value == "x"


@pytest.mark.parametrize(("inplace", "kind"), [(True, RunningMeanVar), (False, SampleList)])
def test_inplace_decides_the_kind_unless_a_key_asks_otherwise(inplace, kind):
    series = Series(inplace)
    series.add("usual", 1.0)
    series.add("other", 2.0, inplace=not inplace)
    assert type(series.view("usual")) is kind
    assert type(series.view("other")) is not kind


@pytest.mark.parametrize("inplace", [True, False])
def test_a_view_is_one_object_that_shows_what_comes_later(inplace):
    series = Series(inplace, width=2)
    series.add("layer", 1.0, 10.0)
    first, second = series.view("layer")
    series.add("layer", torch.tensor(3.0), 30.0)
    series.fold(np.array([0, 0]), np.array([5.0, 7.0]))
    assert series.view("layer")[0] is first
    assert series.values()["layer"][1] is second
    assert (len(first), len(second)) == (4, 2)
    assert (first.mean if inplace else sum(first) / 4) == 4.0


def test_what_is_written_to_a_view_is_in_the_columns():
    series = Series()
    series.add("layer", 1.0)
    view = series.view("layer")
    view.mean, view.count = 7.0, 3
    view.update(11.0)
    assert series.moments.count[0] == 3  # a sample waits until somebody reads
    assert view.count == 4
    assert series.moments.mean[0] == 8.0


def test_a_pickled_view_has_only_its_own_numbers():
    series = Series()
    for number in range(1000):
        series.add(f"layer {number}", float(number))
    alone = pickle.dumps(series.view("layer 7"))
    assert len(alone) < 400
    assert pickle.loads(alone) == series.view("layer 7")


@pytest.mark.parametrize("inplace", [True, False])
def test_folding_many_layers_is_folding_each(assert_moments, inplace):
    random = np.random.default_rng(0)
    places, samples = (
        random.integers(0, 40, 3000),
        random.standard_normal(3000) * 10.0 ** random.integers(-300, 300, 3000),
    )
    samples[random.integers(0, 3000, 50)] = np.nan
    series = Series(inplace, places={f"layer {place}": place for place in range(40)})
    for part in np.array_split(np.arange(3000), 7):
        series.fold(places[part], samples[part])
    for place in range(40):
        own, kept = samples[places == place].tolist(), series.view(f"layer {place}")
        if inplace:
            assert_moments(kept, own)
            assert kept.last == pytest.approx(own[-1], nan_ok=True)
        else:
            assert kept == pytest.approx(own, nan_ok=True)


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("width", [1, 2])
def test_adding_to_many_keys_is_adding_to_each(inplace, width, assert_moments):
    numbers = np.random.default_rng(0).standard_normal((2, 3, width)).astype(np.float32)
    at_once, one_by_one = Series(inplace, width), Series(inplace, width)
    for step in numbers:
        at_once.add_all("cab", torch.from_numpy(step).squeeze(-1))
        for key, sample in zip("cab", step, strict=True):
            one_by_one.add(key, *map(float, sample))
    assert list(at_once.values()) == list(one_by_one.values()) == ["c", "a", "b"]
    for place, key in enumerate("cab"):
        views = at_once.view(key) if width > 1 else (at_once.view(key),)
        for column, view in enumerate(views):
            own = numbers[:, place, column].tolist()
            if inplace:
                assert_moments(view, own)
            else:
                assert view == own


def test_a_key_without_samples_is_not_there_but_has_its_place():
    series = Series(places={"silent": 0, "loud": 1})
    series.fold(np.array([1]), np.array([math.nan]))
    assert list(series.values()) == ["loud"]
    assert series.view("loud").nonfinite == 1


def test_renamed_samples_join_those_of_the_new_key():
    series = Series()
    series.add("loss", 1.0)
    series.rename("loss", ("loss", 5))
    series.add("loss", 3.0)
    series.add("other", 9.0)
    assert {key: view.mean for key, view in series.values().items()} == {("loss", 5): 1.0, "loss": 3.0, "other": 9.0}
    series.rename("loss", ("loss", 5))
    series.add("new", 4.0)
    assert {key: view.mean for key, view in series.values().items()} == {("loss", 5): 2.0, "other": 9.0, "new": 4.0}


def test_moments_and_samples_of_one_key_merge_to_moments():
    series = Series(inplace=False)
    series.add("loss", 1.0)
    series.merge({"loss": RunningMeanVar(1, 3.0, 0.0, 3.0, 3.0)})
    assert series.view("loss") == RunningMeanVar(2, 2.0, 1.0, 1.0, 3.0)
    series.merge({"loss": [5.0], "fresh": [7.0]})
    assert (series.view("loss").mean, series.view("fresh")) == (3.0, [7.0])


def test_reading_brings_what_is_still_on_its_way():
    series = Series()
    series.add("layer", 1.0)
    series.before_reading = lambda: series.fold(np.array([0]), np.array([5.0]))
    assert series.view("layer").max_ == 5.0


def test_one_statistic_of_all_layers_is_a_mapping():
    series = Series(width=2)
    series.add("a", 1.0, 2.0)
    series.add("b", 3.0, 4.0)
    column = SeriesColumn(series, {"first": "a", "second": "b"}, 1)
    assert {name: view.mean for name, view in column.items()} == {"first": 2.0, "second": 4.0}


class Log:
    """Keeps what a series logs, by step."""

    def __init__(self):
        self.step, self.samples = 0, []

    def now(self):
        return self.step

    def keep(self, keys, column, places, steps, samples):
        names = [keys[place] for place in places.tolist()]
        self.samples += zip(steps.tolist(), names, [column] * len(names), samples.tolist(), strict=True)


@pytest.mark.parametrize("width", [1, 2])
def test_samples_that_are_made_later_are_logged_at_the_step_that_they_belong_to(width):
    series, log = Series(width=width), Log()
    series.log = log
    noted = []
    for log.step in (3, 7):
        noted.append(series.now())
    log.step = 9
    series.add_all(["a", "b"], torch.arange(2.0 * width).reshape(2, width), noted)
    series.add_all(["c"], torch.ones(1, width))
    series.settle()
    expected = [(3, "a", column, float(column)) for column in range(width)]
    expected += [(7, "b", column, float(width + column)) for column in range(width)]
    expected += [(9, "c", column, 1.0) for column in range(width)]  # the present step, as nobody has said another
    assert sorted(log.samples) == expected


def test_after_a_key_was_renamed_each_sample_is_logged_under_its_own_key():
    series, log = Series(), Log()
    series.log = log
    for log.step in (1, 2):
        series.add("validation", 10.0)
        series.rename("validation", ("validation", 1))  # the second time there is such a key
        series.add("training", float(log.step))
        series.settle()
    named = [(step, key[0] if isinstance(key, tuple) else key, sample) for step, key, _, sample in log.samples]
    assert sorted(named) == [
        (1, "training", 1.0),
        (1, "validation", 10.0),
        (2, "training", 2.0),
        (2, "validation", 10.0),
    ]
