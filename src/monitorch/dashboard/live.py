"""Tells a page that there is something new; the page then asks for it."""

from collections.abc import AsyncIterator, Callable, Hashable, Sequence

import anyio

from ..errors import MonitorchError
from .run_folder import RunFolder

POLL_SECONDS = 0.05
QUIET_POLLS = 300
"""After this many checks without news a comment is sent, since proxies close silent connections."""

TICK = b"data\n\n"
COMMENT = b":\n\n"


async def ticks(run_folder: RunFolder, names: Sequence[str], is_ending: Callable[[], bool]) -> AsyncIterator[bytes]:
    """A tick after each commit to one of the runs, and when runs come or go."""
    yield COMMENT
    before = await anyio.to_thread.run_sync(_state, run_folder, names)
    quiet = 0
    while not is_ending():
        await anyio.sleep(POLL_SECONDS)
        state = await anyio.to_thread.run_sync(_state, run_folder, names)
        quiet += 1
        if state != before:
            yield TICK
            before, quiet = state, 0
        elif quiet >= QUIET_POLLS:
            yield COMMENT
            quiet = 0


def _state(run_folder: RunFolder, names: Sequence[str]) -> Hashable:
    return run_folder.entries(), tuple(_version(run_folder, name) for name in names)


def _version(run_folder: RunFolder, name: str) -> tuple[int, int] | None:
    try:
        run = run_folder.run(name)
        return id(run), run.data_version()
    except MonitorchError:
        return None
