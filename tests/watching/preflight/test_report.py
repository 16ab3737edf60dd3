"""The order of findings, and which explains which."""

import pytest

from monitorch.diagnosis import SYMPTOMS, Finding, Remedy
from monitorch.watching.preflight.report import EXPLAINS, ranked


def found(symptom, severity="error", layer=None, caused_by=None):
    return Finding(symptom, severity, layer, 0, 0, "", Remedy(""), caused_by=caused_by)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["no_progress", "dead_units", "no_gradient"], [("dead_units", None), ("no_gradient", "dead_units:")]),
        (["no_progress", "sample_mixing"], [("sample_mixing", None), ("no_progress", None)]),
        (["step_too_large", "input_scale"], [("input_scale", None), ("step_too_large", "input_scale:")]),
        (["vanishing_gradient", "saturated_activation", "exploding_signal"], [("exploding_signal", None)]),
    ],
)
def test_causes_come_before_what_they_explain(given, expected):
    ordered = ranked([found(symptom) for symptom in given])
    assert [(one.symptom, one.caused_by) for one in ordered][: len(expected)] == expected
    assert sorted(one.symptom for one in ordered) == sorted(given)


def test_a_consequence_of_a_consequence_hangs_under_the_first_cause():
    ordered = ranked([found("no_progress"), found("saturated_activation", layer="b"), found("input_scale", "warning")])
    assert [one.caused_by for one in ordered] == [None, "input_scale:", "input_scale:"]


def test_what_harms_most_comes_first_and_information_last():
    given = [found("no_gradient", "info"), found("no_update", "warning"), found("sample_mixing", "error")]
    assert [one.symptom for one in ranked(given)] == ["sample_mixing", "no_update", "no_gradient"]
    given = [found("no_update", "warning"), found("input_scale", "warning"), found("step_too_large")]
    assert [one.symptom for one in ranked(given)] == ["input_scale", "no_update", "step_too_large"]


def test_information_explains_nothing_and_is_not_explained():
    ordered = ranked([found("no_gradient", "info"), found("no_progress"), found("dead_units", "warning")])
    assert [(one.symptom, one.caused_by) for one in ordered] == [
        ("dead_units", None),
        ("no_progress", "dead_units:"),
        ("no_gradient", None),
    ]


def test_what_hangs_under_something_stays_there():
    given = [found("no_gradient", layer="b"), found("no_gradient", layer="a", caused_by="no_gradient:b")]
    assert [one.caused_by for one in ranked(given)] == [None, "no_gradient:b"]


def test_symptoms_are_those_of_a_diagnosis_and_one_of_its_own():
    assert EXPLAINS.keys() - {symptom.id for symptom in SYMPTOMS} == {"sample_mixing"}


def test_no_symptom_explains_itself_or_an_unknown_one():
    for symptom, explained in EXPLAINS.items():
        assert symptom not in explained
        assert explained <= EXPLAINS.keys()
