"""Whether a run is alive, from its last heartbeat."""

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import StoreError

CRASHED_SECONDS = 30.0
"""A run marked as running has crashed if its last heartbeat is older than this."""


def derive_status(meta: Mapping[str, Any]) -> str:
    """``"running"``, ``"finished"`` or ``"crashed"``."""
    said = str(meta.get("status", "crashed"))
    if said != "running":
        return said
    is_here = meta.get("host") == socket.gethostname()
    alive = age(meta) < CRASHED_SECONDS and not (is_here and not _exists(int(meta.get("pid", 0))))
    return "running" if alive else "crashed"


def refuse_if_running(meta: Mapping[str, Any], path: Path) -> None:
    """Raise an error if another process is writing a file: a run has one writer at a time."""
    if derive_status(meta) == "running":
        raise StoreError(f"{path} is being written by the process {meta.get('pid')}: a run has one writer at a time")


def ending() -> str:
    """How this program ends: ``"crashed"`` after an uncaught error, else ``"finished"``."""
    return "finished" if uncaught() is None else "crashed"


def uncaught() -> BaseException | None:
    """The exception that is ending this program; None while it runs, and in an interactive session."""
    found = getattr(sys, "last_value", None)
    return found if isinstance(found, BaseException) and not hasattr(sys, "ps1") else None


def age(meta: Mapping[str, Any]) -> float:
    """Seconds since the last heartbeat."""
    return max(time.time() - float(meta.get("heartbeat", 0.0)), 0.0)


def _exists(pid: int) -> bool:
    if os.name == "nt":  # there os.kill() with 0 does not ask, but interrupts
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process, or a system where we cannot check
        return True
    return True
