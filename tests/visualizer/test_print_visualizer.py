import io
import math
import re

import pytest

from monitorch.visualizer import PlayerVisualizer, PrintVisualizer, Record, RecorderVisualizer, TagAttributes, TagType

NUMERICAL, PROBABILITY, RELATIONS = TagType.NUMERICAL, TagType.PROBABILITY, TagType.RELATIONS


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


def attributes(tag_type, big_plot=False):
    return TagAttributes(logy=False, big_plot=big_plot, annotate=True, type=tag_type)


def record(tag, layer, statistic, value, epoch=3, step=7, nonfinite=0, **what):
    return Record(step, epoch, 0.0, 0, "Lens", layer, tag, statistic, value, nonfinite, **what)


def edge(tag, layer, statistic, value, **what):
    return record(tag, layer, statistic, value, role="edge", **what)


def printed(records, tags=None, **options):
    file = io.StringIO()
    visualizer = PrintVisualizer(file=file, **options)
    for tag, tag_attributes in (tags or {}).items():
        visualizer.register_tags(tag, tag_attributes)
    visualizer.write(records)
    visualizer.flush()
    return file.getvalue()


def test_one_tick_is_one_table():
    tags = {
        "Loss": attributes(NUMERICAL, big_plot=True),
        "Output Activations": attributes(PROBABILITY),
        "Warning Output Activations": attributes(PROBABILITY, big_plot=True),
        "Output Norm": attributes(NUMERICAL),
        "Mean Output Norm Comparison": attributes(RELATIONS, big_plot=True),
        "In_Proj_Weight Gradient Correlation": attributes(NUMERICAL),
    }
    warning, shares = "Warning Output Activations", "Mean Output Norm Comparison"
    records = [
        record("Loss", "Loss", "train_loss mean", 0.25, curve="train_loss"),
        edge("Loss", "Loss", "train_loss -σ", 0.2, curve="train_loss"),
        edge("Loss", "Loss", "train_loss +σ", 0.3, curve="train_loss"),
        record("Output Activations", "relu", "activation_rate", 0.75),
        record("Output Activations", "relu", "death_rate", 0.0),
        record(warning, warning, "worst activation_rate", 0.75),
        record(warning, warning, "worst death_rate", 0.0),
        record("Output Norm", "fc", "mean", 1.5, nonfinite=3),
        edge("Output Norm", "fc", "min", 1.0),
        edge("Output Norm", "fc", "max", 2.0),
        record("Output Norm", "relu", "mean", math.nan),
        record(shares, shares, "fc", 0.4),
        record(shares, shares, "relu", 0.6),
        record("In_Proj_Weight Gradient Correlation", "fc", "mean", -0.5),
    ]
    assert printed(records, tags).splitlines() == [
        "epoch 3 | Loss: train_loss 0.2500 | Output Activations: worst active 0.7500, worst dead 0",
        "      | output                        | in_proj_weight grad",
        "layer | active  dead      norm  share |                corr",
        "------+-------------------------------+--------------------",
        "fc    |               1.500 !3  40.0% |             -0.5000",
        "relu  | 0.7500     0    NaN     60.0% |",
        "!n: n samples were NaN or infinite and are not in the number",
        "",
    ]


@pytest.mark.parametrize(
    ("lines", "edges", "ranges", "shown"),
    [
        (["mean"], ["-σ", "+σ", "min", "max"], False, ["norm"]),
        (["mean"], ["-σ", "+σ"], True, ["norm", "norm -σ", "norm +σ"]),
        (["median"], ["Q1", "Q3"], False, ["norm median"]),
        (["mean", "max"], [], False, ["norm", "norm max"]),
        (["min", "max"], [], False, ["norm min", "norm max"]),  # lines are no band, whatever they are called
        (["max"], ["min", "max"], False, ["norm max"]),  # a line that is also the edge of a band
        ([], ["min", "max"], False, ["norm min", "norm max"]),  # a plot of nothing but a band
        (["mean"], ["p5", "p95"], False, ["norm"]),  # a band of one's own
    ],
)
def test_lines_are_columns_and_bands_an_option(lines, edges, ranges, shown):
    records = [record("Output Norm", "fc", name, 1.0) for name in lines]
    text = printed([*records, *(edge("Output Norm", "fc", name, 1.0) for name in edges)], ranges=ranges)
    assert re.split("  +", text.splitlines()[2].split(" | ")[1].strip()) == shown


@pytest.mark.parametrize(
    ("tag", "heading"),
    [
        ("Weight Norm Comparison", ("weight", "share")),
        ("Bias Log Norm Comparison", ("bias", "share")),
        ("Median Output Norm Comparison", ("output", "share")),
        ("Output Energy Comparison", ("output", "energy share")),
        ("Comparison", ("", "share")),
    ],
)
def test_shares_stand_beside_their_norm(tag, heading):
    text = printed([record(tag, tag, "fc", 0.5)], {tag: attributes(RELATIONS, big_plot=True)})
    _, title, names, _, cells, _ = text.splitlines()
    assert (title.strip(" |"), names.split(" | ")[1].strip(), cells.split(" | ")[1].strip()) == (*heading, "50.0%")


def test_unknown_tags_are_shown_too():
    text = printed([record("Sparsity", "fc", "mean", 0.5), record("Total", "Total", "mean", 2.0)])
    assert text.startswith("epoch 3 | Total: mean 2.000\n")
    assert "layer | sparsity" in text


def test_nothing_is_printed_before_the_tick_is_complete(capsys):
    visualizer = PrintVisualizer()
    visualizer.register_tags("Output Norm", attributes(NUMERICAL))
    visualizer.write([record("Output Norm", "fc", "mean", 1.0)])
    visualizer.write([])
    assert capsys.readouterr().out == ""
    visualizer.flush()
    assert capsys.readouterr().out.count("epoch 3") == 1
    visualizer.flush()
    visualizer.close()
    assert capsys.readouterr().out == ""


def test_close_prints_what_is_left(capsys):
    visualizer = PrintVisualizer()
    visualizer.write([record("Output Norm", "fc", "mean", 1.0)])
    visualizer.close()
    assert "1.000" in capsys.readouterr().out


def test_a_newer_tick_prints_the_finished_one():
    file = io.StringIO()
    visualizer = PrintVisualizer(file=file)
    visualizer.plot_numerical_values(1, "Output Norm", {"fc": {"mean": 1.0}}, {"fc": {("-σ", "+σ"): (0.0, 2.0)}})
    visualizer.plot_probabilities(1, "Output Activations", {"relu": {"activation_rate": 0.5}})
    assert file.getvalue() == ""
    visualizer.plot_numerical_values(2, "Output Norm", {"fc": {"mean": 3.0}})
    assert file.getvalue().count("epoch") == 1
    assert "0.5000" in file.getvalue()
    visualizer.flush()
    assert "3.000" in file.getvalue()


@pytest.mark.parametrize("moments", [[(1, 1), (2, 2)], [(1, 1), (1, 2)], [(2, 2), (1, 1)]])
def test_ticks_in_one_list_are_tables_of_their_own(moments):
    text = printed([record("Output Norm", "fc", "mean", step, epoch, step) for epoch, step in moments])
    assert [line for line in text.splitlines() if "epoch" in line] == [f"epoch {epoch}" for epoch, _ in moments]
    assert [f"{step}.000" in text for _, step in moments] == [True, True]


def test_rows_keep_their_order_from_tick_to_tick():
    file = io.StringIO()
    visualizer = PrintVisualizer(file=file)
    for epoch, layers in enumerate([["relu", "head"], ["stem", "relu", "fc", "head"], ["fc", "stem"]]):
        visualizer.write([record("Output Norm", layer, "mean", 1.0, epoch) for layer in layers])
    visualizer.flush()
    rows = [line.split()[0] for line in file.getvalue().splitlines() if line.endswith("1.000")]
    assert rows == ["relu", "head", "stem", "relu", "fc", "head", "stem", "fc"]


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_no_line_is_wider_than_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    tags = [f"{parameter} {what}" for parameter in ("Weight", "Bias") for what in ("Norm", "Gradient Norm", "Cond")]
    records = [record(tag, f"layer.{i}", "mean", 0.00123, nonfinite=i) for tag in tags for i in range(30)]
    lines = printed(records).splitlines()
    assert max(map(len, lines[:-2])) <= columns  # the last ones are the meaning of the mark and an empty line


def test_standard_output_is_looked_up_when_printing(monkeypatch):
    visualizer = PrintVisualizer()
    visualizer.write([record("Output Norm", "fc", "mean", 1.0)])
    later = io.StringIO()
    monkeypatch.setattr("sys.stdout", later)
    visualizer.flush()
    assert "epoch 3" in later.getvalue()


def test_a_terminal_without_sigma_gets_a_question_mark():
    raw = io.BytesIO()
    visualizer = PrintVisualizer(ranges=True, file=io.TextIOWrapper(raw, encoding="ascii"))
    visualizer.write([record("Output Norm", "fc", name, 1.0) for name in ("-σ", "+σ")])
    visualizer.flush()
    assert b"norm -?  norm +?" in raw.getvalue()


def test_a_recording_can_be_printed(tmp_path):
    with RecorderVisualizer(tmp_path / "run.jsonl") as recorder:
        recorder.register_tags("Weight Norm Comparison", attributes(RELATIONS, big_plot=True))
        for epoch in (1, 2):
            recorder.plot_numerical_values(epoch, "Weight Norm", {"fc": {"mean": math.inf}})
            recorder.plot_relations(epoch, "Weight Norm Comparison", {"Weight Norm Comparison": {"fc": epoch / 4}})
    file = io.StringIO()
    PlayerVisualizer(recorder.filepath, PrintVisualizer(file=file)).playback()
    assert [line for line in file.getvalue().splitlines() if line.startswith(("epoch", "fc"))] == [
        "epoch 1",
        "fc    |  Inf  25.0%",
        "epoch 2",
        "fc    |  Inf  50.0%",
    ]


@pytest.mark.parametrize(("axis", "heading"), [("epoch", "epoch 3"), ("step", "step 7"), ("tick", "tick 3")])
def test_the_heading_says_what_ticks_are_counted_in(axis, heading):
    file = io.StringIO()
    visualizer = PrintVisualizer(file=file)
    visualizer.begin_tick(3, 7, axis)
    visualizer.write([record("Norm", "fc", "mean", 1.0)])
    visualizer.flush()
    assert file.getvalue().splitlines()[0] == heading


def test_a_recording_of_steps_is_played_as_steps(tmp_path):
    with RecorderVisualizer(tmp_path / "run") as recorder:
        for epoch, step in ((1, 10), (2, 10), (3, 25)):
            recorder.begin_tick(epoch, step, "step")
            recorder.plot_probabilities(epoch, "Rates", {"fc": {"death_rate": 0.5}})
    file = io.StringIO()
    PlayerVisualizer(tmp_path / "run", PrintVisualizer(file=file)).playback()
    headings = [line for line in file.getvalue().splitlines() if line.startswith("step")]
    assert headings == ["step 10", "step 10", "step 25"]
