import json

import numpy as np
import pytest

from monitorch import cli
from monitorch.cli.run_difference import relative_difference
from monitorch.store import Writer

TICKS = 40


def numbers(seed=0):
    random = np.random.default_rng(seed)
    layers = {f"layer{place}": random.normal(size=TICKS) for place in range(70)}
    return {"Norm": {"Norm/mean": layers, "Norm/max": {name: 2 * row for name, row in layers.items()}}}


def changed(tick, layer, value, statistic="Norm/mean"):
    found = numbers()
    found["Norm"][statistic] = {name: row.copy() for name, row in found["Norm"][statistic].items()}
    found["Norm"][statistic][layer][tick] = value
    return found


@pytest.fixture
def compare(write_run, capsys):
    """Write two runs and compare them: exit code, and the JSON or text."""

    def run(a, b, *arguments, **options):
        folder = write_run("a", a).parent
        write_run("b", b, **options)
        code = cli.main(["compare", "a", "b", "--runs", str(folder), *arguments])
        output = capsys.readouterr().out
        return code, json.loads(output) if "--json" in arguments else output

    return run


def test_the_same_numbers_are_the_same(compare):
    code, text = compare(numbers(), numbers(), "--tolerance", "0")
    assert code == 0
    assert text == f"a and b are the same within 0 in {2 * 70 * TICKS:,} numbers\n"


def test_first_and_largest_difference_are_found(compare):
    second = changed(11, "layer65", 1000.0)
    second["Norm"]["Norm/mean"]["layer3"][30] = -np.inf
    code, found = compare(numbers(), second, "--json")
    assert code == 1
    assert found["same"] is False
    (part,) = [part for part in found["statistics"] if part["first"]]
    original = numbers()["Norm"]["Norm/mean"]
    assert (part["statistic"], part["compared"], part["beyond"]) == ("Norm/mean", 70 * TICKS, 2)
    assert (part["first"]["step"], part["first"]["layer"], part["first"]["b"]) == (12, "layer65", 1000.0)
    assert np.float32(part["first"]["a"]) == np.float32(original["layer65"][11])
    assert part["first"]["difference"] == pytest.approx(1 - original["layer65"][11] / 1000, rel=1e-5)
    assert (part["largest"]["step"], part["largest"]["layer"], part["largest"]["difference"]) == (31, "layer3", "inf")


def test_text_says_where_they_part(compare):
    code, text = compare(numbers(), changed(4, "layer7", np.nan))
    assert code == 1
    value = numbers()["Norm"]["Norm/mean"]["layer7"][4]
    assert text.startswith(f"a and b first differ at step 5 in layer7: Norm/mean is {value:.3f} and NaN\n")
    assert ["Norm/mean", "5", "layer7", f"{value:.3f}", "NaN", "not", "finite"] in map(str.split, text.splitlines())
    assert "1 other statistic the same within 0.0001" in text


def test_a_model_that_is_a_single_layer_has_a_name(compare):
    _, text = compare({"Norm": {"Norm/mean": {"": [1.0, 2.0]}}}, {"Norm": {"Norm/mean": {"": [1.0, 3.0]}}})
    assert text.startswith("a and b first differ at step 2 in the model: Norm/mean is 2.000 and 3.000")


@pytest.mark.parametrize(("tolerance", "code"), [("1e-2", 0), ("1e-4", 1), ("0", 1)])
def test_tolerance(compare, tolerance, code):
    value = numbers()["Norm"]["Norm/mean"]["layer1"][2]
    assert compare(numbers(), changed(2, "layer1", value * 1.001), "--tolerance", tolerance)[0] == code


def test_nan_and_infinities_are_the_same_as_themselves(compare):
    both = changed(2, "layer1", np.nan)
    both["Norm"]["Norm/mean"]["layer2"][3] = -np.inf
    assert compare(both, both, "--tolerance", "0")[0] == 0


def test_filters_choose_what_is_compared(compare):
    assert compare(numbers(), changed(1, "layer0", 9.0, "Norm/max"), "--statistic", "mean")[0] == 0


def test_speed_is_not_compared(compare):
    speeds = "Logged/samples per second mean"
    first, second = ({"run": {"Loss/x": {"run": [1.0]}, speeds: {"run": [speed]}}} for speed in (3, 4))
    assert compare(first, second)[0] == 0


def test_speed_is_compared_when_asked_for(compare):
    first, second = ({"run": {"Logged/samples per second mean": {"run": [speed]}}} for speed in (3, 4))
    assert compare(first, second, "--statistic", "samples")[0] == 1


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_what_only_one_has_is_a_difference(compare, option):
    second = numbers()
    second["More"] = {"x": {"layer0": np.ones(TICKS)}}
    for layers in second["Norm"].values():
        layers["extra"] = np.ones(TICKS)
    code, found = compare(numbers(), second, *option)
    assert code == 1
    if option:
        assert found["only_b"] == {"lenses": ["More"], "statistics": [], "layers": ["extra"]}
        assert found["only_a"] == {"lenses": [], "statistics": [], "layers": []}
    else:
        assert "where both have numbers, but one has more" in found
        assert "only in b: layers extra" in found


def test_a_layer_that_one_lens_misses_is_named_with_it(compare):
    row = np.ones(3)
    first = {"A": {"x": {"fc": row, "head": row}}, "B": {"y": {"fc": row}}}
    second = {"A": {"x": {"head": row}}, "B": {"y": {"fc": row}, "z": {"fc": row}}}
    code, found = compare(first, second, "--json")
    assert code == 1
    assert found["only_a"]["layers"] == ["fc in A"]
    assert found["only_b"]["statistics"] == ["B/z"]


def test_numbers_are_compared_step_by_step_and_the_others_counted(compare):
    first = {"L": {"x": {"fc": np.arange(1.0, 11.0)}}}  # steps 1 to 10
    second = {"L": {"x": {"fc": np.arange(2.0, 13.0, 2)}}}  # steps 2, 4, ... 12
    code, found = compare(first, second, "--json", every=2)
    assert code == 0
    assert found["ticks"] == {"L": {"both": 5, "only_a": 5, "only_b": 1}}
    assert found["statistics"][0]["compared"] == 5


def test_runs_that_share_no_step_are_not_the_same(compare):
    code, text = compare({"L": {"x": {"fc": [1.0]}}}, {"L": {"x": {"fc": [1.0]}}}, every=100)
    assert code == 1
    assert text.startswith("a and b have nothing in common to compare")


def test_a_number_that_one_run_did_not_measure_is_a_difference(write_run, tmp_path, capsys):
    write_run("a", {"L": {"x": {"fc": [1.0, 2.0], "head": [1.0, 2.0]}}})
    with Writer(tmp_path / "runs" / "b") as writer:
        writer.put("L", 1, [[1.0, 1.0]], layers=["fc", "head"], statistics=["x"])
        writer.put("L", 2, [[2.0]], layers=["head"], statistics=["x"])
    assert cli.main(["compare", "a", "b", "--runs", str(tmp_path / "runs")]) == 1
    assert "first differ at step 2 in fc: x is 2.000 and nothing" in capsys.readouterr().out


def test_several_ticks_at_one_step_belong_together_in_order(tmp_path, capsys):
    for name in ("a", "b"):
        with Writer(tmp_path / name) as writer:
            for value in (1.0, 2.0, 3.0):
                writer.put("L", 5, [[value]], layers=["fc"], statistics=["x"])
    assert cli.main(["compare", "a", "b", "--runs", str(tmp_path)]) == 0
    assert "in 3 numbers" in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["60", "80", "100"])
def test_statistics_and_layers_are_told_apart_on_a_narrow_screen(compare, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    names = [f"Parameter {what} {number}/mean" for what in ("Gradient", "Update") for number in ("Norm", "Correlation")]
    layers = [f"transformer.blocks.{block}.attn.qkv.bias" for block in range(4)]
    first = {"L": {name: {layer: [1.0] for layer in layers} for name in names}}
    second = {
        "L": {
            name: {layer: [2.0 if place == which else 1.0] for which, layer in enumerate(layers)}
            for place, name in enumerate(names)
        }
    }
    _, text = compare(first, second)
    lines = text.splitlines()
    assert max(map(len, lines)) <= int(columns)
    rows = [line for line in lines if "bias" in line and "first differ at" not in line and ":" not in line]
    assert len(rows) == 4
    assert len({line.split()[0] + line.split()[1] for line in rows}) == 4
    assert "Paramet…  " not in text


def test_many_statistics_are_cut_short(compare):
    first = {"L": {f"x{number}": {"fc": [1.0]} for number in range(30)}}
    second = {"L": {f"x{number}": {"fc": [2.0]} for number in range(30)}}
    assert "10 statistics more that differ: --statistic REGEX, or --json" in compare(first, second)[1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a", "none"], 2, "there is no run 'none'"),
        (["a", "odd"], 1, "odd"),
        (["a", "a", "--lens", "xyz"], 2, "--lens xyz matches nothing"),
    ],
)
def test_what_cannot_be_compared_is_an_error(write_run, tmp_path, capsys, arguments, code, message):
    write_run("a", numbers())
    (tmp_path / "runs" / "odd").mkdir()
    (tmp_path / "runs" / "odd" / "rank0.db").write_text("no database at all, but long enough to be read as one")
    assert cli.main(["compare", *arguments, "--runs", str(tmp_path / "runs")]) == code
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""


def test_relative_difference_is_a_share_of_the_larger_number():
    random = np.random.default_rng(1)
    a, b = random.normal(size=(2, 500))
    expected = [abs(x - y) / max(abs(x), abs(y)) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(relative_difference(a, b), expected, rtol=1e-12)
    assert relative_difference(np.zeros(1), np.zeros(1)) == 0


@pytest.mark.parametrize(
    ("ours", "theirs", "settings", "line"),
    [
        ({"config": {"lr": 0.1}}, {"config": {"lr": 0.1}}, {}, None),
        ({"config": {"lr": float("nan")}}, {"config": {"lr": float("nan")}}, {}, None),
        ({"config": {"lr": 0.1}}, {"config": {"lr": 0.2}}, {"config.lr": [0.1, 0.2]}, "config.lr 0.1 and 0.2"),
        (
            {"optimizers": [{"kind": "SGD", "betas": [0.9, 0.99]}]},
            {"optimizers": [{"kind": "Adam", "betas": [0.9, 0.99]}, {"kind": "SGD"}]},
            {"optimizers.0.kind": ["SGD", "Adam"], "optimizers.1.kind": [None, "SGD"]},
            'optimizers.0.kind "SGD" and "Adam", optimizers.1.kind null and "SGD"',
        ),
        ({"script": "\x1b[2J", "heartbeat": 1.0}, {"heartbeat": 2.0}, {"script": ["\x1b[2J", None]}, "script"),
        ({"config": {"lr": float("nan")}}, {"config": {"lr": 5}}, {"config.lr": ["nan", 5]}, "config.lr"),
        ({"config": {}}, {"config": 7}, {"config": [{}, 7]}, "config {} and 7"),
    ],
)
def test_settings_that_differ_are_told_and_are_no_difference(
    write_run, capsys, monkeypatch, ours, theirs, settings, line
):
    monkeypatch.setenv("COLUMNS", "200")
    folder = write_run("a", numbers(), meta=ours).parent
    write_run("b", numbers(), meta=theirs)
    assert cli.main(["compare", "a", "b", "--runs", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == settings
    assert cli.main(["compare", "a", "b", "--runs", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + bool(settings)
    if line is not None:
        assert lines[1].startswith(f"settings that differ: {line}")
        assert "\x1b" not in lines[1]
