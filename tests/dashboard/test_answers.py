import json

import pytest

from monitorch.dashboard import answers
from monitorch.store import open_run


@pytest.fixture
def run(tmp_path, new_run):
    writer = new_run(tmp_path / "first", overhead=0.02)
    writer.note(config={"clip": float("inf"), "bounds": [float("-inf"), {"start": float("nan")}]})
    writer.event(3, "spike", "warning", layer="conv", body={"value": float("nan")})
    writer.close()
    with open_run(tmp_path / "first") as opened:
        yield opened


def test_a_head_tells_everything_but_numbers(run, sample):
    head = answers.head(run)
    assert (head["name"], head["status"], head["last_step"], head["overhead"]) == ("first", "finished", 23, 0.02)
    assert [layer["name"] for layer in head["layers"]] == list(sample.layers)
    lenses = {lens["name"]: lens for lens in head["lenses"]}
    assert lenses["Rates"]["statistics"] == [{"name": "Rate/value", "scale": "linear", "limits": [0.0, 1.0]}]
    assert (lenses["Norms"]["ticks"], lenses["Norms"]["last_step"]) == (24, 23)
    assert head["tick_age"] > 0


def test_a_head_tells_what_ended_the_run(run, tmp_path, new_run):
    assert answers.head(run)["error"] is None
    new_run(tmp_path / "bad").close("crashed", error=KeyError("lr"))
    with open_run(tmp_path / "bad") as crashed:
        error = answers.head(crashed)["error"]
    assert error == {"type": "KeyError", "message": "'lr'", "traceback": ["KeyError: 'lr'"]}


def test_what_json_cannot_say_is_text(run):
    text = json.dumps([answers.head(run), answers.events(run.events())], allow_nan=False)
    config = json.loads(text)[0]["meta"]["config"]
    assert config == {"clip": "Infinity", "bounds": ["-Infinity", {"start": "NaN"}]}
    assert json.loads(text)[1][0]["body"] == {"value": "NaN"}


def test_a_run_without_numbers_has_a_head(tmp_path, new_run):
    with new_run(tmp_path / "empty", steps=0), open_run(tmp_path / "empty") as run:
        head = answers.head(run)
    assert (head["status"], head["last_step"], head["tick_age"]) == ("running", None, None)
