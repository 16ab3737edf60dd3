import csv
import errno
import io
import json
import sys

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from monitorch import cli
from monitorch.cli.export_sinks import _SINKS
from monitorch.store import Writer, open_run

TICKS = 30
LAYERS = [f"layer{place}" for place in range(9)]


def samples():
    random = np.random.default_rng(5)
    made = {name: random.normal(3, 1, TICKS).astype(np.float32) for name in LAYERS}
    made["layer4"][10:12] = np.nan, np.inf
    made["layer6"][-1] = 500
    return made


@pytest.fixture
def folder(write_run):
    lens = {"Norm/mean": samples(), "Norm/max": samples(), "Norm/nonfinite": {name: np.zeros(TICKS) for name in LAYERS}}
    lens["Norm/nonfinite"]["layer2"][20] = 3
    whole = {"run": {"Loss/loss mean": {"run": np.linspace(1, 2, TICKS)}}}
    return write_run("first", {"Gradients": lens} | whole).parent


def export(folder, to, out, *arguments):
    return cli.main(["export", "first", "--runs", str(folder), "--to", to, "-o", str(out), *arguments])


def csv_rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def csv_series(text):
    """``{(lens, statistic, layer, summary): numbers}``."""
    found = {}
    for row in csv_rows(text):
        key = row["lens"], row["statistic"], row["layer"], row["summary"]
        found.setdefault(key, []).append(float(row["value"]))
    return found


def parquet_series(path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra monitorch[parquet]")
    found = {}
    for row in parquet.read_table(path).to_pylist():
        key = row["lens"], row["statistic"], row["layer"], row["summary"]
        found.setdefault(key, []).append(row["value"])
    return found


def tensorboard_series(path):
    events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_summaries_and_the_worst_layers_by_default(folder, tmp_path):
    assert export(folder, "csv", tmp_path / "x.csv", "--worst", "2") == 0
    found = csv_series((tmp_path / "x.csv").read_text())
    every = np.array([*samples().values()], float)
    finite = np.where(np.isfinite(every), every, np.nan)
    broken = (~np.isfinite(every)).sum(0)
    broken[20] += 3  # samples behind a number that is finite
    expected = {
        "min": np.nanmin(finite, 0),
        "median": np.nanmedian(finite, 0),
        "max": np.nanmax(finite, 0),
        "nonfinite": broken,
    }
    for summary, numbers in expected.items():
        np.testing.assert_allclose(found.pop(("Gradients", "Norm/mean", "", summary)), numbers, rtol=1e-6)
    assert found.keys() == {
        ("Gradients", "Norm/mean", "layer4", ""),
        ("Gradients", "Norm/mean", "layer2", ""),
        ("run", "Loss/loss mean", "run", ""),
    }


@pytest.mark.parametrize(
    ("arguments", "layers", "statistics"),
    [
        (["--all"], {*LAYERS, "run"}, {"Norm/mean", "Norm/max", "Norm/nonfinite", "Loss/loss mean"}),
        (["--layers", "r[12]$"], {"layer1", "layer2"}, {"Norm/mean", "Norm/max", "Norm/nonfinite"}),
        (["--lens", "grad", "--statistic", "mean"], {*LAYERS}, {"Norm/mean"}),
    ],
)
def test_full_series_are_what_the_store_has(folder, tmp_path, arguments, layers, statistics):
    assert export(folder, "csv", tmp_path / "x.csv", *arguments) == 0
    found = csv_series((tmp_path / "x.csv").read_text())
    assert {key[2] for key in found} == layers
    assert {key[1] for key in found} == statistics
    with open_run(folder / "first") as run:
        for (lens, statistic, layer, summary), numbers in found.items():
            assert summary == ""
            expected = run.series(lens, statistic, layer).values
            np.testing.assert_array_equal(np.array(numbers, np.float32), expected)


def test_all_formats_hold_the_same_numbers(folder, tmp_path):
    for to in ("csv", "tensorboard"):
        assert export(folder, to, tmp_path / to) == 0
    text = csv_series((tmp_path / "csv").read_text())
    events = tensorboard_series(tmp_path / "tensorboard")
    tags = {}
    for (lens, statistic, layer, summary), numbers in text.items():
        tag, line = statistic.lower().replace(" ", "_").split("/")
        where = f"over_layers/{line}_{summary}" if summary else line if lens == "run" else f"{layer}/{line}"
        tags[f"{tag}/{where}"] = np.array(numbers, np.float32)
    assert tags.keys() == events.keys()
    for tag, numbers in tags.items():
        np.testing.assert_array_equal(np.array(events[tag], np.float32), numbers)
    assert np.isnan(events["norm/layer4/mean"][10])
    assert np.isinf(events["norm/layer4/mean"][11])


def test_parquet_holds_the_same_numbers(folder, tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra monitorch[parquet]")
    for to in ("csv", "parquet"):
        assert export(folder, to, tmp_path / to, "--all") == 0
    text, columns = csv_series((tmp_path / "csv").read_text()), parquet_series(tmp_path / "parquet")
    assert text.keys() == columns.keys()
    for key, numbers in text.items():
        np.testing.assert_array_equal(np.array(columns[key], np.float32), np.array(numbers, np.float32))


def test_rows_tell_step_epoch_and_time(tmp_path, capsys):
    with Writer(tmp_path / "first") as writer:
        writer.put("L", 7, [[0.1]], layers=["fc"], statistics=["x"], epoch=2, time=12.5)
    assert export(tmp_path, "csv", "-") == 0
    (row,) = csv_rows(capsys.readouterr().out)
    names = {"lens": "L", "statistic": "x", "layer": "fc", "summary": ""}
    assert row == {"step": "7", "epoch": "2", "time": "12.5", **names, "value": "0.1"}


def test_what_was_not_measured_has_no_row(tmp_path, capsys):
    with Writer(tmp_path / "first") as writer:
        writer.put("L", 1, [[1.0, np.nan]], layers=["a", "b"], statistics=["x"])
        writer.put("L", 2, [[2.0]], layers=["b"], statistics=["x"])
    assert export(tmp_path, "csv", "-", "--all") == 0
    rows = [(row["layer"], row["step"], row["value"]) for row in csv_rows(capsys.readouterr().out)]
    assert rows == [("a", "1", "1.0"), ("b", "1", "nan"), ("b", "2", "2.0")]


@pytest.mark.parametrize("to", ["csv", "tensorboard", "parquet"])
def test_any_name_can_be_exported(tmp_path, to):
    if to == "parquet":
        pytest.importorskip("pyarrow", reason="needs the extra monitorch[parquet]")
    name = 'a,"b"\n[red]\x1b größe'
    with Writer(tmp_path / "first") as writer:
        writer.put("L", 1, [[1.0]], layers=[name], statistics=["x"])
    assert export(tmp_path, to, tmp_path / "out") == 0
    if to == "tensorboard":
        assert tensorboard_series(tmp_path / "out") == {f"x/{name.replace(' ', '_')}": [1.0]}
    else:
        read = parquet_series if to == "parquet" else lambda path: csv_series(path.read_text(encoding="utf-8"))
        assert read(tmp_path / "out") == {("L", "x", name, ""): [1.0]}


@pytest.mark.parametrize(("option", "text"), [([], "numbers written to"), (["--json"], '"format": "csv"')])
def test_it_says_how_much_was_written(folder, tmp_path, capsys, option, text):
    assert export(folder, "csv", tmp_path / "new" / "x.csv", *option) == 0
    output = capsys.readouterr().out
    rows = len(csv_rows((tmp_path / "new" / "x.csv").read_text()))
    assert text in output
    assert (json.loads(output)["numbers"] == rows) if option else (f"{rows:,}" in output)


@pytest.mark.parametrize(
    ("to", "out", "arguments", "message"),
    [
        ("csv", "taken", [], "'taken' exists already: choose another -o, or remove it first"),
        ("tensorboard", "taken", [], "'taken' exists already"),
        ("parquet", "-", [], "-o - prints CSV, without --json: name a file for anything else"),
        ("csv", "-", ["--json"], "-o - prints CSV, without --json"),
        ("csv", "new", ["--lens", "xyz"], "--lens xyz matches nothing; there are Gradients, run"),
    ],
)
def test_wrong_options_are_usage_errors_and_leave_nothing(
    folder, tmp_path, monkeypatch, capsys, to, out, arguments, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("precious")
    assert export(folder, to, out, *arguments) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "taken"]
    assert (tmp_path / "taken").read_text() == "precious"


@pytest.mark.parametrize("to", ["csv", "parquet", "tensorboard"])
def test_a_file_for_which_the_disk_has_no_room_leaves_nothing(folder, tmp_path, monkeypatch, capsys, to):
    close = _SINKS[to].close

    def full(sink):
        close(sink)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_SINKS[to], "close", full)
    assert export(folder, to, tmp_path / "x") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize(("to", "package"), [("parquet", "pyarrow"), ("tensorboard", "tensorboard")])
def test_without_the_package_the_error_holds_the_pip_line(folder, tmp_path, monkeypatch, capsys, to, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert export(folder, to, tmp_path / "x") == 1
    line = f"export --to {to} needs the package '{package}': pip install 'monitorch[{to}]'"
    assert capsys.readouterr().err == f"monitorch: error: {line}\n"
    assert not (tmp_path / "x").exists()
