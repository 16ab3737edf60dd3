"""Arrays of numbers as records and as dictionaries, and records as arrays again."""

import math

import numpy as np
import pytest

from monitorch.statistic import Statistic, edges
from monitorch.visualizer import Record, TagAttributes, TagType
from monitorch.visualizer.frame import Moment, TagFrame, frames_of

MOMENT = Moment(step=7, epoch=2, time=5.0, rank=1, lens="Lens")
LOOK = {"scale": "log", "limits": (0.0, 9.0), "error": 0.022}


def band(tag, name, curve=""):
    return [Statistic.of(tag, text, curve, role="edge", band=name, side=side, **LOOK) for text, side in edges(name)]


def norms():
    """Two layers, of which one has no finite sample; a line, and a band."""
    statistics = (Statistic.of("Norm", "mean", **LOOK), *band("Norm", "std"))
    values = np.array([[2.0, math.nan], [1.0, math.nan], [3.0, math.nan]])
    counts = np.broadcast_to(np.array([0, 4]), (3, 2))
    return TagFrame("Norm", TagType.NUMERICAL, ("fc", "head"), statistics, values, counts, banded=True)


def losses():
    """Two curves of the model as a whole."""
    lines = [Statistic.of("Loss", "mean", curve) for curve in ("train_loss", "val_loss")]
    statistics = (*lines, *band("Loss", "min-max", "train_loss"), *band("Loss", "min-max", "val_loss"))
    values, counts = np.arange(6.0)[:, None], np.array([1, 2, 1, 1, 2, 2])[:, None]
    return TagFrame("Loss", TagType.NUMERICAL, ("Loss",), statistics, values, counts, banded=True)


def rates():
    """Two layers whose second rate is not the same thing."""
    statistics = tuple(Statistic.of("Rates", name) for name in ("activation_rate", "death_rate", "rows_used"))
    values, measured = np.arange(6.0).reshape(3, 2) / 10, np.array([[1, 1], [1, 0], [0, 1]], bool)
    return TagFrame("Rates", TagType.PROBABILITY, ("fc", "table"), statistics, values, None, measured)


def shares():
    statistics = (Statistic.of("Parts", "share", role="share"),)
    return TagFrame("Parts", TagType.RELATIONS, ("fc", "head"), statistics, np.array([[0.25, 0.75]]))


def test_every_number_is_a_record_layer_by_layer_with_all_that_its_statistic_is():
    records = norms().records(MOMENT)
    assert [(record.layer, record.statistic, record.nonfinite) for record in records] == [
        *(("fc", name, 0) for name in ("mean", "-σ", "+σ")),
        *(("head", name, 4) for name in ("mean", "-σ", "+σ")),
    ]
    assert [record.value for record in records[:3]] == [2.0, 1.0, 3.0]
    assert {record[:5] for record in records} == {MOMENT}
    assert [(record.role, record.band, record.side) for record in records[:3]] == [
        ("line", "", ""),
        ("edge", "std", "low"),
        ("edge", "std", "high"),
    ]
    assert {(record.tag, record.limits, record.error) for record in records} == {("Norm", (0.0, 9.0), 0.022)}


def test_records_of_curves_say_which_one_they_belong_to():
    first = [(r.layer, r.statistic, r.curve, r.line, r.label, r.nonfinite) for r in losses().records(MOMENT)][:3]
    assert first == [
        ("Loss", "train_loss mean", "train_loss", "mean", "train_loss", 1),
        ("Loss", "val_loss mean", "val_loss", "mean", "val_loss", 2),
        ("Loss", "train_loss min", "train_loss", "min", "train_loss min", 1),
    ]


def test_record_of_a_share_has_the_layer_as_its_statistic():
    found = [(record.tag, record.layer, record.statistic, record.role) for record in shares().records(MOMENT)]
    assert found == [("Parts", "Parts", "fc", "share"), ("Parts", "Parts", "head", "share")]


@pytest.mark.parametrize(
    ("frame", "lines", "bands", "counts"),
    [
        (norms(), {"fc": ["mean"], "head": ["mean"]}, {"fc": [("-σ", "+σ")], "head": [("-σ", "+σ")]}, {"head": 4}),
        (
            losses(),
            {"Loss": ["train_loss mean", "val_loss mean"]},
            {"Loss": [("train_loss min", "train_loss max"), ("val_loss min", "val_loss max")]},
            {"Loss": 3},
        ),
        (rates(), {"fc": ["activation_rate", "death_rate"], "table": ["activation_rate", "rows_used"]}, None, {}),
        (shares(), {"Parts": ["fc", "head"]}, None, {}),
        (TagFrame.empty("Norm", TagType.NUMERICAL, banded=True), {}, {}, {}),
        (TagFrame.empty("Norm", TagType.NUMERICAL), {}, None, {}),
    ],
    ids=["norms", "losses", "rates", "shares", "empty", "empty without bands"],
)
def test_dictionaries_have_lines_and_bands_apart(frame, lines, bands, counts):
    assert {layer: list(own) for layer, own in frame.lines().items()} == lines
    found = frame.bands()
    assert (None if found is None else {layer: list(own) for layer, own in found.items()}) == bands
    assert frame.nonfinite_by_layer() == counts


def test_numbers_in_dictionaries_are_those_of_their_names():
    assert norms().lines()["fc"] == {"mean": 2.0}
    assert norms().bands()["fc"] == {("-σ", "+σ"): (1.0, 3.0)}
    assert losses().bands()["Loss"][("val_loss min", "val_loss max")] == (4.0, 5.0)
    assert rates().lines()["table"] == {"activation_rate": 0.1, "rows_used": 0.5}
    assert (losses().number("val_loss mean"), math.isnan(losses().number("mean"))) == (1.0, True)


@pytest.mark.parametrize("frame", [norms(), losses(), rates(), shares()], ids=lambda frame: frame.tag)
def test_records_as_arrays_are_the_frame_again(frame):
    records = frame.records(MOMENT)
    attributes = TagAttributes(frame.tag == "Norm", False, True, frame.type)
    ((moment, again),) = frames_of(records, {frame.tag: attributes})
    assert (moment, again.tag, again.type, again.layers) == (MOMENT, frame.tag, frame.type, frame.layers)
    assert [known.parts for known in again.statistics] == [known.parts for known in frame.statistics]
    there = frame.is_measured()
    assert np.array_equal(again.is_measured(), there)
    assert np.array_equal(again.values[there], frame.values[there], equal_nan=True)
    assert np.array_equal(again.counts()[there], frame.counts()[there])


def test_records_of_a_layer_and_of_the_model_are_not_mixed():
    records = [Record(1, 1, 0.0, 0, "L", layer, "Norm", "mean", 1.0) for layer in ("fc", "Norm", "head")]
    assert [frame.layers for _, frame in frames_of(records, {})] == [("fc", "head"), ("Norm",)]
