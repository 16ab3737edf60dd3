"""How far a command has come, on a line that is redrawn or, where nobody watches, on a few lines."""

import shutil
import time
from collections.abc import Callable
from typing import TextIO

_LONGEST_BAR, _SHORTEST_BAR = 30, 5


class Progress:
    """Shows steps on a terminal as a bar, in a file as a line for every tenth of the way.

    Args:
        total: how many steps there are.
        stream: where to show them; None is nowhere.
        clock: the time in seconds.
    """

    def __init__(self, total: int, stream: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._stream, self._clock = total, stream, clock
        self._begin = clock()
        self._on_terminal = stream is not None and stream.isatty()
        self._blocks = "█░" if _can_write("█░", stream) else "#."
        self._tenths = 0
        self._line = ""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the cursor on a fresh line."""
        if self._line:
            self._write("\n")
            self._line = ""

    def update(self, done: int, text: str) -> None:
        """Show that so many steps are done."""
        line = bar_text(done, self._total, text, self._clock() - self._begin, self._room(), self._blocks)
        if self._on_terminal:
            self._redraw(line)
        elif done * 10 // self._total > self._tenths:
            self._tenths = done * 10 // self._total
            self._write(line + "\n")

    def say(self, text: str) -> None:
        """Show what goes on instead of steps."""
        if self._on_terminal:
            self._redraw(text[: self._room()])
        else:
            self._write(text + "\n")

    def clear(self) -> None:
        """Take the line away, to make place for other output."""
        if self._line:
            self._redraw("")
            self._write("\r")

    def _redraw(self, line: str) -> None:
        self._write("\r" + line.ljust(len(self._line)))
        self._line = line

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()

    def _room(self) -> int:
        return shutil.get_terminal_size((80, 24)).columns - 1  # some terminals break a line that is full


def bar_text(done: int, total: int, text: str, seconds: float, room: int, blocks: str = "█░") -> str:
    """A bar and numbers on one line, which is never longer than ``room``.

    >>> bar_text(30, 120, "loss 2.5", seconds=4, room=60)
    '███░░░░░░░░░░░░  25%  step  30/120  loss 2.5  4 s, 12 s left'
    """
    left = seconds / done * (total - done) if done else 0.0
    numbers = (
        f" {100 * done // total:3}%  step {done:{len(str(total))}}/{total}  {text}  {seconds:.0f} s, {left:.0f} s left"
    )
    length = min(_LONGEST_BAR, room - len(numbers))
    if length < _SHORTEST_BAR:
        return numbers.strip()[:room]
    filled = length * done // total
    return blocks[0] * filled + blocks[1] * (length - filled) + numbers


def _can_write(text: str, stream: TextIO | None) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
