"""Ratios and verdicts from made-up times."""

import random

import numpy as np
import pytest

from bench.windows import MANY, Turns, calm, compare, is_true, neighbours, quartiles, whole_run


class Clock:
    """A machine that becomes slower with every window."""

    def __init__(self, drift=0.0, extra=1.0):
        self.windows, self.drift, self.extra = [], drift, extra

    def bare(self, steps):
        return self._window("bare", steps, 1.0)

    def watched(self, steps):
        return self._window("watched", steps, self.extra)

    def _window(self, kind, steps, factor):
        self.windows.append((kind, steps))
        return factor * steps * (1 + self.drift * len(self.windows))


def turns_of(clock, count, steps=10):
    turns = Turns(clock.bare, clock.watched, steps)
    for _ in range(count):
        turns.take()
    return turns


def test_windows_take_turns_with_the_same_number_of_steps():
    clock = Clock()
    turns = turns_of(clock, 3)
    kinds = ["bare", "watched", "bare", "watched", "bare", "watched", "bare"]
    assert clock.windows == [(kind, 10) for kind in kinds]
    assert (len(turns.bare), len(turns.watched), len(turns.around)) == (4, 3, 3)


@pytest.mark.parametrize("drift", [0.0, 0.05, -0.02])
def test_drift_cancels(drift):
    turns = turns_of(Clock(drift, extra=1.25), 8)
    row = compare(turns.around, turns.watched, turns.steps)
    assert row["median"] == pytest.approx(1.25)
    assert row["mean"] == pytest.approx(1.25)
    assert row["quartiles"] == pytest.approx([1.25, 1.25])
    assert turns.extra == pytest.approx(0.25 * sum(turns.around))


def test_neighbours_are_averaged():
    assert neighbours([1.0, 3.0, 4.0]) == [2.0, 3.5]
    assert neighbours([1.0]) == []


@pytest.mark.parametrize(
    ("bare", "expected"),
    [
        ([1.0] * 6, [True] * 5),
        ([1.0, 1.0, 1.0, 1.5, 1.0, 1.0], [True, True, False, False, True]),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.5], [True, True, True, True, False]),
        ([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [True] * 5),  # the machine slows down: nothing stands out
        ([1.0, 1.2, 0.9, 1.15, 0.95, 1.2], [True] * 5),  # nothing is usual
        ([1.0], []),
    ],
)
def test_windows_beside_a_bare_one_that_took_unusually_long_are_not_calm(bare, expected):
    assert calm(bare) == expected


def test_nothing_was_added_before_the_first_watched_window():
    assert turns_of(Clock(), 0).extra == 0


def test_figures_follow_from_times():
    row = compare([1.0, 2.0, 4.0], [1.5, 2.2, 4.0], 500)
    assert row["median"] == row["ratio"] == pytest.approx(1.1)
    assert row["mean"] == pytest.approx(7.7 / 7)
    assert row["quartiles"] == pytest.approx(np.quantile([1.0, 1.1, 1.5], [0.25, 0.75]))
    assert (row["windows"], row["steps"], row["bare_ms"]) == (3, 500, pytest.approx(4.0))


@pytest.mark.parametrize(("steps", "ratio"), [(MANY - 1, 1.03), (MANY, 1.0)])
def test_windows_of_few_steps_are_told_by_their_mean(steps, ratio):
    watched = [1.0] * 9 + [1.3]  # one window in ten holds an observed step
    assert compare([1.0] * 10, watched, steps)["ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize(("seconds", "ratio"), [(0.99, 1.03), (1.0, 1.0)])
def test_so_are_windows_too_short_for_a_tick(seconds, ratio):
    watched = [seconds] * 9 + [1.3 * seconds]  # one window in ten holds a tick
    assert compare([seconds] * 10, watched, MANY)["ratio"] == pytest.approx(ratio)


def test_error_of_the_mean_is_how_much_it_varies_between_measurements():
    random, found = np.random.default_rng(0), []
    for _ in range(2000):
        bare = random.normal(1.0, 0.05, 20)
        row = compare(bare.tolist(), (1.1 * random.normal(1.0, 0.05, 20)).tolist(), 1)
        found.append((row["mean"], row["error"]))
    means, errors = zip(*found, strict=True)
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.05)
    assert compare([1.0] * 5, [1.1] * 5, 1)["error"] == pytest.approx(0.0, abs=1e-12)
    assert compare([1.0], [1.1], 1)["error"] == np.inf


def test_median_passes_over_a_window_that_was_disturbed():
    assert compare([1.0] * 9, [1.1] * 8 + [30.0], MANY)["ratio"] == pytest.approx(1.1)


def test_quartiles_are_those_of_numpy():
    numbers = [random.Random(0).random() for _ in range(23)]
    assert quartiles(numbers) == pytest.approx(np.quantile(numbers, [0.25, 0.75]))
    assert quartiles([2.0]) == [2.0, 2.0]


@pytest.mark.parametrize(
    ("seconds", "ratio"),
    [
        (1, (2.0 + 0.5) / 1),
        (2, (4.0 + 0.5) / 2),
        (3, (5.0 + 0.5) / 3),  # the third window is cheap
        (2.5, (4.5 + 0.5) / 2.5),  # half of that window
        (3.5, None),
    ],
)
def test_whole_run(seconds, ratio):
    assert whole_run([1.0] * 3, [2.0, 2.0, 1.0], seconds, closing=0.5) == (ratio and pytest.approx(ratio))


@pytest.mark.parametrize(
    ("said", "measured", "expected"),
    [
        (0.03, 0.03, True),
        (0.04, 0.03, True),
        (0.041, 0.03, False),
        (0.02, 0.03, True),
        (0.019, 0.03, False),
        (0.4, 0.5, True),
        (0.6, 0.5, True),
        (0.39, 0.5, False),
        (0.61, 0.5, False),
        (0.0, -0.005, True),
        (0.0, -0.02, False),
    ],
)
def test_overhead_is_true_within_a_fifth_or_one_percentage_point(said, measured, expected):
    assert is_true(said, measured, 0.0) is expected


@pytest.mark.parametrize(("said", "expected"), [(0.0, True), (0.5, True), (0.6, True), (0.61, False)])
def test_lower_bound_may_be_too_small(said, expected):
    assert is_true(said, 0.5, 0.0, at_least=True) is expected


@pytest.mark.parametrize(
    ("said", "at_least", "expected"),
    [
        (0.1, False, True),
        (0.12, False, True),
        (0.13, False, None),
        (0.16, False, None),
        (0.17, False, False),
        (0.05, True, True),
        (0.13, True, None),
        (0.17, True, False),
    ],
)
def test_what_lies_within_twice_the_error_cannot_be_told(said, at_least, expected):
    assert is_true(said, 0.1, 0.022, at_least) is expected


@pytest.mark.parametrize(("bare", "watched"), [([1.0], [1.0, 1.0]), ([1.0, 1.0], [1.0])])
def test_windows_without_partners_are_an_error(bare, watched):
    with pytest.raises(ValueError, match="zip"):
        compare(bare, watched, 1)
