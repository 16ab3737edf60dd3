"""Files with the last steps of a run."""

import math
from contextlib import suppress

import numpy as np
import pytest

from monitorch.errors import StoreError
from monitorch.store import flight_record, flight_records, read_flight_record
from monitorch.store.flight_record import NORMS, FlightRecord, NormTable, write_flight_record


def record(**changes):
    rows = np.array([[1.0, math.nan], [math.inf, -2.5], [0.0, 3.0]])
    made = FlightRecord(
        reason="a test",
        step=41_200,
        time=12.5,
        error="ValueError: no\n  at line 3",
        rank=0,
        steps=np.array([41_198, 41_199, 41_199]),
        layers=("net.0", "größe", "net.0"),
        tensors=("output", "gradient weight", "output"),
        columns=("SQUARES", "SIZE"),
        rows=rows,
        losses={"train_loss": (np.array([1, 2]), np.array([0.5, math.nan]))},
        norms=NormTable(
            np.array([41_199]),
            ("net.0", "größe"),
            ("weight", "bias"),
            np.array([[math.inf, -1.0]]),
            np.array([[0.5, 2.0]]),
        ),
    )
    return made._replace(**changes)


def empty():
    nothing = np.zeros(0, np.int64), np.zeros(0)
    rows = {"steps": nothing[0], "layers": (), "tensors": (), "rows": np.zeros((0, 2))}
    return record(**rows, losses={"train_loss": nothing}, norms=NormTable.empty())


def plain(found):
    """To compare arrays with NaN, too."""
    losses = {name: [repr(array.tolist()) for array in arrays] for name, arrays in found.losses.items()}
    others = [*found._replace(losses={}, norms=None), *found.norms]
    return [repr(each.tolist()) if isinstance(each, np.ndarray) else each for each in others] + [losses]


@pytest.mark.parametrize("kept", [record(), empty()], ids=["full", "empty"])
def test_what_was_written_is_read(kept, tmp_path):
    path = write_flight_record(tmp_path, kept)
    assert plain(read_flight_record(path)) == plain(kept)
    assert [file.name for file in tmp_path.iterdir()] == [path.name] == ["flight_41200.npz"]


def test_none_takes_the_place_of_another_and_they_are_listed_in_their_order(tmp_path):
    paths = [write_flight_record(tmp_path, record(rank=rank)) for rank in (0, 0, 3)]
    assert flight_records(str(tmp_path)) == flight_records(tmp_path)
    assert [path.name for path in paths] == ["flight_41200.npz", "flight_41200_2.npz", "flight_41200_rank3.npz"]
    assert sorted(flight_records(tmp_path)) == sorted(paths)
    assert flight_records(tmp_path / "nowhere") == []


def test_what_it_says(tmp_path):
    rows = "step 41,200: a test; 3 rows of the steps 41,198 to 41,199, train_loss of the steps 1 to 2"
    assert str(record()) == f"{rows}, gradient norms of the steps 41,199 to 41,199"
    assert str(record(norms=NormTable.empty())) == rows
    assert str(empty()) == "step 41,200: a test; no rows"


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(flight_record.np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space"):
        write_flight_record(tmp_path, record())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"not a zip file", None])
def test_other_files_are_refused(content, tmp_path):
    path = tmp_path / "flight_1.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StoreError, match="is no flight record"):
        read_flight_record(path)


def test_a_damaged_file_is_refused_wherever_it_is_damaged(tmp_path):
    path = write_flight_record(tmp_path, record())
    whole, damaged = path.read_bytes(), tmp_path / "damaged.npz"
    for place in range(0, len(whole), 5):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with suppress(StoreError):  # what is not checked by the format may still be read
            read_flight_record(damaged)


def test_a_file_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(flight_record, "VERSION", 99)
    path = write_flight_record(tmp_path, record())
    monkeypatch.undo()
    with pytest.raises(StoreError, match="another version"):
        read_flight_record(path)


def test_an_archive_with_other_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "flight_2.npz", rows=np.zeros(3))
    with pytest.raises(StoreError, match="is no flight record"):
        read_flight_record(tmp_path / "flight_2.npz")


def test_files_of_earlier_releases_have_no_norms(tmp_path):
    path = write_flight_record(tmp_path, record())
    with np.load(path) as kept:
        older = {name: kept[name] for name in kept if not name.startswith(NORMS)}
    np.savez_compressed(path, **older)
    found = read_flight_record(path)
    assert found.norms.gradients.shape == (0, 0)
    assert plain(found) == plain(record(norms=NormTable.empty()))
