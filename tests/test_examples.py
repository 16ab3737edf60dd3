"""Every example runs, leaves its figure, and shows what it says."""

import io
import runpy
from contextlib import redirect_stdout
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


pytestmark = pytest.mark.xdist_group("examples")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What each example returned, printed and left; it runs once."""
    known = {}

    def run(path):
        if path not in known:
            folder, printed = tmp_path_factory.mktemp(path.stem), io.StringIO()
            with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
                patch.chdir(folder)
                known[path] = runpy.run_path(str(path))["main"](), printed.getvalue(), folder
        return known[path]

    return run


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_a_table_and_leaves_a_figure(path, ran):
    _, printed, folder = ran(path)
    assert len(printed.splitlines()) > 4
    assert [left.name for left in folder.iterdir()] == [f"{path.stem}.png"]
    assert (folder / f"{path.stem}.png").stat().st_size > 10_000


def test_statistics_drift_faster_after_the_change(ran):
    first, second, third = ran(EXAMPLES[0].with_name("batchnorm_drift.py"))[0].values()
    assert first < 2 < min(second, third)


def test_traces_follow_the_spikes(ran):
    monitors = ran(EXAMPLES[0].with_name("leaky_integrate_and_fire.py"))[0]
    spikes, nearest, cumulative = (monitors[name].dump() for name in ("spikes", "nearest", "cumulative"))
    assert (nearest[spikes > 0] == 1).all()
    assert (cumulative >= nearest).all()
    assert monitors["silence"].latest.tolist() == [
        float(column.nonzero()[0]) if column.any() else float("inf") for column in spikes.T
    ]
