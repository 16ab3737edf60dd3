import json

import numpy as np
import pytest

from monitorch import cli
from monitorch.cli.run_difference import relative_difference
from monitorch.diagnosis.history import LOSS, TRAINING
from monitorch.store import Writer
from monitorch.store.samples import SampleArrays

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
        assert "layers only in b: extra" in found


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_layers_that_one_lens_misses_are_listed_once_with_it(compare, option):
    row = np.ones(3)
    layers = {f"fc{number}": row for number in range(10)}
    first = {"A": {name: {**layers, "head": row} for name in "xw"}, "B": {"y": layers}}
    second = {"A": {name: {"head": row} for name in "xw"}, "B": {"y": layers, "z": layers}}
    code, found = compare(first, second, *option)
    assert code == 1
    if option:
        assert found["only_a"] == {"lenses": [], "statistics": [], "layers": [], "layers of A": [*layers]}
        assert found["only_b"]["statistics"] == ["B/z"]
    else:
        assert "layers of A only in a: fc0, fc1, fc2, fc3, fc4, fc5, fc6, fc7 and 2 more" in found.splitlines()


def test_numbers_are_compared_step_by_step_and_the_others_counted(compare):
    first = {"L": {"x": {"fc": np.arange(1.0, 11.0)}}}  # steps 1 to 10
    second = {"L": {"x": {"fc": np.arange(2.0, 13.0, 2)}}}  # steps 2, 4, ... 12
    code, found = compare(first, second, "--json", every=2)
    assert code == 0
    assert found["ticks"] == {"L": {"both": 5, "only_a": 5, "only_b": 1, "apart": 0}}
    assert found["statistics"][0]["compared"] == 5


@pytest.mark.parametrize(
    ("ours", "theirs", "pairs"),
    [
        ([5, 15, 25, 35], [10, 20, 30], [(5, 10), (15, 20), (25, 30)]),
        ([10, 20, 30], [5, 15, 25, 35], [(10, 15), (20, 25), (30, 35)]),
        ([4, 14, 24], [10, 20, 30], [(14, 10), (24, 20)]),
        ([1, 2, 3, 4, 5], [2, 5, 8], [(2, 2), (5, 5)]),
        ([1, 2, 3, 4, 5], [5, 8, 11, 14], [(5, 5)]),
        ([10, 20, 30], [31, 1000, 2000], [(30, 31)]),
        ([1, 2, 3], [100, 200, 300], []),
        ([7], [3, 9, 15], [(7, 9)]),
        ([7], [8], []),
        ([5, 5, 9], [5, 5, 7], [(5, 5), (5, 5)]),
    ],
)
def test_ticks_at_different_steps_are_compared_with_the_nearest(tmp_path, capsys, ours, theirs, pairs):
    for name, steps in (("a", ours), ("b", theirs)):
        with Writer(tmp_path / name) as writer:
            for step in steps:
                writer.put("L", step, [[1.0 + step]], layers=["fc"], statistics=["x"])
    differ = [(a, b) for a, b in pairs if a != b]
    assert cli.main(["compare", "a", "b", "--runs", str(tmp_path), "--json"]) == (1 if differ or not pairs else 0)
    found = json.loads(capsys.readouterr().out)
    left = len(ours) - len(pairs), len(theirs) - len(pairs)
    apart = max((abs(a - b) for a, b in pairs), default=0)
    assert found["ticks"]["L"] == {"both": len(pairs), "only_a": left[0], "only_b": left[1], "apart": apart}
    (part,) = found["statistics"]
    assert (part["compared"], part["beyond"]) == (len(pairs), len(differ))
    if differ:
        (step, step_b), *_ = differ
        share = pytest.approx(abs(step - step_b) / (1 + max(step, step_b)))
        told = {"step": step, "step_b": step_b, "layer": "fc", "a": 1.0 + step, "b": 1.0 + step_b, "difference": share}
        assert part["first"] == told


def test_text_says_how_ticks_at_different_steps_were_compared(write_run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    folder = write_run("a", {"L": {"x": {"fc": [1.0] * 10}}}, every=5).parent  # 5, 10, ... 50
    write_run("b", {"L": {"x": {"fc": [1.0, 1.0, 1.0, 2.0]}}}, every=7)  # 7, 14, 21, 28
    assert cli.main(["compare", "a", "b", "--runs", str(folder)]) == 1
    first, *_, how, why = capsys.readouterr().out.splitlines()
    assert first == "a and b first differ at steps 30 and 28 in fc: x is 1.000 and 2.000"
    assert how == "4 ticks compared with the nearest, at most 2 steps apart, 6 left out of a: L"
    assert why.startswith("where ticks are at different steps, part of a difference is the training between them")


def test_at_different_steps_a_number_that_one_run_did_not_measure_is_no_difference(write_run, tmp_path, capsys):
    write_run("a", {"L": {"x": {"fc": [1.0, 1.0], "head": [1.0, 1.0]}}}, every=10)
    with Writer(tmp_path / "runs" / "b") as writer:
        writer.put("L", 9, [[1.0, 1.0]], layers=["fc", "head"], statistics=["x"])
        writer.put("L", 19, [[1.0]], layers=["head"], statistics=["x"])
    assert cli.main(["compare", "a", "b", "--runs", str(tmp_path / "runs")]) == 0
    assert "in 3 numbers" in capsys.readouterr().out


@pytest.fixture
def compare_losses(tmp_path, capsys):
    """Compare runs that have these training losses, by step, and one tick at their last step; None: no losses."""

    def run(a, b, *arguments):
        for name, losses in (("a", a), ("b", b)):
            with Writer(tmp_path / name) as writer:
                writer.put("run", 10, [[1.0]], layers=["run"], statistics=["Loss/train_loss mean"])
                if losses is not None:
                    steps = np.array([*losses])
                    samples = SampleArrays(steps, np.zeros(len(steps), int), np.array([*losses.values()]))
                    writer.put_samples(LOSS, samples, writer="w", first=0, names=[TRAINING], replaces=False)
        code = cli.main(["compare", "a", "b", "--runs", str(tmp_path), "--json", *arguments])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize(
    ("ours", "theirs", "compared", "parting"),
    [
        ({1: 3.0, 2: 2.0, 3: 1.0}, {1: 3.0, 2: 2.0, 3: 1.0, 4: 0.5}, 3, None),
        ({1: 3.0, 2: 2.0, 3: 1.0}, {1: 3.0, 2: 2.5, 3: 4.0}, 3, (2, 2.0, 2.5, 0.2)),
        ({1: 3.0, 2: np.nan}, {1: 3.0, 2: np.nan}, 2, None),
        ({1: 3.0, 2: np.inf}, {1: 3.0, 2: 2.0}, 2, (2, "nan", 2.0, "inf")),
        ({1: 3.0}, None, None, None),
        (None, None, None, None),
    ],
)
def test_losses_are_compared_at_every_step(compare_losses, ours, theirs, compared, parting):
    code, found = compare_losses(ours, theirs)
    assert code == (1 if parting else 0)
    parts = {part["statistic"]: part for part in found["statistics"]}
    losses = parts.pop("Loss/every step", None)
    assert parts.keys() == {"Loss/train_loss mean"}
    assert (losses and losses["compared"]) == compared
    if parting:
        step, a, b, difference = parting
        told = {"step": step, "step_b": step, "layer": TRAINING, "a": a, "b": b}
        share = losses["first"].pop("difference")
        assert losses["first"] == told
        assert share == (difference if isinstance(difference, str) else pytest.approx(difference))


@pytest.mark.parametrize(
    ("losses", "number", "is_told"),
    [
        ({1: 3.0, 2: 2.0}, 5.0, True),
        ({1: 3.0, 2: 2.5}, 5.0, False),
        (None, 5.0, False),
        ({7: 3.0}, 5.0, False),
        ({1: 3.0, 2: 2.0}, 1.0, False),
    ],
)
def test_text_says_if_losses_are_the_same_and_other_numbers_are_not(
    compare_losses, tmp_path, capsys, monkeypatch, losses, number, is_told
):
    monkeypatch.setenv("COLUMNS", "200")
    compare_losses({1: 3.0, 2: 2.0}, losses)
    for name, value in (("a", 1.0), ("b", number)):
        with Writer(tmp_path / name, resume=True) as writer:
            writer.put("L", 20, [[value]], layers=["fc"], statistics=["x"])
    cli.main(["compare", "a", "b", "--runs", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    told = [place for place, line in enumerate(lines) if line.startswith("training losses are the same at 2 steps; ")]
    assert told == ([1] if is_told else [])


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [(["--statistic", "every step"], ["losses"]), (["--lens", "^run$"], ["run"]), (["--layers", "train"], ["losses"])],
)
def test_losses_are_chosen_like_other_numbers(compare_losses, arguments, chosen):
    _, found = compare_losses({1: 1.0}, {1: 1.0}, *arguments)
    assert [part["lens"] for part in found["statistics"]] == chosen


@pytest.mark.parametrize(("steps", "text"), [(9, "only in A"), (8, "only in B")])
def test_the_largest_difference_says_if_only_one_run_has_the_number(tmp_path, capsys, steps, text):
    for name, missing in (("a", 8), ("b", 9)):
        with Writer(tmp_path / name) as writer:
            for step in (1, steps):
                layers = ["head"] if step == missing else ["fc", "head"]
                writer.put("L", step, [[1.0] * len(layers)], layers=layers, statistics=["x"])
    assert cli.main(["compare", "a", "b", "--runs", str(tmp_path)]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("x ") and line.endswith(text)]


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


@pytest.mark.parametrize(
    ("number", "text"), [(30, "10 more statistics differ"), (21, "1 more statistic differs"), (20, None)]
)
def test_many_statistics_are_cut_short(compare, number, text):
    first, second = ({"L": {f"x{place}": {"fc": [value]} for place in range(number)}} for value in (1.0, 2.0))
    lines = compare(first, second)[1].splitlines()
    assert [line for line in lines if "more statistic" in line] == (
        [f"{text}: --statistic REGEX, or --json"] if text else []
    )


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
