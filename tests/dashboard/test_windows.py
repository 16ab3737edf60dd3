import json
import struct

import numpy as np
import pytest

from monitorch.dashboard.windows import WindowRequest, blocks, pack
from monitorch.errors import OptionError
from monitorch.store import Writer, open_run

RATE = (("Rates", "Rate/value"),)


@pytest.fixture
def run(tmp_path, make_run):
    with open_run(make_run(tmp_path / "first")) as opened:
        yield opened


def test_numbers_come_through_as_they_are(tmp_path, unpacked):
    values = np.float32([[np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38]])
    names = [f"layer{index}" for index in range(6)]
    with Writer(tmp_path / "odd") as writer:
        writer.put("Odd", 7, values, layers=names, statistics=["value"], epoch=2, time=99.5)
    with open_run(tmp_path / "odd") as run:
        (block,) = unpacked(pack(list(blocks(run, WindowRequest((("Odd", "value"),))))))
    assert block["layers"] == names
    assert (block["step"], block["last"], block["epoch"], block["time"]) == (7, 7, 2, 99.5)
    assert block["mean"].T.view(np.uint32).tolist() == values.view(np.uint32).tolist()
    assert block["nonfinite"].ravel().tolist() == [1, 1, 1, 0, 0, 0]


def test_ticks_are_pooled_into_columns(run, unpacked, sample):
    (block,) = unpacked(pack(list(blocks(run, WindowRequest(RATE, ("head", "conv"), first=4, last=15, resolution=3)))))
    wanted = np.array([[sample.rate(layer, step) for step in range(4, 16)] for layer in (4, 0)]).reshape(2, 3, 4)
    assert block["layers"] == ["head", "conv"]
    assert block["step"].tolist() == [4, 8, 12]
    assert block["last"].tolist() == [7, 11, 15]
    for plane, fold in {"mean": np.mean, "minimum": np.min, "maximum": np.max}.items():
        np.testing.assert_allclose(block[plane], fold(wanted, axis=-1), rtol=1e-6)


def test_only_planes_that_are_wanted_travel(run, unpacked):
    (block,) = unpacked(pack(list(blocks(run, WindowRequest(RATE, resolution=3, planes=("maximum",))))))
    assert block["planes"] == ["maximum"]
    (raw,) = unpacked(pack(list(blocks(run, WindowRequest(RATE, planes=("maximum",))))))
    assert (raw["planes"], raw["raw"]) == (["mean"], True)


def test_samples_that_a_mean_leaves_out_are_counted(tmp_path, unpacked):
    with Writer(tmp_path / "counts") as writer:
        for step, count in enumerate([0, 3, 0]):
            names = ["Norm/mean", "Norm/nonfinite"]
            writer.put("Norms", step, [[1.0], [count]], layers=["fc"], statistics=names)
    with open_run(tmp_path / "counts") as run:
        (block,) = unpacked(pack(list(blocks(run, WindowRequest((("Norms", "Norm/mean"),))))))
    assert block["mean"].tolist() == [[1, 1, 1]]
    assert block["nonfinite"].tolist() == [[0, 3, 0]]


def test_layers_that_a_lens_does_not_know_are_left_out(run):
    assert list(blocks(run, WindowRequest((("run", "Loss/train_loss mean"),), ("conv",)))) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (WindowRequest((("Nothing", "Rate/value"),)), "lens='Nothing' is unknown; choose from 'Rates'"),
        (WindowRequest((("Rates", "Nothing"),)), "statistic='Nothing' is unknown; choose from 'Rate/value'"),
        (WindowRequest(RATE, resolution=0), "resolution=0 must be a number of columns from 1 to 4000"),
        (WindowRequest(RATE, resolution=4001), "resolution=4001 must be"),
        (
            WindowRequest(RATE, planes=("median",)),
            "plane='median' is unknown; choose from 'mean', 'minimum', 'maximum'",
        ),
    ],
)
def test_a_wrong_question_is_told_the_right_ones(run, wrong, message):
    with pytest.raises(OptionError, match=message):
        list(blocks(run, wrong))


@pytest.mark.parametrize("length", range(1, 18))
def test_numbers_lie_where_a_browser_can_read_them(tmp_path, unpacked, length):
    """Typed arrays begin at multiples of the size of their numbers, however long the names before them are."""
    layer = "é" * (length % 3) + "n" * length
    with Writer(tmp_path / "run") as writer:
        for step in range(5):
            writer.put("Norms", step, [[step], [1.0]], layers=[layer], statistics=["Norm/mean", "Rate/mean"], epoch=2)
    with open_run(tmp_path / "run") as run:
        body = pack(list(blocks(run, WindowRequest((("Norms", "Norm/mean"), ("Norms", "Rate/mean"))))))
    (header,) = struct.unpack_from("<I", body)
    assert (4 + header) % 8 == 0
    assert json.loads(body[4 : 4 + header])["blocks"][0]["layers"] == [layer]
    first, second = unpacked(body)
    assert first["step"].tolist() == second["last"].tolist() == [0, 1, 2, 3, 4]
    assert (first["epoch"].tolist(), first["mean"].tolist(), second["mean"].tolist()) == (
        [2] * 5, [[0, 1, 2, 3, 4]], [[1] * 5],
    )  # fmt: skip
