import json

import numpy as np
import pytest

from monitorch.dashboard import api
from monitorch.diagnosis import Evidence, Finding, Remedy
from monitorch.store import Statistic, Writer, open_run


@pytest.fixture
def run(tmp_path, new_run):
    writer = new_run(tmp_path / "first", overhead=0.02)
    writer.note(config={"clip": float("inf"), "bounds": [float("-inf"), {"start": float("nan")}]})
    writer.event(3, "spike", "warning", layer="conv", body={"value": float("nan")})
    writer.close()
    with open_run(tmp_path / "first") as opened:
        yield opened


def test_a_head_tells_everything_but_numbers(run, sample):
    head = api.head(run)
    assert (head["name"], head["status"], head["last_step"], head["overhead"]) == ("first", "finished", 23, 0.02)
    assert [layer["name"] for layer in head["layers"]] == list(sample.layers)
    lenses = {lens["name"]: lens for lens in head["lenses"]}
    (rate,) = lenses["Rates"]["statistics"]
    assert (rate["name"], rate["scale"], rate["limits"]) == ("Rate/value", "linear", [0.0, 1.0])
    assert (rate["tag"], rate["curve"], rate["line"], rate["role"], rate["label"]) == ("Rate", "", "value", "line", "")
    assert (lenses["Norms"]["ticks"], lenses["Norms"]["last_step"]) == (24, 23)
    assert head["tick_age"] > 0


@pytest.mark.parametrize(
    ("facts", "known"),
    [
        ({}, (None, False)),
        ({"overhead": 0.02}, (0.02, False)),  # older releases noted no more
        ({"overhead": 0.02, "overhead_at_least": False}, (0.02, False)),
        ({"overhead": 0.35, "overhead_at_least": True}, (0.35, True)),
    ],
)
def test_a_head_tells_whether_the_overhead_is_only_a_lower_bound(tmp_path, new_run, facts, known):
    new_run(tmp_path / "first", **facts).close()
    with open_run(tmp_path / "first") as run:
        head = api.head(run)
    assert (head["overhead"], head["overhead_at_least"]) == known


def test_a_head_tells_what_each_statistic_is(tmp_path):
    tails = Statistic.of("Norm", "p95", role="edge", band="tails", side="high", error=0.5)
    with Writer(tmp_path / "first") as writer:
        writer.introduce_statistics("L", [tails])
        writer.put("L", 1, [[1], [2], [0]], layers=["fc"], statistics=[tails.name, "Norm/Q1", "Norm/nonfinite"])
    with open_run(tmp_path / "first") as run:
        (lens,) = api.head(run)["lenses"]
    fields = ("tag", "line", "role", "band", "side", "error", "label", "error_text")
    assert [tuple(known[field] for field in fields) for known in lens["statistics"]] == [
        ("Norm", "p95", "edge", "tails", "high", 0.5, "p95", "± 50 %"),
        ("Norm", "Q1", "edge", "Q1-Q3", "low", None, "Q1", ""),
        ("Norm", "nonfinite", "count", "", "", None, "nonfinite", ""),
    ]


def test_a_head_tells_what_ended_the_run(run, tmp_path, new_run):
    assert api.head(run)["error"] is None
    new_run(tmp_path / "bad").close("crashed", error=KeyError("lr"))
    with open_run(tmp_path / "bad") as crashed:
        error = api.head(crashed)["error"]
    assert error == {"type": "KeyError", "message": "'lr'", "traceback": ["KeyError: 'lr'"]}


def test_what_json_cannot_say_is_text(run):
    text = json.dumps([api.head(run), api.events(run.events())], allow_nan=False)
    config = json.loads(text)[0]["meta"]["config"]
    assert config == {"clip": "Infinity", "bounds": ["-Infinity", {"start": "NaN"}]}
    assert json.loads(text)[1][0]["body"] == {"value": "NaN"}


def test_a_run_without_numbers_has_a_head(tmp_path, new_run):
    with new_run(tmp_path / "empty", steps=0), open_run(tmp_path / "empty") as run:
        head = api.head(run)
    assert (head["status"], head["last_step"], head["tick_age"]) == ("running", None, None)


@pytest.mark.parametrize(("ticks", "every"), [(10, 3), (3000, 7), (3000, 2999)])
def test_a_summary_has_the_last_number_of_each_statistic_of_the_whole_run(tmp_path, ticks, every):
    losses = np.random.default_rng(0).normal(size=ticks).astype(np.float32)
    with Writer(tmp_path / "run", meta={"config": {"lr": 0.1}}) as writer:
        for step, loss in enumerate(losses):
            values, names = [[loss], [0.0]], ["Loss/train_loss mean", "Loss/train_loss +σ"]
            if step % every == 0:
                values, names = [*values, [step]], [*names, "Logged/accuracy mean"]
            writer.put("run", step, values, layers=["run"], statistics=names)
            writer.put("Norms", step, [[1.0]], layers=["fc"], statistics=["Norm/mean"])
            if step % 500 == 0:
                writer.flush()
    with open_run(tmp_path / "run") as run:
        summary = api.summary(run)
    last = (ticks - 1) // every * every
    assert summary["newest"] == {"Loss/train_loss mean": losses[-1], "Logged/accuracy mean": last}
    assert {known["name"]: known["label"] for known in summary["statistics"]} == {
        "Loss/train_loss mean": "train_loss",
        "Logged/accuracy mean": "accuracy",
    }
    assert summary["meta"]["config"] == {"lr": 0.1}


def test_a_summary_says_nan_where_the_last_number_was(tmp_path):
    with Writer(tmp_path / "run") as writer:
        for step, loss in enumerate([1.0, float("nan")]):
            writer.put("run", step, [[loss]], layers=["run"], statistics=["Loss/train_loss mean"])
    with open_run(tmp_path / "run") as run:
        assert json.loads(json.dumps(api.summary(run), allow_nan=False))["newest"] == {"Loss/train_loss mean": "NaN"}


def found(layer, step, **fields):
    return Finding("dead_units", "error", layer, step, step, "No unit is active.", Remedy("Lower the rate."), **fields)


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        (None, "not diagnosed"),
        ([], "healthy"),
        ([found("conv", 3, resolved_at=9)], "healthy"),
        ([found("conv", 3), found("head", 5)], "2 problems since step 3"),
        ([found("conv", 3), found("head", 5, caused_by="dead_units:conv")], "1 problem since step 3"),
    ],
)
def test_the_health_of_a_run_has_its_findings_and_the_verdict(tmp_path, new_run, findings, verdict):
    noted = None if findings is None else [one.to_json() for one in findings]
    new_run(tmp_path / "run", **({} if noted is None else {"findings": noted}), diagnosis={"batch": 64}).close()
    with open_run(tmp_path / "run") as run:
        health, summary, head = api.health(run), api.summary(run), api.head(run)
    assert (health["findings"], health["verdict"], summary["verdict"]) == (noted, verdict, verdict)
    assert "findings" not in head["meta"]  # they may be long, and are asked for on their own
    assert "findings" not in summary["meta"]
    assert "diagnosis" not in {**head["meta"], **summary["meta"]}  # the page would take it for settings


@pytest.mark.parametrize(
    "noted", [3, [3], [{}], [{"symptom": "x"}], {"a": 1}, [{**found("a", 1).to_json(), "severity": "?"}]]
)
def test_findings_that_nobody_can_read_are_no_verdict(tmp_path, new_run, noted):
    new_run(tmp_path / "run", findings=noted).close()
    with open_run(tmp_path / "run") as run:
        health = api.health(run)
    assert (health["findings"], health["verdict"], len(health["layers"])) == (None, "not diagnosed", 5)


def test_numbers_of_a_finding_that_json_cannot_say_are_text(tmp_path, new_run):
    evidence = Evidence("norm", "conv", (1, 2, 3), (1.0, float("nan"), float("inf")), float("inf"))
    new_run(tmp_path / "run", findings=[found("conv", 2, evidence=(evidence,)).to_json()]).close()
    with open_run(tmp_path / "run") as run:
        (told,) = json.loads(json.dumps(api.health(run), allow_nan=False))["findings"]
    assert told["evidence"][0]["values"] == [1.0, "nan", "inf"]
    assert told["evidence"][0]["threshold"] == "Infinity"


def test_the_health_of_a_run_ranks_its_layers_and_describes_the_worst(tmp_path, new_run):
    layers = [f"layer{number}" for number in range(60)]
    writer = new_run(tmp_path / "run", layers=layers)
    rates = np.full(60, 0.5)
    rates[50] = np.nan
    writer.put("Rates", 24, [rates], layers=layers, statistics=["Rate/value"])
    writer.note(findings=[found("layer55", 3).to_json()])
    writer.close()
    with open_run(tmp_path / "run") as run:
        health = api.health(run)
    assert health["layers"][:2] == ["layer55", "layer50"]
    assert sorted(health["layers"]) == sorted(layers)
    assert list(health["described"]) == health["layers"][: api.DESCRIBED_LAYERS]
    first, second, third, *_ = health["described"].values()
    assert (first["tone"], first["reason"]) == ("error", "dead units since step 3")
    assert (second["tone"], second["reason"]) == ("nonfinite", "1 not finite in 1 of 25 ticks")
    assert (second["lens"], second["statistic"], second["value"]) == ("Rates", "Rate/value", "NaN")
    assert third["tone"] == third["reason"] == ""


def test_a_run_without_numbers_has_a_summary(tmp_path, new_run):
    with new_run(tmp_path / "empty", steps=0), open_run(tmp_path / "empty") as run:
        assert api.summary(run)["newest"] == {}


@pytest.fixture
def binned(tmp_path):
    """A run with histograms of two layers at two steps."""
    with Writer(tmp_path / "binned") as writer:
        for step in (10, 20):
            writer.put("L", step, [[0.0, 0.0]], layers=["a", "b"], statistics=["Shape/q50"])
            counts = [[0, step, 0, 2, 0], [0, 0, 0, 0, 0]]
            writer.put_histograms("L", "Shape", step, counts, layers=["a", "b"], edges=range(6))
    with open_run(tmp_path / "binned") as run:
        yield run


@pytest.mark.parametrize(
    ("layers", "step", "found"),
    [
        (["a"], None, {"step": 20, "layers": ("a",), "edges": [1, 2, 3, 4], "counts": [[20, 0, 2]]}),
        (["b", "a"], 19, {"step": 10, "layers": ("b", "a"), "edges": [1, 2, 3, 4], "counts": [[0, 0, 0], [10, 0, 2]]}),
        (["b"], 10, {"step": 10, "layers": ("b",), "edges": [0], "counts": [[]]}),
        (["c"], 10, {"step": 10, "layers": (), "edges": [0], "counts": []}),
        ([], 10, {"step": 10, "layers": (), "edges": [0], "counts": []}),
        (["a"], 9, None),
    ],
)
def test_a_histogram_has_only_bins_that_some_layer_fills(binned, layers, step, found):
    assert api.histogram(binned, "L", "Shape", layers, step) == found


def test_a_head_tells_which_tags_have_histograms(binned):
    assert [lens["histograms"] for lens in api.head(binned)["lenses"]] == [("Shape",)]
