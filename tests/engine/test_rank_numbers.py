"""Finished numbers of several processes; what preprocessors make of them is tested with them."""

import math

import numpy as np
import pytest

from monitorch.engine import rank_numbers
from monitorch.engine.rank_numbers import Payload, Vector
from monitorch.engine.ranks import merged
from monitorch.numerical import RunningMeanVar

SAMPLES = ([1.0, 4.0, math.nan], [-3.0], [], [math.inf], [5.0, 5.0, 8.0])


def row_of(samples):
    moments = RunningMeanVar()
    for sample in samples:
        moments.update(sample)
    return moments.row()


def pooled(by_rank, **options):
    payloads = {rank: Payload({"x": row_of(samples)}, **options) for rank, samples in enumerate(by_rank)}
    return merged(payloads).moments["x"]


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200], ids=["usual", "tiny", "huge"])
@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_moments_are_those_of_all_samples(scale, shift):
    by_rank = [[(sample + shift) * scale for sample in samples] for samples in SAMPLES]
    everything = np.array([sample for samples in by_rank for sample in samples])
    finite = everything[np.isfinite(everything)]
    found = pooled(by_rank)
    assert (found.finite, found.nonfinite) == (len(finite), 2)
    assert (found.low, found.high) == (finite.min(), finite.max())
    assert found.mean == pytest.approx(np.mean(finite / scale) * scale, rel=1e-12)
    assert found.std == pytest.approx(np.std(finite / scale) * scale, rel=1e-9)


def test_of_one_process_they_are_as_they_were():
    samples = [0.1, 0.7, math.nan, -2.0]
    assert pooled([samples])[:-1] == row_of(samples)[:-1]
    together = merged({0: Payload(), 1: Payload({"x": row_of(samples[:2])})})
    assert together.moments["x"] == row_of(samples[:2])
    assert together.processes == 2


def test_copies_count_once_if_all_are_the_same():
    copies = [[0.1, 0.3]] * 3
    assert pooled(copies, counts_copies_once=True) == row_of(copies[0])
    assert pooled(copies).finite == 6
    assert pooled([[0.1], [0.2], [0.1]], counts_copies_once=True).finite == 3


def test_nothing_finite_anywhere():
    found = pooled([[math.nan], [math.inf], []])
    assert (found.finite, found.nonfinite, found.mean, found.low) == (0, 2, 0.0, math.inf)


def test_numbers_of_one_step_are_averaged_over_those_that_have_them():
    vectors = {0: [1.0, 2.0], 1: [3.0, math.nan, 7.0], 2: [5.0]}
    payloads = {
        rank: Payload(vectors={"loss": Vector(np.array(numbers), averages=True)}) for rank, numbers in vectors.items()
    }
    assert merged(payloads).vectors["loss"] == pytest.approx([3.0, math.nan, 7.0], nan_ok=True)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [((-1, -1, -1), [6, 3]), ((0, 0, 0), [2, 1]), ((0, 1, 2), [6, 3]), ((0, 0, 2), [4, 2])],
    ids=["own", "copies", "parts", "parts and copies"],
)
def test_counts_are_added_up_but_copies_count_once(parts, expected):
    counts = np.array([2, 1])
    payloads = {rank: Payload(vectors={"x": Vector(counts, part)}) for rank, part in enumerate(parts)}
    assert merged(payloads).vectors["x"] == pytest.approx(expected)


def test_very_long_lists_are_thinned_out(monkeypatch):
    monkeypatch.setattr(rank_numbers, "LISTED", 200)
    long = {"x": [float(number) for number in range(1000)]}
    first, second = merged({0: Payload(lists=long), 1: Payload(lists={"x": [1.0]})}).lists
    assert first["x"] == long["x"][::10]
    assert second == {"x": [1.0]}


def test_facts_come_by_rank():
    assert merged({0: Payload(), 1: Payload(facts="here"), 2: Payload(facts=[2])}).facts == {1: "here", 2: [2]}
