"""Shows a run while it trains, where the user is: in a notebook, else as lines of text."""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..errors import OptionError
from ..store import open_run
from ..visualizer.store_visualizer import StoreVisualizer

LINE_SECONDS = 10.0
"""The fewest seconds between two lines of text."""

SHARE = 0.02
"""The share of time that drawing may take."""

JOIN_SECONDS = 10.0

Bundle = dict[str, str]


class LiveView:
    """Redraws a stored run in its own thread, so training never waits for it.

    Args:
        store: what stores the run.
        path: the folder of the run.
        every: the fewest seconds between two pictures.
        show: called with each picture, as HTML and as text.
    """

    def __init__(self, store: StoreVisualizer, path: Path, every: float, show: Callable[[Bundle], None]) -> None:
        self._store, self._every, self._show = store, every, show
        self._run = open_run(path, store.rank)
        self._version = -1
        self._failure: Exception | None = None
        self._ends = threading.Event()
        self._draw()  # drawn here so that it appears below the calling cell
        self._thread = threading.Thread(target=self._keep_drawing, name="monitorch live view", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, visualizer: Any, every: float) -> "LiveView | None":
        """A view of the run, in the notebook that runs this, if one does.

        None if this process stores nothing: another process does, watching is off, or storing failed with a warning.
        """
        if not isinstance(every, int | float) or isinstance(every, bool) or not 0 < every < float("inf"):
            raise OptionError(f"every={every!r} must be a number of seconds, more than 0")
        stores = [part for part in getattr(visualizer, "parts", (visualizer,)) if isinstance(part, StoreVisualizer)]
        if not stores:
            raise OptionError("live() shows a stored run, and this watch stores none: leave visualizer= out")
        path, notebook = stores[0].path, Notebook.here()
        if path is None:
            return None
        if notebook is None:
            return cls(stores[0], path, max(every, LINE_SECONDS), print_line)
        return cls(stores[0], path, every, notebook.show)

    def close(self) -> Exception | None:
        """Draw a last time; returns what went wrong, if something did. Calling it again does nothing."""
        if not self._ends.is_set():
            self._ends.set()
            self._thread.join(JOIN_SECONDS)
            if not self._thread.is_alive():
                self._store.sync()
                self._version = -1  # the end of the run does not change the data version
                self._draw()
                self._run.close()
        return self._failure

    def _keep_drawing(self) -> None:
        pause = self._every
        while self._failure is None and not self._ends.wait(pause):
            begin = time.perf_counter()
            self._draw()
            pause = pause_after(time.perf_counter() - begin, self._every)

    def _draw(self) -> None:
        from ..dashboard.card import card  # needed only where somebody looks

        try:
            version = self._run.data_version()
            if version != self._version:
                self._version = version
                self._show(card(self._run))
        except Exception as error:  # nothing in this thread can be caught by the user
            self._failure = self._failure or error


class Notebook:
    """A place below a cell, whose content can be replaced.

    Args:
        shell: the shell of IPython that runs the cell.
    """

    def __init__(self, shell: Any) -> None:
        self._publisher, self._id, self._is_there = shell.display_pub, uuid4().hex, False

    @classmethod
    def here(cls) -> "Notebook | None":
        """The notebook that runs this code, if any; IPython in a terminal does not count."""
        known = sys.modules.get("IPython")  # a notebook has loaded it
        shell = None if known is None else known.get_ipython()
        return None if getattr(shell, "kernel", None) is None else cls(shell)

    def show(self, picture: Bundle) -> None:
        """Show a picture in place of the last one."""
        self._publisher.publish(picture, transient={"display_id": self._id}, update=self._is_there)
        self._is_there = True


def pause_after(seconds: float, every: float) -> float:
    """How long to wait after a picture that took ``seconds`` to draw.

    >>> pause_after(0.01, every=1.0), pause_after(0.1, every=1.0)
    (1.0, 5.0)
    """
    return max(every, seconds / SHARE)


def print_line(picture: Bundle) -> None:
    """Print the text of a picture."""
    print(picture["text/plain"], flush=True)
