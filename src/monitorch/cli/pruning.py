"""Which runs are of no use any more, and taking them away."""

from pathlib import Path

from ..store import RunInfo, list_runs

_ENDED = ("crashed", "finished")
_ENDINGS = (".log", ".db", ".db-wal", ".db-shm", ".db-journal")


def useless(folder: Path, older_than: float | None) -> list[RunInfo]:
    """The runs that crashed or, with an age in seconds, those that ended so long ago.

    Runs that go on and files that cannot be read are never among them, nor are runs that are only linked to.
    """
    runs = [info for info in list_runs(folder) if info.status in _ENDED and not info.path.is_symlink()]
    if older_than is None:
        return [info for info in runs if info.status == "crashed"]
    return [info for info in runs if info.age > older_than]


def remove(info: RunInfo) -> list[Path]:
    """Remove the files of a run, and its folder, which is returned if it holds anything else."""
    for rank in info.ranks:
        for ending in _ENDINGS:
            (info.path / f"rank{rank}{ending}").unlink(missing_ok=True)
    if any(info.path.iterdir()):
        return [info.path]
    info.path.rmdir()
    return []
