"""Files are there whole or not at all."""

import os
from pathlib import Path

import pytest

from monitorch.store.whole_file import whole_file


def test_a_file_gets_its_name_at_the_end(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with whole_file(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("is_folder", [False, True])
def test_an_error_leaves_what_was_there(is_folder, tmp_path):
    path = tmp_path / "a"
    path.write_text("old")

    def write():
        with whole_file(path) as part:
            if is_folder:
                part.mkdir()
                part = part / "b"
            part.write_text("half")
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one(tmp_path):
    link, path = tmp_path / "link", tmp_path / "a"
    link.symlink_to(path)
    with whole_file(link) as part:
        part.write_text("new")
    assert link.is_symlink()
    assert path.read_text() == "new"


def test_what_is_no_file_is_written_to():
    null = Path(os.devnull)
    with whole_file(null) as part:
        part.write_text("new")
    assert null.is_char_device()
