"""Finds runs that are no longer useful, and removes them."""

from pathlib import Path

from ..store import RunInfo, list_runs

_ENDED = ("crashed", "finished")
_ENDINGS = (".log", ".db", ".db-wal", ".db-shm", ".db-journal")


def useless(folder: Path, older_than: float | None) -> list[RunInfo]:
    """The runs that crashed or, with an age in seconds, all that ended longer ago.

    Never includes running or unreadable runs, or links to runs.
    """
    runs = [info for info in list_runs(folder) if info.status in _ENDED and not info.path.is_symlink()]
    if older_than is None:
        return [info for info in runs if info.status == "crashed"]
    return [info for info in runs if info.age > older_than]


def remove(info: RunInfo) -> list[Path]:
    """Remove the files of a run and its folder; a folder that holds other files is kept and returned."""
    for rank in info.ranks:
        for ending in _ENDINGS:
            (info.path / f"rank{rank}{ending}").unlink(missing_ok=True)
    if any(info.path.iterdir()):
        return [info.path]
    info.path.rmdir()
    return []
