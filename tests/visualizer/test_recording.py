import json
import math
import tempfile
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitorch.visualizer import RecorderVisualizer, TagAttributes, TagType
from monitorch.visualizer.recording import Damage, RecordedCall, read_calls

LINE = b'{"session": "a", "method": "plot_relations", "epoch": 1, "main_tag": "t", "values": {"t": {"fc": 1.0}}}\n'

floats = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e-310])
texts = st.text(st.characters(exclude_categories=()), max_size=8) | st.sampled_from(
    ["a\nb", "a\u2028b", "слой", "\ud800"]
)
lines = st.dictionaries(texts, st.dictionaries(texts, floats, max_size=3), max_size=3)
bands = st.dictionaries(
    texts, st.dictionaries(st.tuples(texts, texts), st.tuples(floats, floats), max_size=2), max_size=3
)
attributes = st.builds(
    TagAttributes,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(TagType),
    st.none() | st.tuples(floats, floats),
    st.booleans(),
)
recorded_calls = st.one_of(
    st.tuples(st.just("register_tags"), texts, attributes),
    st.tuples(st.just("begin_tick"), st.integers(), st.integers(), texts),
    st.tuples(st.just("plot_numerical_values"), st.integers(), texts, lines, st.none() | bands),
    st.tuples(st.sampled_from(["plot_probabilities", "plot_relations"]), st.integers(), texts, lines),
)


def calls_of(recorder):
    return [(call.method, *call.arguments) for call in read_calls(Path(recorder.filepath), recorder.session)]


@settings(deadline=None)
@given(st.lists(recorded_calls, min_size=1, max_size=6))
def test_round_trip_is_exact(calls):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.jsonl")
        with RecorderVisualizer(path) as recorder:
            for method, *arguments in calls:
                getattr(recorder, method)(*arguments)
        # the text of a float tells all floats apart, even NaN and -0.0
        assert repr(calls_of(recorder)) == repr(calls)
        assert all(json.loads(line, parse_constant=pytest.fail) for line in path.read_text("utf-8").split("\n")[:-1])


def test_numbers_are_taken_at_once_and_as_floats(tmp_path):
    values = {"fc": {"mean": numpy.float32(0.5)}}
    with RecorderVisualizer(tmp_path / "run.jsonl") as recorder:
        recorder.plot_probabilities(numpy.int64(1), "Rates", values)
        values["fc"]["mean"] = 9
    assert calls_of(recorder) == [("plot_probabilities", 1, "Rates", {"fc": {"mean": 0.5}})]


def test_ranges_may_be_left_out(tmp_path):
    with RecorderVisualizer(tmp_path / "run.jsonl") as recorder:
        recorder.plot_numerical_values(1, "Norm", {"fc": {"mean": 1.0}})
    assert calls_of(recorder) == [("plot_numerical_values", 1, "Norm", {"fc": {"mean": 1.0}}, None)]


@pytest.mark.parametrize(
    "damaged",
    [
        b"garbage",
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'["a"]',
        b'{"session": "a"}',
        b'{"method": "plot_relations"}',
        LINE.replace(b"plot_relations", b"__init__").strip(),
        LINE.replace(b"plot_relations", b"close").strip(),
        LINE.replace(b"1.0", b"NaN").strip(),
        LINE.replace(b"1.0", b"[]").strip(),
        LINE.replace(b'{"fc": 1.0}', b"3").strip(),
        LINE.replace(b'"epoch": 1, ', b"").strip(),
        b'{"session": "a", "method": "register_tags", "main_tag": "t", "tag_attr": {"type": "SOUND"}}',
        LINE[:-20],
    ],
)
def test_a_line_without_meaning_is_damage_and_nothing_else(tmp_path, damaged):
    path = tmp_path / "run.jsonl"
    path.write_bytes(LINE + damaged + b"\n" + LINE)
    call = RecordedCall("plot_relations", (1, "t", {"t": {"fc": 1.0}}))
    assert list(read_calls(path, "a")) == [call, Damage(2, is_cut=False), call]
