"""What the tests of watching share."""

import sys
import time
from types import SimpleNamespace

import pytest

from monitorch.inspector import tick_finisher
from monitorch.inspector.cadence import Cadence
from monitorch.inspector.hook_call import HookCall


@pytest.fixture
def replace_time(monkeypatch):
    """Let this function tell the time to all that measure how long steps, hooks and ticks take."""

    def replace(now):
        for name, module in list(sys.modules.items()):
            if name.startswith("monitorch.") and vars(module).get("perf_counter") is time.perf_counter:
                monkeypatch.setattr(module, "perf_counter", now)
        monkeypatch.setitem(Cadence.__init__.__kwdefaults__, "clock", now)
        monkeypatch.setattr(HookCall.__init__, "__defaults__", (now,))
        monkeypatch.setattr(tick_finisher, "time", SimpleNamespace(thread_time=now))

    return replace
