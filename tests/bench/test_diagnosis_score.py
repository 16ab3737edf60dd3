"""The scorer, against findings made by hand."""

import math

import pytest

from bench.diagnosis.case import Case
from bench.diagnosis.score import alarms, delay, failures, interval, layer_distance, score, upper_bound

ORDER = ["0", "1", "2", "block.a", "block.b", "head"]


def truth(name="dead", onset=10, layers=("2",), cure=("reinit", {})):
    return Case(name, "dead_units", None, None, ("step_too_large",), layers, onset, cure)


CASES = {"dead": truth(), "spike": Case("spike", "loss_spike", None, None)}


def finding(symptom="dead_units", severity="error", layer="2", detected_at=14, caused_by=None):
    return {
        "symptom": symptom,
        "severity": severity,
        "layer": layer,
        "step": 10,
        "detected_at": detected_at,
        "caused_by": caused_by,
        "remedy": None,
    }


def run(kind="fault", *findings, case="dead", score=0.5, seed=0, **more):
    return {
        "case": case,
        "seed": seed,
        "kind": kind,
        "by": "every step",
        "score": score,
        "target": 0.9,
        "findings": list(findings),
        "order": ORDER,
        "problem": None,
        **more,
    }


@pytest.mark.parametrize(
    ("findings", "first", "three"),
    [
        ([finding()], 1, 1),
        ([finding("step_too_large")], 1, 1),
        ([finding("overfitting"), finding()], 0, 1),
        ([finding("overfitting")] * 3 + [finding()], 0, 0),
        ([finding("overfitting|dead_units")], 1, 1),
        ([], 0, 0),
    ],
)
def test_recall_looks_at_the_first_findings(findings, first, three):
    scored = score([run("fault", *findings)], CASES)
    assert (scored["recall1"][0], scored["recall3"][0]) == (first, three)


def test_cases_count_alike_however_many_seeds_they_have():
    runs = [run("fault", finding(), seed=seed) for seed in range(3)] + [run("fault", case="spike")]
    assert score(runs, CASES)["recall1"][0] == 0.5


def test_precision_is_over_all_alarms_and_consequences_are_free():
    runs = [
        run("fault", finding(), finding("overfitting", "info"), finding("rank_collapse", caused_by="dead_units:2")),
        run("twin", finding("no_progress", "warning"), score=0.95),
        run("healthy", finding("loss_spike", "info"), case="healthy-adam", score=0.95),
    ]
    scored = score(runs, CASES)
    assert scored["precision"] == 0.5
    assert (scored["alarmed"], scored["twins_alarmed"], scored["errors"]) == (0, 1, 0)
    assert len(alarms(runs[0])) == 1


@pytest.mark.parametrize(
    ("said", "distance"),
    [("2", 0), ("2.weight", 0), ("2.bias", 0), ("1", 1), ("block.a", 1), ("block", 1), ("head", 3), (None, math.inf)],
)
def test_distance_of_layers_is_in_modules_as_they_run(said, distance):
    assert layer_distance(run("fault", finding(layer=said)), CASES["dead"]) == distance


def test_what_holds_the_right_layer_is_near_it():
    assert layer_distance(run("fault", finding(layer="block")), truth(layers=("block.b",))) == 1


def test_layer_that_nobody_knows_is_far():
    assert layer_distance(run("fault", finding(layer="nowhere")), CASES["dead"]) == math.inf
    assert layer_distance(run("fault"), CASES["dead"]) == math.inf


def test_delay_is_of_the_first_right_finding_after_the_fault():
    assert delay(run("fault", finding("overfitting", detected_at=11), finding(), finding()), CASES["dead"]) == 4
    assert delay(run("fault", finding(detected_at=8)), CASES["dead"]) == 0
    assert delay(run("fault"), CASES["dead"]) is None


def test_programs_that_miss_their_target_are_not_scored():
    runs = [
        run("fault"),
        run("twin", score=0.89),
        run("fault", finding(), seed=1),
        run("twin", seed=1, score=0.91),
        run("healthy", finding(), case="healthy-adam", score=0.1),
    ]
    scored = score(runs, CASES)
    assert scored["left_out"] == [("dead", 0), ("healthy-adam", 0)]
    assert (scored["recall1"][0], scored["faults"], scored["healthy"]) == (1, 1, 0)
    assert scored["alarmed_bound"] is None


@pytest.mark.parametrize(
    ("fault", "treated", "healed"),
    [(0.5, 0.93, 1), (0.5, 0.6, 0), (0.5, None, 0), (0.97, 0.97, None)],
)
def test_only_harm_can_be_healed(fault, treated, healed):
    runs = [run("fault", finding(), score=fault, treated=treated), run("twin", score=0.97)]
    found = score(runs, CASES)["healed"]
    assert (found if found is None else found[0]) == healed


def test_a_fault_without_a_cure_is_not_counted_as_unhealed():
    runs = [run("fault", treated=None, case="spike"), run("twin", case="spike", score=0.97)]
    assert score(runs, CASES)["healed"] is None


def test_agreement_is_over_runs_that_were_stored():
    runs = [run("fault", agrees=True), run("fault", seed=1, agrees=False), run("fault", seed=2, agrees=None)]
    assert score(runs, CASES)["agreement"] == 0.5


@pytest.mark.parametrize(("hits", "count", "bound"), [(0, 60, 0.0487), (0, 300, 0.00994), (3, 60, 0.1240), (5, 5, 1.0)])
def test_upper_bound_is_the_exact_one(hits, count, bound):
    assert upper_bound(hits, count) == pytest.approx(bound, rel=1e-2)


def test_interval_holds_the_mean_and_is_the_same_each_time():
    values = {"a": [1, 1], "b": [0], "c": [1, 0]}
    mean, low, high = interval(values)
    assert mean == 0.5
    assert low <= mean <= high
    assert interval(values) == interval(values)
    assert interval({}) is None


def test_failures_are_missed_causes_and_false_alarms():
    good = [run("fault", finding()), run("twin", finding(severity="info"))]
    bad = [run("fault", finding("overfitting"), finding()), run("healthy", finding(), case="healthy-adam")]
    assert failures([*good, *bad], CASES) == bad


def test_nothing_at_all_has_no_scores():
    scored = score([], CASES)
    assert scored["recall1"] is scored["precision"] is scored["delay"] is scored["layer"] is None
