import gc
import pickle
import subprocess
import sys
import warnings

import pytest

import monitorch
from monitorch.errors import MonitorchWarning, OptionError, RecordingError
from monitorch.visualizer import PlayerVisualizer, RecorderVisualizer, TagAttributes, TagType

NORM = TagAttributes(logy=True, big_plot=False, annotate=True, type=TagType.NUMERICAL, ylim=(1.0, -1.0))
HEADER = b'{"format": "monitorch-recording", "version": 1, "session": "a", "monitorch": "0", "time": 0}\n'
RELATION = b'{"session": "a", "method": "plot_relations", "epoch": 1, "main_tag": "t", "values": {"t": {"fc": 1.0}}}\n'


class Listener:
    """Has every method and keeps the calls."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, method):
        return lambda *arguments: self.calls.append((method, *arguments))


def perform(visualizer, calls):
    for method, *arguments in calls:
        getattr(visualizer, method)(*arguments)


def played(path, session=None):
    """The calls of a session, without those of ``flush``."""
    listener = Listener()
    PlayerVisualizer(path, listener, session).playback()
    return [call for call in listener.calls if call != ("flush",)]


def relation(epoch, value=1.0):
    return ("plot_relations", epoch, "Share", {"Share": {"fc": value}})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


# --- what is recorded is what is played ---


def test_target_is_flushed_after_every_epoch(path):
    calls = [("register_tags", "Norm", NORM), relation(1), relation(1), relation(2), relation(5)]
    with RecorderVisualizer(path) as recorder:
        perform(recorder, calls)
    listener = Listener()
    player = PlayerVisualizer(path, listener)
    assert player.playback() is player
    assert (player.source_filepath, player.visualizer) == (path, listener)
    flush = ("flush",)
    assert listener.calls == [*calls[:3], flush, calls[3], flush, calls[4], flush]


class NoRelations:
    """Has two of the methods and no flush."""

    def register_tags(self, *_):
        pass

    def plot_probabilities(self, *_):
        self.got = True


def test_missing_methods_of_the_target_are_skipped_with_one_warning(path):
    with RecorderVisualizer(path) as recorder:
        perform(recorder, [relation(1), relation(2), ("plot_probabilities", 2, "Rates", {})])
    target = NoRelations()
    with pytest.warns(
        MonitorchWarning, match="NoRelations has no method plot_relations; these calls are skipped"
    ) as caught:
        PlayerVisualizer(path, target).playback()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert target.got


# --- the recorder and its file ---


def test_file_is_made_at_the_first_call(path):
    with RecorderVisualizer(path) as recorder:
        assert recorder.filepath == path
        assert recorder.file is None
        assert not path.exists()
        perform(recorder, [relation(1)])
        assert played(path) == [relation(1)]  # on the disk without closing
        assert not recorder.file.closed
    assert recorder.file.closed


def test_relative_path_means_the_folder_of_the_construction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RecorderVisualizer("run.jsonl") as recorder:
        monkeypatch.chdir("/")
        perform(recorder, [relation(1)])
    assert played(tmp_path / "run.jsonl") == [relation(1)]


def test_closing_twice_is_fine_and_recording_afterwards_is_not(path):
    recorder = RecorderVisualizer(path)
    recorder.close()
    recorder.close()
    with pytest.raises(ValueError, match=r"run\.jsonl is closed and takes no more numbers"):
        perform(recorder, [relation(1)])
    assert not path.exists()


def test_a_recorder_that_is_forgotten_closes_its_file(path):
    recorder = RecorderVisualizer(path)
    perform(recorder, [relation(1)])
    file = recorder.file
    del recorder
    gc.collect()
    assert file.closed


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            pickle.dumps({"method": "register_tags"}),
            "is a pickle file, as old recordings were; .*: record the run again",
        ),
        (b'{"weights": [1, 2]}\n', "is not a recording: it does not begin with the header of a monitorch-recording"),
        (b'{\n  "weights": 1\n}\n', "is not a recording"),
        (b"epoch,loss\n1,0.5\n", "is not a recording"),
        (b"\x00\xff", "is not a recording"),
    ],
)
def test_foreign_files_are_neither_continued_nor_played(path, content, text):
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=text):
        RecorderVisualizer(path)
    with pytest.raises(RecordingError, match=text):
        PlayerVisualizer(path, Listener()).playback()
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("missing/run.jsonl", FileNotFoundError, "the folder for the recording .* does not exist: .*missing"),
        ("", IsADirectoryError, "Is a directory"),
    ],
)
def test_a_recorder_needs_a_folder_and_a_file_name(tmp_path, name, error, text):
    with pytest.raises(error, match=text):
        RecorderVisualizer(tmp_path / name)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (("plot_probabilities", 1, "Rates", {"fc": {"mean": "high"}}), ValueError),
        (("plot_probabilities", 1, "Rates", {"fc": {"mean": None}}), TypeError),
        (("plot_numerical_values", 1, "Norm", {}, {"fc": {("-σ", "+σ"): (1.0,)}}), ValueError),
    ],
)
def test_what_is_not_a_number_is_refused_and_leaves_the_file_as_it_was(path, call, error):
    with RecorderVisualizer(path) as recorder:
        perform(recorder, [relation(1)])
        with pytest.raises(error):
            perform(recorder, [call])
        perform(recorder, [relation(2)])
    assert played(path) == [relation(1), relation(2)]


# --- sessions ---


def test_a_second_recorder_continues_the_file(path):
    for epoch in (1, 2):
        with RecorderVisualizer(path) as recorder:
            perform(recorder, [relation(epoch)])
    sessions = PlayerVisualizer(path, None).sessions()
    assert [session.version for session in sessions] == [2, 2]
    assert [session.monitorch for session in sessions] == [monitorch.__version__] * 2
    assert sessions[1].id == recorder.session
    assert sessions[0].time <= sessions[1].time
    assert played(path) == [relation(2)]
    assert played(path, sessions[0].id) == [relation(1)]


def test_two_recorders_on_one_path_do_not_mix(path):
    first, second, idle = (RecorderVisualizer(path) for _ in range(3))
    for epoch in range(20):
        perform(first, [relation(epoch, 1.0)])
        perform(second, [relation(epoch, 2.0)])
    for recorder in (first, second, idle):
        recorder.close()
    assert [session.id for session in PlayerVisualizer(path, None).sessions()] == [first.session, second.session]
    assert played(path, first.session) == [relation(epoch, 1.0) for epoch in range(20)]
    assert played(path) == [relation(epoch, 2.0) for epoch in range(20)]


# --- what is broken ---


def test_a_damaged_line_is_skipped_with_a_warning_that_names_it(path):
    path.write_bytes(HEADER + RELATION + b"garbage\n" + RELATION)
    with pytest.warns(MonitorchWarning, match=r"line 3 of .*run\.jsonl is damaged: it is skipped") as caught:
        assert played(path) == [("plot_relations", 1, "t", {"t": {"fc": 1.0}})] * 2
    assert [warning.filename for warning in caught] == [__file__]


def test_cut_anywhere_in_the_last_line_everything_before_is_played(path):
    with RecorderVisualizer(path) as recorder:
        perform(recorder, [relation(1), relation(2)])
        complete = path.stat().st_size
        perform(recorder, [relation(3)])
    content = path.read_bytes()
    assert len(content) > complete + 50
    for size in range(complete + 1, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.warns(MonitorchWarning, match=r"line 4 of .*run\.jsonl is cut off") as caught:
            assert played(path) == [relation(1), relation(2)]
        assert len(caught) == 1
    path.write_bytes(content[:complete])
    assert played(path) == [relation(1), relation(2)]
    path.write_bytes(content[:-1])  # only the end of the line is missing
    assert played(path) == [relation(1), relation(2), relation(3)]


def test_cut_anywhere_in_the_header_the_file_can_be_continued(path):
    with RecorderVisualizer(path) as recorder:
        perform(recorder, [relation(1)])
    header = path.read_bytes().splitlines()[0]
    for size in range(1, len(header)):
        path.write_bytes(header[:size])
        with pytest.raises(RecordingError, match="holds no session: it is empty or its only header is cut off"):
            played(path)
        with RecorderVisualizer(path) as recorder:
            perform(recorder, [relation(2)])
        with pytest.warns(MonitorchWarning, match="line 1 of .* is damaged"):
            assert played(path) == [relation(2)]


@pytest.mark.parametrize(
    ("content", "session", "error", "text"),
    [
        (HEADER.replace(b": 1,", b": 3,") + RELATION, None, RecordingError, "in version 3 of the format, .* version 2"),
        (HEADER.replace(b": 1,", b': "x",') + RELATION, None, RecordingError, "holds no session"),
        (b"", None, RecordingError, "holds no session: it is empty"),
        (HEADER, "b", OptionError, "session='b' is unknown; choose from 'a'"),
        (None, None, FileNotFoundError, r"No such file or directory: .*run\.jsonl"),
    ],
)
def test_what_cannot_be_played_is_refused(path, content, session, error, text):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=text):
        played(path, session)


def test_an_older_session_can_be_played_though_the_newest_is_of_a_newer_version(path):
    newer = HEADER.replace(b'"a"', b'"b"').replace(b": 1,", b": 2,")
    path.write_bytes(HEADER + RELATION + newer + b'{"session": "b", "sound": "bell"}\n')
    assert len(played(path, "a")) == 1


RECORD_FOREVER = """
import itertools, sys
from monitorch.visualizer import RecorderVisualizer

recorder = RecorderVisualizer(sys.argv[1])
for epoch in itertools.count():
    layers = {f"layer{i}": {"mean": epoch + i / 7} for i in range(200)}
    recorder.plot_numerical_values(epoch, "Norm", layers)
    print(epoch, flush=True)
"""


def test_a_killed_process_loses_no_tick_that_was_recorded(path):
    command = [sys.executable, "-c", RECORD_FOREVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(50):
            assert process.stdout.readline()
        process.kill()
        last = 49 + len(process.stdout.read().split("\n")) - 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MonitorchWarning)  # the last line may be cut or not
        calls = played(path)
    assert [epoch for _, epoch, *_ in calls[: last + 1]] == list(range(last + 1))
    assert calls[last][3]["layer199"] == {"mean": last + 199 / 7}
    with RecorderVisualizer(path) as recorder:
        perform(recorder, [relation(1)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MonitorchWarning)
        assert played(path) == [relation(1)]
