"""The tutorial is played whole, and prints what its page says; numbers may differ between machines."""

import re

import pytest

from docs.pictures.tutorial import PAGE, play

pytestmark = pytest.mark.xdist_group("tutorial")


def words(text):
    """Without numbers, and however wide columns are; whether an overhead is the least one depends on the machine."""
    lines = text.replace("at least ", "").splitlines()
    return [" ".join(re.sub(r"[-\d.,]*\d|─+|[km]?B\b", "0", line).split()) for line in lines]


def test_the_tutorial_prints_what_it_says(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    assert words(play(text, tmp_path)) == words(text)
    assert sorted(path.name for path in (tmp_path / "monitorch_runs").iterdir()) == ["stripes", "stripes-mended"]
