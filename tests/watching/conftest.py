"""What the tests of watching share."""

from types import SimpleNamespace

import pytest

from monitorch.inspector import inspector_state, pytorch_inspector, tick_finisher
from monitorch.inspector.cadence import Cadence
from monitorch.watching import model_watch


@pytest.fixture
def replace_time(monkeypatch):
    """Let this function tell the time to all that measure how long steps, hooks and ticks take."""

    def replace(now):
        monkeypatch.setitem(Cadence.__init__.__kwdefaults__, "clock", now)
        for module in (model_watch, pytorch_inspector, inspector_state):
            monkeypatch.setattr(module, "perf_counter", now)
        monkeypatch.setattr(tick_finisher, "time", SimpleNamespace(thread_time=now))

    return replace
