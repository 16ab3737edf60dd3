import io

import pytest

from monitorch.cli.progress import Progress, bar_text


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True

    def screen(self):
        """What is to be seen: a carriage return goes back to the start of the line, without erasing."""
        lines = []
        for written in self.getvalue().split("\n"):
            shown = ""
            for text in written.split("\r"):
                shown = text + shown[len(text) :]
            lines.append(shown.rstrip())
        return lines


class OldTerminal(Terminal):
    encoding = "ascii"


class Clock:
    """Moves on by a second at each look."""

    def __init__(self):
        self.seconds = -1

    def __call__(self):
        self.seconds += 1
        return self.seconds


@pytest.fixture(autouse=True)
def _columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_bar_is_redrawn_on_one_line():
    terminal = Terminal()
    with Progress(4, terminal, Clock()) as progress:
        for step in range(1, 4):
            progress.update(step, f"loss {9.5 - step}")
    bar = "█" * 22 + "░" * 8
    assert terminal.screen() == [f"{bar}  75%  step 3/4  loss 6.5  3 s, 1 s left", ""]


def test_shorter_line_leaves_nothing_of_the_longer_one():
    terminal = Terminal()
    with Progress(4, terminal, Clock()) as progress:
        progress.update(4, "loss 1")
        progress.say("drawing")
        assert terminal.screen() == ["drawing"]
        progress.clear()
        terminal.write("result\n")
    assert terminal.screen() == ["result", ""]


def test_file_gets_a_line_for_every_tenth():
    file = io.StringIO()
    with Progress(200, file, Clock()) as progress:
        for step in range(1, 201):
            progress.update(step, "loss 1")
        progress.say("drawing")
        progress.clear()
    *lines, last = file.getvalue().splitlines()
    assert [line.split("step")[1].split()[0] for line in lines] == [f"{n}/200" for n in range(20, 201, 20)]
    assert "\r" not in file.getvalue()
    assert last == "drawing"


def test_fewer_steps_than_tenths():
    file = io.StringIO()
    progress = Progress(3, file, Clock())
    for step in range(1, 4):
        progress.update(step, "")
    assert len(file.getvalue().splitlines()) == 3


def test_terminal_without_block_characters():
    terminal = OldTerminal()
    Progress(2, terminal, Clock()).update(1, "")
    assert terminal.getvalue().isascii()
    assert "#" * 15 + "." * 15 in terminal.getvalue()


def test_nowhere(capsys):
    with Progress(2, None) as progress:
        progress.update(1, "loss 1")
        progress.say("drawing")
        progress.clear()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("room", [10, 40, 60, 79, 119])
@pytest.mark.parametrize("done", [0, 1, 999, 1000])
def test_line_fits_and_tells_the_share(room, done):
    line = bar_text(done, 1000, "loss 2.345", seconds=3600.0, room=room)
    assert len(line) <= room
    assert line.count("█") == (line.count("█") + line.count("░")) * done // 1000
    assert f"{done // 10}%" in line


def test_time_left_is_in_proportion():
    assert bar_text(25, 100, "", seconds=10, room=100).endswith("10 s, 30 s left")
