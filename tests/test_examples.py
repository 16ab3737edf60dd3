"""Every example runs, leaves its figure, and shows what it says."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda path: runpy.run_path(str(path))["main"]()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_a_table_and_leaves_a_figure(path, run, capsys):
    run(path)
    assert len(capsys.readouterr().out.splitlines()) > 4
    assert Path(f"{path.stem}.png").stat().st_size > 10_000
    assert [left.name for left in Path().iterdir()] == [f"{path.stem}.png"]


def test_statistics_drift_faster_after_the_change(run):
    first, second, third = run(EXAMPLES[0].with_name("batchnorm_drift.py")).values()
    assert first < 2 < min(second, third)


def test_traces_follow_the_spikes(run):
    monitors = run(EXAMPLES[0].with_name("leaky_integrate_and_fire.py"))
    spikes, nearest, cumulative = (monitors[name].dump() for name in ("spikes", "nearest", "cumulative"))
    assert (nearest[spikes > 0] == 1).all()
    assert (cumulative >= nearest).all()
    assert monitors["silence"].latest.tolist() == [
        float(column.nonzero()[0]) if column.any() else float("inf") for column in spikes.T
    ]
