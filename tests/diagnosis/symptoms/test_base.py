"""Since when something lasts, what is shown of it, and symptoms of one's own."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from monitorch.diagnosis import SYMPTOMS, Remedy, Symptom, diagnose, signals, switched_off
from monitorch.diagnosis.diagnose import chosen
from monitorch.diagnosis.history import Table
from monitorch.diagnosis.symptoms import DeadUnits, StaleGradient
from monitorch.diagnosis.symptoms.base import MOST_POINTS, Stretch, lasting, others, points, together
from monitorch.errors import OptionError


def table_of(*rows):
    values = np.array(rows, float)
    return Table(10 * np.arange(1, len(values) + 1), tuple("abc"[: values.shape[1]]), values)


def bad(*rows):
    table = table_of(*[[row] for row in rows])
    return lasting(table, table.values > 0)


def test_most_of_five_must_be_bad():
    assert bad(*[0] * 20) == []
    assert bad(*[0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0]) == []
    assert bad(*[1] * 4) == []
    assert bad(*[1] * 5) == [Stretch(0, 10, 50, None)]
    assert bad(*[0] * 6, *[1] * 4) == [Stretch(0, 70, 90, None)]


def test_one_that_is_fine_between_does_not_begin_it_anew():
    assert bad(*[0] * 6, 1, 0, 1, 1, 1, 1) == [Stretch(0, 70, 100, None)]


def test_what_is_over_says_since_when():
    assert bad(*[0] * 5, *[1] * 5, *[0] * 8) == [Stretch(0, 60, 80, 110)]
    assert bad(*[1] * 6, *[0] * 4, *[1] * 5) == [Stretch(0, 10, 50, None)]


def test_steps_without_numbers_are_left_out():
    nan = np.nan
    table = table_of(*[[1, nan]] * 3, *[[nan, nan]] * 2, *[[1, 0]] * 3)
    (found,) = lasting(table, table.values > 0)
    assert (found.place, found.step, found.resolved_at) == (0, 10, None)


def test_evidence_has_few_points_and_both_ends():
    values = np.linspace(0, 1, 1000)
    values[5] = np.nan
    shown = points("signal", "place", np.arange(1000), values, 0.5)
    assert len(shown.steps) == len(shown.values) == MOST_POINTS
    assert (shown.steps[0], shown.steps[-1], shown.threshold) == (0, 999, 0.5)
    np.testing.assert_allclose(shown.values, values[list(shown.steps)], rtol=1e-4)
    assert points("signal", None, [], np.zeros(0)).values == ()


@pytest.mark.parametrize(
    ("names", "rest", "all_names"),
    [
        (["a"], "", "a"),
        (["a", "4"], ", as in layer 4", "a and layer 4"),
        (["a", "b", "c"], ", as in b and c", "a, b and c"),
        (["a", "b", "c", "d"], ", as in 3 other layers", "a and 3 other layers"),
    ],
)
def test_other_layers_are_named_or_counted(names, rest, all_names):
    assert (others(names), together(names)) == (rest, all_names)
    assert others([]) == ""


@dataclass(frozen=True)
class HugeLoss(Symptom):
    """A symptom of a user."""

    id: ClassVar[str] = "huge_loss"
    limit: float = 100.0

    def look(self, run):
        if run.last_loss > self.limit:
            text = f"The loss is {run.last_loss:g}. That is huge."
            yield self.finding(None, run.step, run.step, "warning", text, Remedy("Look."))


class Broken(HugeLoss):
    """One that fails."""

    id: ClassVar[str] = "broken"

    def look(self, run):
        raise ZeroDivisionError("it fell apart")


def test_a_symptom_of_ones_own_is_looked_for_beside_the_usual_ones(story):
    told = story().losses([500.0] * 20)
    found = diagnose(told.history, chosen([HugeLoss()]))
    assert [one.symptom for one in found] == ["huge_loss"]
    assert found[0].explanation == "The loss is 500. That is huge."
    assert diagnose(told.history, chosen([HugeLoss(limit=1000)])) == []


def test_chosen_replaces_by_id_and_keeps_the_order():
    usual = [symptom.id for symptom in SYMPTOMS]
    assert [one.id for one in chosen(None)] == usual
    given = chosen(iter([HugeLoss(), StaleGradient(steps=9)]))
    assert [one.id for one in given] == [*usual, "huge_loss"]
    assert next(one for one in given if one.id == "stale_gradient").steps == 9
    assert len(usual) == len(set(usual)) == 27


@pytest.mark.parametrize("wrong", ["dead_units", DeadUnits, 3, None])
def test_what_is_no_symptom_is_refused_with_an_example(wrong):
    with pytest.raises(OptionError, match=r"DeadUnits\(share=0\.7\)"):
        chosen([wrong])


def test_a_symptom_that_fails_does_not_silence_the_others(story):
    told, failed = story().losses([500.0] * 20), []
    found = diagnose(told.history, [Broken(), HugeLoss()], report=lambda *failure: failed.append(failure))
    assert [one.symptom for one in found] == ["huge_loss"]
    assert [(name, str(error)) for name, error in failed] == [("broken", "it fell apart")]
    with pytest.raises(ZeroDivisionError):
        diagnose(told.history, [Broken(), HugeLoss()])


def test_what_needs_signals_is_off_without_them_and_says_so(story):
    off = switched_off(story().history)
    assert set(off) == {symptom.id for symptom in SYMPTOMS if symptom.needs}
    told = story()
    for signal in {signal for symptom in SYMPTOMS for signal in symptom.needs}:
        told.add(signal, place=1.0)
    assert switched_off(told.history) == []


def test_what_needs_the_first_steps_is_off_in_a_run_that_was_watched_later(story):
    told = story(since=500)
    for signal in vars(signals).values():
        if isinstance(signal, str) and not signal.startswith("_"):
            told.add(signal, place=1.0)
    off = set(switched_off(told.history))
    assert off == {symptom.id for symptom in SYMPTOMS if symptom.needs_start}
    assert {"exploding_signal", "bad_initial_loss", "symmetric_units"} <= off


def test_nothing_is_found_in_nothing(story):
    assert diagnose(story().history) == []
    assert diagnose(story(layers={}).history) == []


def test_what_was_found_before_keeps_its_beginning(story):
    told = story().add(signals.DEATH, act0=[0.9] * 20)
    (first,) = told.find(DeadUnits())
    later = story().add(signals.DEATH, steps=range(100, 120), act0=[0.9] * 20)
    (found,) = diagnose(later.history, [DeadUnits()], known=[first])
    assert (found.step, found.detected_at) == (first.step, first.detected_at) == (1, 1)
