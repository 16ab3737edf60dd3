import pytest

from monitorch.cli.wording import STALE_SECONDS, printable, status_text


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("model.größe [red]", "model.größe [red]"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\nb\tc\r\x00\x07", r"a\nb\tc\r\x00\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("evil\u202egnp", r"evil\u202egnp"),
        ("lone \udcff", r"lone \udcff"),
        (3, "3"),
    ],
)
def test_nothing_in_a_name_is_obeyed(text, safe):
    assert printable(text) == safe


@pytest.mark.parametrize(
    ("status", "age", "shown"),
    [
        ("running", 1.0, "running"),
        ("running", STALE_SECONDS + 1, "stale"),
        ("finished", 1e6, "finished"),
        ("crashed", 1e6, "crashed"),
    ],
)
def test_a_silent_run_is_stale(status, age, shown):
    assert status_text(status, age) == shown
