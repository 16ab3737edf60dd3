from monitorch.cli.summary import summary_text
from monitorch.visualizer import Record


def record(tag, layer, value, statistic="mean", nonfinite=0):
    return Record(7, 1, 0.0, 0, "Lens", layer, tag, statistic, value, nonfinite)


def rows(text):
    """Layer -> its cells, as words."""
    return {line.split("|")[0].strip(): line.partition("|")[2].replace("|", " ").split() for line in text.splitlines()}


def test_row_holds_the_numbers_of_its_layer():
    text = summary_text(
        [
            record("Weight Norm", "up", 4.0),
            record("Weight Norm", "up", 9.0, statistic="+σ"),
            record("Weight Cond", "up", 12.5),
            record("Weight Gradient Norm", "up", 0.25),
            record("Weight Update Ratio", "up", 0.005),
            record("Output Norm", "up", 8.0),
            record("Output Activations", "relu", 0.375, "activation_rate"),
            record("Output Activations", "relu", 0.0625, "death_rate"),
        ],
        ["", "up", "relu"],
        width=80,
    )
    assert rows(text)["up"] == ["4.000", "12.50", "0.2500", "0.005000", "8.000"]
    assert rows(text)["relu"] == ["37.5%", "6.2%"]
    assert rows(text)["layer"] == ["norm", "cond", "norm", "/weight", "norm", "active", "dead"]


def test_layers_are_in_the_order_given_and_those_without_numbers_left_out():
    records = [record("Output Norm", layer, 1.0) for layer in ("c", "a", "b")]
    assert list(rows(summary_text(records, ["", "b", "x", "a", "c"], 80)))[3:] == ["b", "a", "c"]


def test_samples_that_were_not_finite_are_marked():
    text = summary_text([record("Weight Gradient Norm", "up", 2.0, nonfinite=3)], ["up"], 80)
    assert rows(text)["up"] == ["2.000", "!3"]


def test_narrow_terminal_gets_further_blocks():
    records = [record(tag, "up", 1.0) for tag in ("Weight Norm", "Weight Gradient Norm", "Output Norm")]
    text = summary_text(records, ["up"], width=30)
    assert max(map(len, text.splitlines())) <= 30
    assert [line.split()[2:] for line in text.splitlines() if line.startswith("up ")] == [
        ["1.000", "|", "1.000"],
        ["1.000"],
    ]
