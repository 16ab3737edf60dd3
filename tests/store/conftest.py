"""Runs of known numbers, and what a reader should make of them."""

import subprocess

import numpy as np
import pytest

from monitorch.store import Writer, open_run

STATISTICS = ("mean", "max")


def oracle_columns(numbers, begin, end):
    """Mean, lowest, highest of the finite ones and the count of the others: ``numbers[tick, layer]`` by column."""
    for first, last in zip(begin, end, strict=True):
        part = numbers[first : last + 1].astype(np.float64)
        finite = np.isfinite(part)
        none = ~finite.any(0)
        shown = np.where(finite, part, 0)
        mean = np.where(none, np.nan, shown.sum(0) / np.maximum(finite.sum(0), 1))
        low = np.where(none, np.nan, np.where(finite, part, np.inf).min(0))
        high = np.where(none, np.nan, np.where(finite, part, -np.inf).max(0))
        yield mean, low, high, (~finite).sum(0)


@pytest.fixture
def oracle():
    return oracle_columns


@pytest.fixture(scope="session")
def numbers():
    """Numbers ``[tick, statistic, layer]`` with some that are not finite, the same ones every time."""

    def make(ticks, layers=3):
        stream = np.random.default_rng(ticks + layers)
        made = (stream.normal(size=(ticks, 2, layers)) * 10.0 ** stream.integers(-9, 9, (1, 2, layers))).astype(
            np.float32
        )
        places = stream.random(made.shape)
        made[places < 0.01], made[(places > 0.01) & (places < 0.015)], made[places > 0.995] = np.nan, np.inf, -np.inf
        return made

    return make


@pytest.fixture(scope="session")
def names():
    return lambda layers: [f"layer{number}" for number in range(layers)]


@pytest.fixture(scope="session")
def put(names):
    """Store ``values[tick, statistic, layer]`` under steps that begin with ``first``."""

    def store(writer, values, first=0, lens="Norm", stride=1):
        for tick, frame in enumerate(values):
            step = first + stride * tick
            moment = {"epoch": step // 10, "time": 1e9 + step}
            while not writer.put(lens, step, frame, layers=names(frame.shape[1]), statistics=STATISTICS, **moment):
                writer.flush()

    return store


@pytest.fixture
def stored(tmp_path, put):
    """Make a finished run of ``values`` and open it."""
    opened = []

    def make(values, name="run", **options):
        with Writer(tmp_path / name, **options) as writer:
            put(writer, values)
        opened.append(open_run(tmp_path / name))
        return opened[-1]

    yield make
    for run in opened:
        run.close()


@pytest.fixture
def assert_window():
    """Compare a window of all layers with ``expected[tick, layer]``, whose steps are the ticks."""

    def check(window, expected, first, last, resolution):
        begin, end = window.axis.step, window.last_step
        assert len(begin) <= resolution
        assert (begin[0], end[-1]) == (first, last)
        assert (begin[1:] == end[:-1] + 1).all()
        single = begin == end
        for column, (mean, low, high, nonfinite) in enumerate(oracle_columns(expected, begin, end)):
            if single[column]:
                mean = low = high = expected[begin[column]]
            rounding = 3e-7 * np.nan_to_num(np.maximum(np.abs(low), np.abs(high)), posinf=0)
            np.testing.assert_array_equal(np.isfinite(window.mean[:, column]), np.isfinite(mean))
            finite = np.isfinite(mean)
            assert (np.abs(window.mean[finite, column] - mean[finite]) <= rounding[finite]).all()
            np.testing.assert_array_equal(window.minimum[:, column], low)
            np.testing.assert_array_equal(window.maximum[:, column], high)
            np.testing.assert_array_equal(window.nonfinite[:, column], nonfinite)

    return check


@pytest.fixture
def mount(tmp_path):
    """Mount a small file system in memory, where that is allowed."""
    mounted = []

    def make(*options):
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", folder]
        try:
            subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("may not mount a file system here")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def one():
    """Store one number."""
    return lambda writer, step, value=1.0: writer.put("Norm", step, [[value]], layers=["fc"], statistics=["mean"])


@pytest.fixture
def values_of():
    """The numbers that ``one`` stored."""

    def read(folder):
        with open_run(folder) as run:
            return run.series("Norm", "mean", "fc").values.tolist()

    return read
