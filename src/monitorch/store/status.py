"""Whether a run is alive, from what it last said about itself."""

import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

CRASHED_SECONDS = 30.0
"""A run that says it is running has crashed if its last sign of life is older than this."""


def derive_status(meta: Mapping[str, Any]) -> str:
    """``"running"``, ``"finished"`` or ``"crashed"``."""
    said = str(meta.get("status", "crashed"))
    if said != "running":
        return said
    is_here = meta.get("host") == socket.gethostname()
    alive = age(meta) < CRASHED_SECONDS and not (is_here and not _exists(int(meta.get("pid", 0))))
    return "running" if alive else "crashed"


def ending() -> str:
    """What the end of this program looks like: ``"crashed"`` after an error that nobody caught."""
    return "finished" if uncaught() is None else "crashed"


def uncaught() -> BaseException | None:
    """The exception that is ending this program; None while it goes on, and where somebody types at a prompt."""
    found = getattr(sys, "last_value", None)
    return found if isinstance(found, BaseException) and not hasattr(sys, "ps1") else None


def age(meta: Mapping[str, Any]) -> float:
    """Seconds since the last sign of life."""
    return max(time.time() - float(meta.get("heartbeat", 0.0)), 0.0)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's, or a system where one cannot ask
        return True
    return True
