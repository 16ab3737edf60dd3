"""Samples by step and place, against plain dictionaries; what is forgotten, and what is stored."""

import json
from collections import defaultdict
from statistics import fmean

import numpy as np
import pytest

from monitorch.diagnosis import RunFacts, SampleHistory
from monitorch.diagnosis.history import (
    FIRST_KEPT,
    LOSS,
    MOST_KEPT,
    TRAINING,
    VALIDATION,
    Parameter,
    Samples,
    Table,
)
from monitorch.store.samples import SampleArrays, pack, unpack


def some_parts(seed, special=()):
    """Samples in parts as ticks bring them, in any order, several at one step; places count other names each time."""
    stream = np.random.default_rng(seed)
    for _ in range(8):
        names = [f"layer{number}" for number in stream.permutation(6)[: stream.integers(1, 6)]]
        count = int(stream.integers(0, 30))
        values = stream.normal(size=count)
        values[stream.random(count) < 0.2] = stream.choice(special) if len(special) else 0.0
        yield names, stream.integers(0, len(names), count), stream.integers(1, 12, count), values


@pytest.mark.parametrize(
    ("how", "fold"), [({}, fmean), ({"largest": True}, max), ({"smallest": True}, min)], ids=["mean", "max", "min"]
)
@pytest.mark.parametrize("seed", range(5))
def test_table_is_that_of_a_dictionary(seed, how, fold):
    samples, known = Samples(), defaultdict(list)
    for names, places, steps, values in some_parts(seed):
        samples.add(names, places, steps, values)
        for place, step, value in zip(places, steps, values, strict=True):
            known[int(step), names[place]].append(float(value))
    table = samples.table(**how)
    assert table.steps.tolist() == sorted({step for step, _ in known})
    assert set(table.places) == {place for _, place in known}
    for row, step in enumerate(table.steps.tolist()):
        for place in table.places:
            found = table.column(place)[row]
            if (step, place) in known:
                assert found == pytest.approx(fold(known[step, place]), abs=1e-12)
            else:
                assert np.isnan(found)


@pytest.mark.parametrize("how", [{}, {"largest": True}, {"smallest": True}])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_nan_and_keeps_its_step(value, how):
    samples = Samples()
    samples.add(["a"], np.array([0, 0, 0]), np.array([1, 2, 3]), np.array([1.0, value, 3.0]))
    table = samples.table(**how)
    assert table.steps.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(table.column("a"), [1.0, np.nan, 3.0])


def test_nothing_is_an_empty_table():
    history = SampleHistory()
    history.add("signal", [], np.zeros(0, int), np.zeros(0, int), np.zeros(0))
    for signal in ("signal", "never seen"):
        table = history.table(signal)
        assert not table
        assert (table.steps.size, table.places) == (0, ())
    assert not history.loss()
    assert history.step == 0


def test_columns_can_be_chosen_and_rows_found():
    table = Table(np.array([2, 5, 9]), ("a", "b"), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    chosen = table.select(["b", "c", "a"])
    assert chosen.places == ("b", "a")
    np.testing.assert_array_equal(chosen.values, [[2, 1], [4, 3], [6, 5]])
    np.testing.assert_array_equal(table.at_steps(np.array([9, 1, 5, 99])), [[5, 6], [np.nan] * 2, [3, 4], [np.nan] * 2])
    assert not table.select(["c"])


def test_no_rows_are_found_in_an_empty_table():
    found = Samples().table().at_steps(np.array([1, 2]))
    assert found.shape == (2, 0)


@pytest.mark.parametrize("at_once", [3, 40, 500, 5000])
def test_thinning_keeps_the_first_and_the_newest(at_once):
    samples, last = Samples(), 5000
    for first in range(1, last + 1, at_once):
        steps = np.arange(first, min(first + at_once, last + 1))
        samples.add(["a", "b"], np.tile([0, 1], len(steps)), np.repeat(steps, 2), np.repeat(steps, 2).astype(float))
    table = samples.table()
    assert FIRST_KEPT < len(table.steps) <= MOST_KEPT
    assert table.steps[:FIRST_KEPT].tolist() == list(range(1, FIRST_KEPT + 1))
    newest = MOST_KEPT // 4
    assert table.steps[-newest:].tolist() == list(range(last - newest + 1, last + 1))
    np.testing.assert_array_equal(table.column("a"), table.steps)
    np.testing.assert_array_equal(table.column("b"), table.steps)


def test_losses_of_every_step_are_kept():
    history = SampleHistory()
    for first in range(0, 20_000, 1000):
        steps = np.arange(first, first + 1000)
        history.add(LOSS, [TRAINING], np.zeros(1000, int), steps, np.cos(steps))
    losses = history.loss()
    np.testing.assert_array_equal(losses.steps, np.arange(20_000))
    np.testing.assert_array_equal(losses.values, np.cos(np.arange(20_000)))


def test_kinds_of_losses_are_apart_and_of_several_at_one_step_there_is_the_mean():
    history = SampleHistory()
    history.add(LOSS, [TRAINING], np.zeros(4, int), np.array([1, 2, 2, 3]), np.array([4.0, 1.0, 2.0, np.nan]))
    history.add(LOSS, [VALIDATION], np.zeros(2, int), np.array([2, 9]), np.array([7.0, np.inf]))
    training, validation = history.loss(), history.loss(VALIDATION)
    assert training.steps.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(training.values, [4.0, 1.5, np.nan])
    assert validation.steps.tolist() == [2, 9]
    np.testing.assert_array_equal(validation.values, [7.0, np.nan])
    assert history.step == 9


def stored(samples, disk):
    """What a disk has after these new samples."""
    new = samples.take_new()
    if new is None:
        return False
    if new.replaces:
        disk["parts"].clear()
    disk["names"][new.first :] = new.names
    disk["parts"].append(unpack(pack(new.samples)))
    return True


def check_disk(samples, disk):
    again = Samples(most=10**9)
    for part in disk["parts"]:
        again.add(disk["names"], part.places, part.steps, part.values)
    live, found = samples.table(), again.table()
    np.testing.assert_array_equal(found.steps, live.steps)
    np.testing.assert_allclose(found.select(live.places).values, live.values, rtol=1e-6)


@pytest.mark.parametrize("most", [200, MOST_KEPT], ids=["thinned", "whole"])
def test_what_is_taken_bit_by_bit_is_what_there_is(most):
    samples, disk, steps = Samples(most), {"names": [], "parts": []}, 0
    assert not stored(samples, disk)
    stream = np.random.default_rng(0)
    for tick in range(60):
        names = [f"layer{number}" for number in range(1 + tick // 10)]
        places = np.repeat(np.arange(len(names)), 5)
        samples.add(names, places, np.tile(np.arange(steps, steps + 5), len(names)), stream.normal(size=len(places)))
        steps += 5
        if tick % 3 == 0:
            assert stored(samples, disk)
            check_disk(samples, disk)
    stored(samples, disk)
    assert not stored(samples, disk)
    check_disk(samples, disk)


def test_packed_samples_keep_their_order_and_what_is_not_finite():
    known = SampleArrays(
        np.array([9, 2, 2**40, 0]), np.array([0, 3, 2**31, 1]), np.array([np.nan, np.inf, 1e300, -1e-3])
    )
    found = unpack(pack(known))
    assert found.steps.tolist() == known.steps.tolist()
    assert found.places.tolist() == known.places.tolist()
    np.testing.assert_array_equal(found.values, np.array([np.nan, np.inf, np.inf, np.float32(-1e-3)], float))
    assert len(unpack(pack(SampleArrays(*(part[:0] for part in known)))).steps) == 0


def test_facts_survive_json():
    facts = RunFacts(
        layers={"fc": "Linear", "": ""},
        parameters={
            "fc.weight": Parameter("fc", (3, 4), "float16", trainable=False),
            "scale": Parameter("", (), "float32", optimized=False),
        },
        loss_fn="CrossEntropyLoss",
        classes=3,
        target_counts=[4, 0, 1],
        batch=12.5,
        loss_scale=True,
        optimizers=2,
        since=40,
        origin={"step": 7, "what": "input", "between": ["a", "b"]},
    )
    again = RunFacts.from_json(json.loads(json.dumps(facts.to_json(), allow_nan=False)))
    assert again == facts
    assert again.parameters["fc.weight"].is_weight
    assert not again.parameters["scale"].is_weight


def test_facts_of_other_releases_are_read_as_far_as_they_are_known():
    assert RunFacts.from_json({}) == RunFacts()
    assert RunFacts.from_json({"classes": 3, "of a later release": 1}) == RunFacts(classes=3)
