import re

import numpy as np
import pytest

from monitorch.errors import StoreError
from monitorch.store import Event, Layer, Statistic, Writer, open_run
from monitorch.store.frame_log import FIRST_LINE, FrameLog, FullError, LogReader
from monitorch.store.types import Frame, Looks, Meta, ModelLayers, PackedHistograms, Segment


def frame(step, layers=("a", "b")):
    values = np.arange(len(layers), dtype=np.float32)[None] + step
    return Frame("Norm", step, 1, 2.5, ("mean",), layers, values)


OPERATIONS = [
    Meta({"config": {"lr": 0.1}}),
    ModelLayers((Layer("a", "Linear", 3), Layer("b"))),
    Looks("Norm", (Statistic("mean", "log"),)),
    frame(1),
    frame(2),
    PackedHistograms("Norm", "Shape", 2, b"edges", bytes(range(9))),
    Event(2, "spike", "warning", body={"a": 1}),
    PackedHistograms("Norm", "Shape", 3, b"edges", b"\x00"),
    PackedHistograms("Norm", "Shape", 3, b"others", b""),
    frame(3, ("a", "b", "c")),
    Segment(1, 4.0),
    frame(2),
]


def plain(operations):
    return [[part.tolist() if isinstance(part, np.ndarray) else part for part in operation] for operation in operations]


@pytest.fixture
def log(tmp_path):
    log = FrameLog(tmp_path / "rank0.log", None)
    for operation in OPERATIONS:
        log.write([operation])
    log.close()
    return log.path


def test_operations_come_back(log):
    found = list(LogReader(log).operations())
    assert [type(operation) for operation in found] == [type(operation) for operation in OPERATIONS]
    assert plain(found) == plain(OPERATIONS)


def test_a_log_that_was_full_once_stores_no_more_numbers_though_fewer_would_fit(tmp_path):
    log = FrameLog(tmp_path / "rank0.log", 3000)
    log.write([frame(1)])
    with pytest.raises(FullError, match="has reached max_size=3000"):
        log.write([frame(step) for step in range(2, 200)])
    for _ in range(2):
        with pytest.raises(FullError):
            log.write([frame(200)])
        log.write([Event(200, "late")])
    log.close()
    assert [type(operation) for operation in LogReader(log.path).operations()] == [Frame, Event, Event]


def test_log_that_is_cut_anywhere_has_all_complete_operations_and_can_be_continued(log):
    data = log.read_bytes()
    reader, ends = LogReader(log), []
    for _ in reader.operations():
        ends.append(reader.offset)
    near_ends = {end + offset for end in ends for offset in (-1, 0, 1, 11, 12, 13) if end + offset <= len(data)}
    for size in sorted({*range(0, len(data), 40), *near_ends}):
        log.write_bytes(data[:size])
        complete = sum(end <= size for end in ends)
        assert plain(LogReader(log).operations()) == plain(OPERATIONS[:complete])
        again = FrameLog(log, None)
        again.write([frame(9)])
        again.close()
        assert plain(LogReader(log).operations()) == plain([*OPERATIONS[:complete], frame(9)])


@pytest.mark.parametrize("offset", [3, 5, 9, 60, 500])
def test_damage_in_the_middle_is_named(log, offset):
    data = bytearray(log.read_bytes())
    data[len(FIRST_LINE) + offset] ^= 1
    log.write_bytes(data)
    with pytest.raises(StoreError, match=r"rank0\.log is damaged at byte \d+: cut there, it can be read") as caught:
        list(LogReader(log).operations())
    byte = int(re.search(r"byte (\d+)", str(caught.value))[1])
    log.write_bytes(data[:byte])
    found = plain(LogReader(log).operations())
    assert found == plain(OPERATIONS[: len(found)])


def test_foreign_file_is_named(tmp_path):
    path = tmp_path / "rank0.log"
    path.write_text("epoch 1: loss 0.5\n")
    for open_ in (lambda: open_run(path), lambda: Writer(tmp_path, resume=True)):
        with pytest.raises(StoreError, match=r"rank0\.log is not a log of monitorch"):
            open_()
