import math

import pytest

from monitorch import lens

pytestmark = pytest.mark.xdist_group("demo")


@pytest.fixture(scope="module")
def long_run(training):
    return training(steps=40)


def test_model_learns_more_than_frequencies(long_run, corpus):
    outcome, _ = long_run
    assert outcome.first_loss > 0.95 * math.log(len(corpus.vocabulary))
    assert outcome.last_loss < 0.95 * corpus.entropy


def test_losses_of_the_report_are_those_recorded(long_run):
    outcome, ticks = long_run
    assert outcome.last_loss == pytest.approx(ticks[25]["Loss", "Loss", "val_loss mean"], rel=1e-6)
    assert ticks[25]["Loss", "Loss", "train_loss mean"] < ticks[1]["Loss", "Loss", "train_loss mean"]


def test_every_lens_has_something_to_say_at_the_end(long_run):
    outcome, _ = long_run
    left_out = {"AbstractLens", "ActivationHealth", "Attention", "Attribute", "Distribution", "NonFinite"}
    left_out |= {"BatchNormStatistics", "Routing"}
    left_out |= {"ParameterFacts", "SignalToNoise"}
    expected = {*lens.__all__, "LoggedScalars"} - left_out
    assert {record.lens for record in outcome.records} == expected
    assert all(math.isfinite(record.value) for record in outcome.records)


def test_records_are_those_of_the_last_tick(long_run):
    outcome, ticks = long_run
    last = {(record.tag, record.layer, record.statistic): record.value for record in outcome.records}
    assert {record.epoch for record in outcome.records} == {25}
    assert {record.step for record in outcome.records} == {40}
    assert ticks[25].items() <= last.items()


@pytest.mark.parametrize("steps", [1, 3])
def test_short_run_ticks_at_every_step(training, steps):
    _, ticks = training(steps)
    assert list(ticks) == list(range(1, steps + 1))


def test_ticks_are_spread_over_a_run_of_any_length(long_run):
    assert list(long_run[1]) == list(range(1, 26))


def test_same_seed_same_numbers(training):
    (_, first), (_, again), (_, other) = training(2, seed=5), training(2, seed=5), training(2, seed=6)
    for ticks in (first, again, other):
        for numbers in ticks.values():
            for what in ("samples", "steps"):  # the only ones that depend on the clock
                del numbers["Logged", "Logged", f"{what} per second mean"]
    assert first == again
    assert first != other
