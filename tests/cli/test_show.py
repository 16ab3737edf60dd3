import json

import numpy as np
import pytest

from monitorch import cli
from monitorch.diagnosis import Finding, Remedy
from monitorch.store import Layer, Statistic, Writer, open_run

NAMES = ["[red]fc1[/red]", "fc\x1b[2J2"]


@pytest.fixture
def folder(tmp_path):
    """A run with everything, nasty names included."""
    statistics = ["Norm/mean", "Norm/max", "Norm/nonfinite"]
    with Writer(tmp_path / "runs" / "first", meta={"config": {"lr": 0.1, "inf": float("inf")}}) as writer:
        writer.introduce_layers([Layer(NAMES[1], "Linear", 6), Layer(NAMES[0], "Linear", 2)])
        for step in (10, 20):
            values = [[0.1, np.nan], [step, np.inf], [0, 3]]
            writer.put("Lens [b]", step, values, layers=NAMES, statistics=statistics, epoch=step // 10)
            writer.put("run", step, [[1 / step]], layers=["run"], statistics=["Loss/loss mean"])
        writer.event(20, "spike \x07", "warning", layer=NAMES[0], statistic="Norm/mean", body={"factor": 3.5})
    return tmp_path / "runs"


def show(folder, capsys, *arguments):
    assert cli.main(["show", "--runs", str(folder), *arguments]) == 0
    return capsys.readouterr().out


def test_sheet_shows_facts_lenses_numbers_and_events(folder, capsys):
    text = show(folder, capsys, "first")
    assert text.startswith("first  finished  step 20  2 ticks")
    assert "lr 0.1" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["Lens", "[b]", "2", "3", "2", "10", "to", "20"] in rows
    assert ["run", "-", "1", "2", "10", "to", "20"] in rows
    assert ["run", "|", "0.05000"] in rows
    assert ["warning", "20", r"spike", r"\x07", NAMES[0], "Norm/mean"] in rows
    assert rows[rows.index(["warning", "20", r"spike", r"\x07", NAMES[0], "Norm/mean"]) + 1] == ["factor", "3.5"]


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({}, "ago"),
        ({"overhead": None, "overhead_at_least": False}, "ago"),
        ({"overhead": "much"}, "ago"),
        ({"overhead": 0.0312}, "ago  3.1 % overhead"),
        ({"overhead": 0.0312, "overhead_at_least": False}, "ago  3.1 % overhead"),
        ({"overhead": 0.35, "overhead_at_least": True}, "ago  at least 35.0 % overhead"),
    ],
)
@pytest.mark.parametrize("command", ["show", "top"])
def test_the_first_line_tells_what_observing_costs(write_run, capsys, command, facts, shown):
    folder = write_run("first", {"L": {"Norm/mean": {"fc": [1.0, 2.0]}}}, meta=facts)
    assert cli.main([command, str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(shown)
    assert not any("overhead" in line for line in lines[1:])
    assert cli.main([command, str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    at_least = facts.get("overhead_at_least", False)
    assert (found["overhead"], found["overhead_at_least"]) == (facts.get("overhead"), at_least)


@pytest.fixture
def ended_by_an_evaluation(tmp_path):
    """A run whose last tick has only the validation loss, as the tick of an evaluation has."""
    names = ["Loss/train_loss mean", "Loss/val_loss mean"]
    with Writer(tmp_path / "runs" / "evaluated") as writer:
        for step, name, loss in ((10, 0, 3.0), (15, 1, 2.5), (20, 0, 2.0), (25, 1, 1.5)):
            writer.put("run", step, [[loss]], layers=["run"], statistics=[names[name]])
    return tmp_path / "runs" / "evaluated"


def test_the_newest_losses_are_shown_whatever_the_last_tick_has(ended_by_an_evaluation, capsys):
    assert cli.main(["show", str(ended_by_an_evaluation)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["run", "|", "2.000", "1.500"] in rows
    assert cli.main(["show", str(ended_by_an_evaluation), "--json"]) == 0
    newest = json.loads(capsys.readouterr().out)["newest"]["run"]
    assert newest == {"Loss/train_loss mean": {"run": 2.0}, "Loss/val_loss mean": {"run": 1.5}}


def test_compared_runs_have_their_newest_losses(ended_by_an_evaluation, capsys):
    assert cli.main(["compare", str(ended_by_an_evaluation), str(ended_by_an_evaluation), "--json"]) == 0
    newest = json.loads(capsys.readouterr().out)["newest"]
    assert newest == {"Loss/train_loss mean": [2.0, 2.0], "Loss/val_loss mean": [1.5, 1.5]}


@pytest.mark.parametrize(
    ("optimizers", "shown"),
    [
        ([{"kind": "Adam", "lr": 0.1, "betas": [0.9, 0.99]}], "kind Adam, lr 0.1, betas [0.9, 0.99]"),
        ([{"kind": "Adam", "amsgrad": False}, {"kind": "SGD"}], "kind Adam, amsgrad false; kind SGD"),
        ([], "[]"),
    ],
)
def test_optimizers_are_shown_in_words(write_run, capsys, optimizers, shown):
    folder = write_run("first", {"L": {"Norm/mean": {"fc": [1.0]}}}, meta={"optimizers": optimizers})
    assert cli.main(["show", str(folder)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("optimizers")]
    assert line.split(maxsplit=1)[1].rstrip() == shown


def test_names_are_shown_and_not_obeyed(folder, capsys):
    text = show(folder, capsys)
    assert not set(text) & {"\x1b", "\x07"}
    rows = [line.split() for line in text.splitlines()]
    # the order of the model
    assert rows.index([r"fc\x1b[2J2", "|", "NaN", "!3"]) < rows.index([NAMES[0], "|", "0.1000"])


def test_statistics_that_accompany_others_are_shown_on_demand(folder, capsys):
    assert "20.00" not in show(folder, capsys)
    assert "20.00" in show(folder, capsys, "--all")
    assert "20.00" in show(folder, capsys, "--statistic", "max")


def test_checksums_are_shown_on_demand(write_run, capsys):
    facts = {"Parameter Checksum/last": {"fc": [1e7, 3.0]}, "Parameter Changed/mean": {"fc": [1.0, 1.0]}}
    path = write_run("facts", {"Facts": facts})
    for asked, shown in (([], False), (["--statistic", "checksum"], True), (["--all"], True)):
        assert cli.main(["show", str(path), *asked]) == 0
        assert ("Parameter Checksum" in capsys.readouterr().out) == shown


def test_filters_choose_layers(folder, capsys):
    assert "fc1" not in show(folder, capsys, "--layers", "2$").split("event")[0]


def test_many_layers_are_cut_short_unless_all_are_wanted(write_run, capsys):
    folder = write_run("wide", {"L": {"x": {f"layer{number:03}": [1.0] for number in range(100)}}}).parent
    text = show(folder, capsys)
    assert "layer039" in text
    assert "layer040" not in text
    assert "60 layers more: --all, or --layers REGEX" in text
    assert "layer099" in show(folder, capsys, "--all")


def test_text_and_numbers_of_an_event_are_shown_in_full_below_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = "The gradient norm is far above its median of the last hundred steps, and clipping would help."
    with Writer(tmp_path / "told") as writer:
        body = {"text": text, "numbers": {"norm": 812345.678, "median": 6.77e-4, "steps": 100}}
        writer.event(4100, "spike", "warning", layer="fc", body=body)
    lines = show(tmp_path, capsys).splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("warning"))
    assert lines[start].split() == ["warning", "4,100", "spike", "fc"]
    assert max(map(len, lines[start:])) <= 60
    below = " ".join(line.strip() for line in lines[start + 1 :])
    assert below == f"{text} (norm 812346, median 0.000677, steps 100)"
    assert "statistic" not in "".join(lines)


@pytest.mark.parametrize(
    ("body", "below"),
    [
        ({"text": 5, "numbers": "none"}, "5"),
        ({"numbers": {"a": "high", "b": None, "c": True, "d": 0.5}}, "a high, b None, c 1, d 0.5"),
        ({"numbers": [1], "other": [1, 2]}, "other [1, 2]"),
        ({"text": None}, "None"),
        ({"text": "why", "finding": "dead_units:fc"}, "why"),
    ],
)
def test_an_event_with_an_unusual_body_is_shown_all_the_same(tmp_path, capsys, body, below):
    with Writer(tmp_path / "odd") as writer:
        writer.event(4, "odd", body=body)
    assert show(tmp_path, capsys).splitlines()[-1].strip() == below


def test_many_events_are_cut_short_unless_all_are_wanted(tmp_path, capsys):
    with Writer(tmp_path / "loud") as writer:
        for step in range(30):
            writer.event(step, f"kind{step:02}")
    assert "18 more events: --all" in show(tmp_path, capsys)
    assert "kind17" not in show(tmp_path, capsys)
    assert "kind00" in show(tmp_path, capsys, "--all")


def test_events_come_first_if_one_is_an_error_and_the_first_errors_are_among_them(tmp_path, capsys):
    with Writer(tmp_path / "calm") as writer:
        writer.put("Norm", 1, [[1.0]], layers=["fc"], statistics=["Norm/mean"])
        for step in range(30):
            writer.event(step, f"note{step:02}", "warning")
    with Writer(tmp_path / "broken") as writer:
        writer.put("Norm", 1, [[np.nan]], layers=["fc"], statistics=["Norm/mean"])
        for step in range(30):
            writer.event(step, f"note{step:02}", "error" if step in (3, 5) else "warning")
    calm, broken = show(tmp_path, capsys, "calm"), show(tmp_path, capsys, "broken")
    assert calm.index("versions") < calm.index("Norm") < calm.index("note29")
    assert broken.index("note03") < broken.index("note05") < broken.index("note29") < broken.index("versions")
    assert ("note04" in broken, "note19" in broken, "note20" in broken) == (False, False, True)
    assert "18 more events: --all" in broken
    for text in (calm, broken):
        assert text.count("note29") == 1


def test_an_estimate_says_how_far_off_it_may_be(tmp_path, capsys):
    known = [
        Statistic.of("Update Norm", "mean", error=0.011),
        Statistic.of("Correlation", "mean", limits=(-1.0, 1.0), error=0.022),
        Statistic.of("Weight Norm", "mean"),
    ]
    with Writer(tmp_path / "sketched") as writer:
        writer.introduce_statistics("Lens", known)
        writer.put("Lens", 1, [[2.0], [0.5], [3.0]], layers=["fc"], statistics=[one.name for one in known])
    lines = [line.split("|") for line in show(tmp_path, capsys).splitlines() if "mean" in line]
    assert [[cell.strip() for cell in line] for line in lines] == [["layer", "mean ± 1.1 %", "mean ± 0.022", "mean"]]
    statistics = json.loads(show(tmp_path, capsys, "--json"))["lenses"][0]["statistics"]
    assert [one["error"] for one in statistics] == [0.011, 0.022, None]


def test_a_run_without_numbers_says_so(tmp_path, capsys):
    with Writer(tmp_path / "empty"):
        pass
    text = show(tmp_path, capsys)
    assert text.startswith("empty  finished  no steps  0 ticks")
    assert "no numbers yet" in text


def test_json_holds_what_the_reader_gives(folder, capsys):
    facts = json.loads(show(folder, capsys, "--json"))
    with open_run(folder / "first") as run:
        assert (facts["name"], facts["status"], facts["last_step"]) == (run.name, run.status, run.last_step)
        assert facts["layers"] == [layer._asdict() for layer in run.layers]
        assert [event["kind"] for event in facts["events"]] == [event.kind for event in run.events()]
    assert facts["meta"]["config"] == {"lr": 0.1, "inf": "inf"}
    first, second = NAMES
    assert facts["newest"]["Lens [b]"] == {
        "Norm/mean": {first: 0.1, second: "nan"},
        "Norm/max": {first: 20.0, second: "inf"},
        "Norm/nonfinite": {first: 0.0, second: 3.0},
    }
    assert [lens["name"] for lens in facts["lenses"]] == ["Lens [b]", "run"]
    assert facts["size"] == (folder / "first" / "rank0.db").stat().st_size


def crash(folder, name="crashed"):
    """A run that an exception has ended."""

    def train():
        with Writer(folder / name) as writer:
            writer.put("Norm", 1, [[1.0]], layers=["fc"], statistics=["mean"])
            raise RuntimeError("CUDA out of memory\x1b[2J\nTried to allocate 20 MiB")

    with pytest.raises(RuntimeError):
        train()
    return folder


@pytest.mark.parametrize("command", ["show", "top"])
def test_what_ended_a_run_is_shown(tmp_path, capsys, command):
    folder = crash(tmp_path)
    assert cli.main([command, "--runs", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[1] == r"RuntimeError: CUDA out of memory\x1b[2J Tried to allocate 20 MiB"
    assert ("in train" in text) is (command == "show")
    assert "\x1b" not in text
    assert cli.main([command, "--runs", str(folder), "--json"]) == 0
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["type"], error["message"]) == ("RuntimeError", "CUDA out of memory\x1b[2J\nTried to allocate 20 MiB")
    assert error["traceback"][0].startswith("Traceback")


def test_a_run_that_ended_well_has_nothing_to_say(folder, capsys):
    assert json.loads(show(folder, capsys, "--json"))["error"] is None
    assert "Traceback" not in show(folder, capsys)
    assert "writer" not in show(folder, capsys)


DEAD = Finding("dead_units", "error", "fc", 80, 100, "No unit is active.", Remedy("Lower the rate."))
STARVED = Finding("no_gradient", "error", "in", 81, 99, "Nothing arrives.", Remedy(""), caused_by=DEAD.id)
HEALED = Finding("loss_spike", "warning", None, 9, 9, "It jumped.", Remedy("Wait."), resolved_at=12)


def diagnosed(folder, findings):
    """A run in which something was found, of which its events tell, too."""
    with Writer(folder / "sick", meta={"findings": findings, "diagnosis": {"predicted_counts": [1, 2]}}) as writer:
        writer.put("Norm", 100, [[1.0]], layers=["fc"], statistics=["Norm/mean"])
        for found in (DEAD, STARVED, HEALED):
            writer.event(found.detected_at, found.title, found.severity, layer=found.layer)
    return folder


def test_the_verdict_and_first_causes_come_right_after_the_title(tmp_path, capsys):
    findings = [DEAD.to_json(), STARVED.to_json(), HEALED.to_json()]
    text = show(diagnosed(tmp_path, findings), capsys)
    assert text.startswith("sick  finished  step 100")
    assert text.splitlines()[1:7] == [
        "1 problem since step 80",
        "error: dead units in fc since step 80",
        "  No unit is active.",
        "  Try: Lower the rate.",
        "1 more finding: monitorch check",
        "",
    ]
    assert [text.count(one.title) for one in (DEAD, STARVED, HEALED)] == [1, 0, 1]
    assert text.index("versions") < text.index("loss spike")  # now there is no error among the events
    assert "detected_at" not in text
    assert "predicted_counts" not in text
    everything = show(tmp_path, capsys, "--all")
    assert [everything.count(one.title) for one in (DEAD, STARVED, HEALED)] == [2, 1, 1]
    facts = json.loads(show(tmp_path, capsys, "--json"))
    assert (facts["verdict"], facts["findings"]) == ("1 problem since step 80", findings)


def test_a_healthy_run_is_called_so(tmp_path, capsys):
    assert show(diagnosed(tmp_path, []), capsys).splitlines()[1:3] == ["healthy", ""]


@pytest.mark.parametrize("command", ["show", "top"])
@pytest.mark.parametrize(
    "findings",
    [
        None,
        5,
        "bad",
        {"a": 1},
        [5],
        [{}],
        [{**DEAD.to_json(), "severity": "fatal"}],
        [{**DEAD.to_json(), "remedy": {}}],
    ],
    ids=str,
)
def test_a_run_that_was_not_diagnosed_in_words_we_know_is_not_called_healthy(tmp_path, capsys, command, findings):
    folder = diagnosed(tmp_path, findings)
    assert cli.main([command, "--runs", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "healthy" not in text
    assert "dead units" in text  # as an event
    assert cli.main([command, "--runs", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["verdict"], facts["findings"]) == ("not diagnosed", None)


@pytest.mark.parametrize(
    ("edges", "options", "shown", "more"),
    [
        ([[1.0, 2.0], [1.0, 2.0]], (), ["mean"], "2 more columns with the same numbers"),
        ([[1.0, 2.0], [1.0, 3.0]], (), ["mean", "max"], "1 more column with the same numbers"),
        ([[0.5, 2.0], [1.0, 3.0]], (), ["mean", "min", "max"], None),
        ([[np.nan, np.nan], [np.inf, 2.0]], (), ["mean", "min", "max"], None),
        ([[1.0, 2.0], [1.0, 2.0]], ("--all",), ["mean", "min", "max"], None),
        ([[1.0, 2.0], [1.0, 2.0]], ("--statistic", "/min"), ["min"], None),
        ([[1.0, 5.0], [1.0, 5.0]], ("--layers", "fc"), ["mean"], "2 more columns with the same numbers"),
    ],
)
def test_edges_that_are_the_line_itself_are_left_out(tmp_path, capsys, edges, options, shown, more):
    with Writer(tmp_path / "runs" / "a") as writer:
        names = [f"Norm/{line}" for line in ("mean", "min", "max")]
        writer.put("L", 1, [[1.0, 2.0], *edges], layers=["fc", "head"], statistics=names)
    text = show(
        tmp_path / "runs", capsys, "a", *(options if "--statistic" in options else ("--statistic", "n", *options))
    )
    (headings,) = [line for line in text.splitlines() if line.startswith("layer ")]
    assert headings.partition("|")[2].split() == shown
    assert [line for line in text.splitlines() if "more column" in line] == (
        [f"{more}, such as the min of a single sample: --all"] if more else []
    )
