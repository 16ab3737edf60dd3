"""Options of trackers, histograms, and trackers by name."""

import subprocess
import sys

import numpy as np
import pytest

from monitorch.errors import MissingExtraError, OptionError
from monitorch.visualizer import trackers
from monitorch.visualizer.trackers import TRACKERS, Tracker, trackers_from
from monitorch.visualizer.trackers.tracker import Histogram, package
from tests.visualizer.trackers.kept import KeptTracker


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_ticks": 0}, "every_ticks=0 must be a whole number, at least 1"),
        ({"every_ticks": True}, "every_ticks=True"),
        ({"every_ticks": 1.5}, "every_ticks=1.5"),
        ({"every_seconds": -1}, "every_seconds=-1 must be a number of seconds, at least 0"),
        ({"every_seconds": float("nan")}, "every_seconds=nan"),
        ({"every_seconds": "5"}, "every_seconds='5'"),
        ({"include": "("}, r"include='\(' must be a regular expression"),
        ({"histograms": 3}, "histograms=3 must be a regular expression"),
    ],
)
def test_bad_options_are_refused_with_what_is_right(options, message):
    with pytest.raises(OptionError, match=message):
        KeptTracker(**options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("wandbb", "trackers='wandbb' is unknown; choose from 'tensorboard', 'wandb', 'mlflow', 'trackio'"),
        (["tensorboard", "nothing"], "trackers='nothing' is unknown"),
        (3, "trackers=3 must be a name, a tracker, or a list"),
        ([3], "3 is not a tracker; choose from 'tensorboard'"),
        ([KeptTracker], r"is not a tracker: write KeptTracker\(\)"),
    ],
)
def test_what_is_no_tracker_is_refused_with_the_choices(given, message):
    with pytest.raises(OptionError, match=message):
        trackers_from(given)


def test_trackers_are_given_by_name_as_objects_or_both():
    own = KeptTracker()
    assert trackers_from(own) == [own]
    assert trackers_from(()) == []
    made, same = trackers_from(("tensorboard", own))
    assert (type(made).__name__, same) == ("TensorBoardTracker", own)


def test_every_known_tracker_is_exported_and_a_tracker():
    for name in TRACKERS.values():
        assert issubclass(getattr(trackers, name), Tracker)
    assert {*TRACKERS.values(), "Tracker", "TrackerVisualizer"} == set(trackers.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = trackers.Nonsense


def test_a_missing_package_is_named_with_the_pip_line():
    with pytest.raises(MissingExtraError, match=r"KeptTracker needs the package 'no_such': pip install 'monitorch\[no"):
        package("no_such", KeptTracker())


def test_nothing_of_a_tracker_is_imported_before_it_is_asked_for():
    code = "import sys, monitorch.visualizer.trackers as t; print({'torch', *t.TRACKERS} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("bins", [1, 7, 64])
def test_even_bins_have_the_same_elements_in_the_same_places(bins):
    values = np.random.default_rng(0).standard_normal(100_000)
    edges = np.sort(np.concatenate([np.linspace(-6, 6, 401), [-100, 100]]))
    even = Histogram(edges, np.histogram(values, edges)[0]).even(bins)
    assert even.counts.sum() == 100_000
    assert len(even.counts) == bins
    assert even.edges[0] <= values.min()
    assert even.edges[-1] >= values.max()
    oracle = np.histogram(values, even.edges)[0]
    assert np.abs(np.cumsum(even.counts) - np.cumsum(oracle)).max() < 0.02 * 100_000


def test_a_histogram_of_nothing_stays_one():
    assert Histogram(np.arange(4.0), np.zeros(3, np.int64)).even(2).counts.tolist() == [0, 0]
