"""Which finding comes first, and which ones it explains."""

from dataclasses import replace

import numpy as np
import pytest

from monitorch.diagnosis import Evidence, Finding, Remedy, signals
from monitorch.diagnosis.causes import (
    ACTING,
    ALWAYS,
    EXACT,
    HARMFUL,
    LINGERING,
    NEVER,
    SEEN_AT_ONCE,
    SILENT,
    STATIC,
    WEARING,
    ranked,
    strongest,
)
from monitorch.diagnosis.run import RunView
from monitorch.diagnosis.symptoms import SYMPTOMS


def finding(symptom, step=1, severity="warning", layer=None, confidence=0.9, resolved_at=None, detected_at=None):
    severity, detected_at = severity if resolved_at is None else "info", step if detected_at is None else detected_at
    own = {"confidence": confidence, "resolved_at": resolved_at}
    return Finding(symptom, severity, layer, step, detected_at, "Why.", Remedy("Try."), **own)


@pytest.fixture
def order(story):
    """What a reader sees: each symptom with that of its cause."""

    def rank(*findings, observed=range(1, 50), **facts):
        told = story(**facts).add(signals.GRADIENT, observed, fc0__weight=1.0)
        found = ranked(iter(findings), RunView(told.history))
        assert sorted(one.id for one in found) == sorted(one.id for one in findings)
        return [(one.symptom, None if one.caused_by is None else one.caused_by.split(":")[0]) for one in found]

    return rank


def test_the_tables_speak_of_symptoms_that_there_are():
    known = {symptom.id for symptom in SYMPTOMS}
    pairs = {one for pair in NEVER | ALWAYS | SILENT for one in pair}
    assert STATIC | HARMFUL | LINGERING | WEARING | ACTING | EXACT | SEEN_AT_ONCE | pairs <= known


def test_nothing_is_nothing(order):
    assert order() == []


def test_what_began_first_explains_what_came_later(order):
    late = finding("dead_units", 80, layer="act0")
    assert order(late, finding("step_too_large", 40), finding("nonfinite", 120)) == [
        ("step_too_large", None),
        ("dead_units", "step_too_large"),
        ("nonfinite", "step_too_large"),
    ]


def test_what_began_long_before_is_no_consequence(order):
    found = order(finding("dead_units", 5, layer="act0"), finding("step_too_large", 90))
    assert found == [("dead_units", None), ("step_too_large", "dead_units")]


def test_at_the_same_time_the_symptom_that_explains_others_is_first(order):
    found = order(finding("loss_spike", 30), finding("vanishing_gradient", 31), finding("step_too_large", 38))
    assert [symptom for symptom, _ in found] == ["step_too_large", "vanishing_gradient", "loss_spike"]


def test_a_plateau_explains_nothing_but_steps_that_are_too_small_do(order):
    plateau, small = finding("no_progress", 30, confidence=0.6), finding("no_progress", 30)
    assert order(plateau, finding("rank_collapse", 31))[0] == ("rank_collapse", None)
    assert order(small, finding("rank_collapse", 31))[0] == ("no_progress", None)


def test_what_was_set_up_wrong_comes_before_what_happened_in_the_first_steps(order):
    found = order(finding("nonfinite", 1), finding("input_scale", 8))
    assert found == [("input_scale", None), ("nonfinite", "input_scale")]


def test_but_not_if_it_came_later(order):
    found = order(finding("nonfinite", 20), finding("input_scale", 200))
    assert [symptom for symptom, _ in found] == ["nonfinite", "input_scale"]


def test_of_a_run_that_was_watched_later_the_first_steps_are_those_after(order):
    found = order(finding("nonfinite", 501), finding("input_scale", 505), since=500)
    assert found == [("input_scale", None), ("nonfinite", "input_scale")]


def test_the_most_upstream_layer_is_first(order):
    found = order(finding("my_own", 5, layer="fc2"), finding("other_own", 5, layer="fc0"))
    assert [symptom for symptom, _ in found] == ["other_own", "my_own"]


def test_what_only_looks_odd_comes_last_and_explains_no_harm(order):
    found = order(finding("saturated_activation", 1, "info", layer="act0"), finding("no_progress", 30, "error"))
    assert found == [("no_progress", None), ("saturated_activation", None)] or found == [
        ("no_progress", None),
        ("saturated_activation", "no_progress"),
    ]
    assert order(finding("oscillation", 30, "info"), finding("saturated_activation", 1, "info"))[0][1] is None


def test_what_may_not_cause_another_does_not(order):
    assert order(finding("no_update", 1, layer="fc0"), finding("step_too_large", 1)) == [
        ("no_update", None),
        ("step_too_large", None),
    ]
    assert order(finding("dead_units", 5, layer="act0"), finding("nonfinite", 9)) == [
        ("nonfinite", None),
        ("dead_units", None),  # the step of the first number that was not finite is known exactly
    ]
    assert order(finding("dead_units", 9, layer="act0"), finding("nonfinite", 9)) == [
        ("nonfinite", None),
        ("dead_units", "nonfinite"),
    ]


@pytest.mark.parametrize(
    ("cause", "other", "step"),
    [
        (finding("step_too_large", 38), finding("vanishing_gradient", 31), 31),  # both began about then
        (finding("step_too_large", 31), finding("vanishing_gradient", 38), 31),
        (finding("expert_collapse", 93), finding("no_gradient", 13), 13),  # one expert after the other
        (finding("nonfinite", 31), finding("loss_spike", 38), 31),
        # since when nothing is learned is not known so well
        (finding("step_too_large", 62), finding("no_progress", 3, confidence=0.6, detected_at=152), 62),
    ],
)
def test_no_consequence_is_older_than_its_cause(story, cause, other, step):
    told = story().add(signals.GRADIENT, range(1, 50), fc0__weight=1.0)
    first, second = ranked([other, cause], RunView(told.history))
    assert (first.symptom, first.step) == (cause.symptom, step)
    assert (second.symptom, second.caused_by) == (other.symptom, first.id)
    assert second.step >= first.step


@pytest.mark.parametrize("severity", ["info", "warning"])
def test_steps_do_not_explain_what_the_first_pass_shows(order, severity):
    large = finding("step_too_large", 1, severity)
    assert ("no_gradient", None) in order(large, finding("no_gradient", 1, layer="fc0"))
    assert order(large, finding("no_gradient", 2, layer="fc0"))[1] == ("no_gradient", "step_too_large")
    first, _ = order(finding("step_too_large", 1, "info"), finding("no_gradient", 1, layer="fc0"))
    assert first == ("no_gradient", None)


def test_gradients_that_are_small_but_there_are_not_due_to_dead_units(order):
    found = order(finding("dead_units", 1, "error", layer="act0"), finding("vanishing_gradient", 2, "error", "fc1"))
    assert found == [("vanishing_gradient", None), ("dead_units", "vanishing_gradient")]


def test_large_steps_explain_a_spike(order):
    found = order(finding("loss_spike", 30), finding("step_too_large", 30, "info"))
    assert found == [("step_too_large", None), ("loss_spike", "step_too_large")]


def test_what_follows_from_nothing_stands_alone(order):
    found = order(finding("input_scale", 1), finding("stale_gradient", 1), finding("no_label_signal", 90))
    assert {cause for _, cause in found} == {None}


@pytest.mark.parametrize(("first", "second"), sorted(ALWAYS))
def test_some_explain_others_whichever_was_seen_first(order, first, second):
    assert order(finding(second, 10), finding(first, 400)) == [(first, None), (second, first)]


def test_a_vague_one_explains_nothing_as_long_as_there_are_others(order):
    found = order(finding("no_progress", 95, confidence=0.5), finding("dead_units", 99, layer="act0"))
    assert found == [("dead_units", None), ("no_progress", "dead_units")]
    found = order(finding("no_progress", 1, confidence=0.5), finding("dead_units", 90, layer="act0"))
    assert found == [("dead_units", None), ("no_progress", None)]  # it was there long before


def test_what_is_over_may_have_done_harm_that_lasts(order):
    over = finding("dead_units", 10, layer="act0", resolved_at=40)
    assert order(over, finding("no_progress", 45, "error")) == [("dead_units", None), ("no_progress", "dead_units")]


@pytest.mark.parametrize(
    ("over", "harm"),
    [
        (finding("dead_units", 10, layer="act0", resolved_at=40), finding("no_progress", 400)),  # long ago
        (finding("oscillation", 10, resolved_at=40), finding("no_progress", 45)),  # leaves nothing behind
    ],
)
def test_or_not(order, over, harm):
    found = order(over, harm)
    assert found[0] == ("no_progress", None)


@pytest.mark.parametrize(("end", "first"), [(45, "vanishing_gradient"), (20, "rank_collapse")])
def test_what_lasted_for_most_of_the_run_may_have_worn_it_out(order, end, first):
    found = order(finding("rank_collapse", 3, "error"), finding("vanishing_gradient", 2, resolved_at=end))
    assert found[0] == (first, None)
    assert found[1][1] == first


def test_large_steps_kill_units_although_they_do_no_harm_by_themselves(order):
    large = finding("step_too_large", 1, "info")
    assert order(finding("dead_units", 7, layer="act0"), large)[0] == ("step_too_large", None)
    assert order(finding("overfitting", 7), large)[0] == ("overfitting", None)


def test_where_few_steps_are_observed_the_same_time_is_longer(order):
    both = finding("step_too_large", 60), finding("vanishing_gradient", 40, layer="fc0")
    assert order(*both)[0] == ("vanishing_gradient", None)
    assert order(*both, observed=np.arange(1, 500, 20))[0] == ("step_too_large", None)


@pytest.mark.parametrize(
    ("series", "severity", "begin", "first"),
    [
        (signals.OUTPUT, "error", 1, "no_gradient"),  # the layers run, but what they compute goes nowhere
        (signals.GRADIENT, "error", 1, "rank_collapse"),  # there is a gradient, and it is 0
        (signals.OUTPUT, "info", 1, "rank_collapse"),
        (signals.OUTPUT, "error", 60, "rank_collapse"),
    ],
)
def test_a_gradient_that_never_arrives_is_no_consequence_of_a_collapse(order, series, severity, begin, first):
    missing = replace(
        finding("no_gradient", begin, severity, layer="fc0"), evidence=(Evidence(series, "fc0", (1,), (1.0,), None),)
    )
    found = order(finding("rank_collapse", 1, "error"), missing, finding("no_progress", 30, confidence=0.6))
    assert found[0] == (first, None)
    if first == "no_gradient":
        assert found[1:] == [("no_progress", first), ("rank_collapse", first)]


def test_consequences_stand_right_after_their_cause(order):
    found = order(
        finding("no_update", 1, layer="fc0"),
        finding("input_scale", 1),
        finding("nonfinite", 20),
        finding("no_progress", 30),
    )
    assert found == [
        ("no_update", None),
        ("no_progress", "no_update"),
        ("input_scale", None),
        ("nonfinite", "input_scale"),
    ]


@pytest.mark.parametrize(
    ("findings", "worst"),
    [
        ([], None),
        ([finding("nonfinite", severity="error", resolved_at=9)], None),
        ([finding("oscillation", severity="info")], "info"),
        ([finding("oscillation", severity="info"), finding("loss_spike"), finding("a", severity="info")], "warning"),
        ([finding("nonfinite", severity="error"), finding("loss_spike")], "error"),
    ],
)
def test_the_worst_severity_is_that_of_what_lasts(findings, worst):
    assert strongest(findings) == worst
