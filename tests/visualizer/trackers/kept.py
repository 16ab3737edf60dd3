"""A tracker that keeps what it is given, for tests."""

import threading

from monitorch.visualizer.trackers import Tracker


class KeptTracker(Tracker):
    """Keeps all calls in order; ``fails`` names methods that raise an error."""

    def __init__(self, fails=(), **options):
        super().__init__(**options)
        self.calls, self.threads, self.fails = [], set(), fails

    def _keep(self, method, *what):
        self.threads.add((method, threading.current_thread()))
        if method in self.fails:
            raise OSError("no space left")
        self.calls.append((method, *what))

    def start(self, run):
        self._keep("start", run)

    def scalars(self, step, numbers):
        self._keep("scalars", step, dict(numbers))

    def histograms(self, step, histograms):
        self._keep("histograms", step, dict(histograms))

    def alert(self, step, title, text, severity):
        self._keep("alert", step, title, text, severity)

    def note(self, facts):
        self._keep("note", dict(facts))

    def artifact(self, path):
        self._keep("artifact", path, path.read_text(encoding="utf-8"))

    def close(self, status):
        self._keep("close", status)

    def of(self, method):
        """What was given to this method, one tuple for each call."""
        return [call[1:] for call in self.calls if call[0] == method]

    def series(self, name):
        """``(step, number)`` of one name."""
        found = [(step, numbers.get(f"{self.prefix}{name}")) for step, numbers in self.of("scalars")]
        return [(step, number) for step, number in found if number is not None]

    def names(self):
        return {name.removeprefix(self.prefix) for _, numbers in self.of("scalars") for name in numbers}
