"""The runs that the page may show: those directly inside one folder, and nothing else."""

import os
import threading
from pathlib import Path

from ..errors import StoreError
from ..store import Run, RunInfo, list_runs, open_run
from ..store.run_list import list_ranks, names_of_ranks, ranks_of


class RunFolder:
    """Opens runs by name and keeps them open; may be used by several threads.

    A name is looked up among the entries of the folder, so no path is built from what a browser sends. An entry may be
    a link to another place: whoever made the link wants that run to be shown.

    Where several processes have each stored their own numbers, the run is the lowest rank, and the others follow it as
    runs of their own, such as ``baseline/rank1``.

    Args:
        folder: the folder of the runs, or of a single run.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        folder = Path(folder).absolute()
        is_run = bool(ranks_of(folder))
        self.folder = folder.parent if is_run else folder
        self._only = folder.name if is_run else None
        self._lock = threading.Lock()
        self._open: dict[str, tuple[tuple[int, int], Run]] = {}

    def names(self) -> tuple[str, ...]:
        """The names of all runs, also of unreadable ones."""
        return tuple(name for entry, _ in sorted(self.entries()) for name in self._files(entry))

    def entries(self) -> frozenset[tuple[str, int]]:
        """The entries of the folder, and when each was last changed; cheap to call."""
        try:
            with os.scandir(self.folder) as found:
                return frozenset((entry.name, _changed(entry)) for entry in found if self._only in (None, entry.name))
        except OSError:
            return frozenset()

    def infos(self) -> list[RunInfo]:
        """All runs in short, newest first."""
        own = [info for info in list_runs(self.folder) if self._only in (None, info.name)]
        return [each for info in own for each in (info, *list_ranks(info))]

    def run(self, name: str) -> Run:
        """The run of that name, opened again if its file was replaced."""
        entry = name.partition("/")[0]
        files = self._files(entry) if entry in {known for known, _ in self.entries()} else {}
        if name not in files:
            raise StoreError(f"there is no run {name!r}; there are {', '.join(self.names()) or 'none'}")
        with self._lock:
            identity, run = self._open.get(name, (None, None))
            if run is None or identity != _identity(run.path):
                if run is not None:
                    run.close()
                    del self._open[name]
                run = open_run(files[name])
                self._open[name] = _identity(run.path) or (0, 0), run
        return run

    def _files(self, entry: str) -> dict[str, Path]:
        """The file of each process of a run, by its name."""
        ranks = ranks_of(self.folder / entry)
        return dict(zip(names_of_ranks(entry, ranks), ranks.values(), strict=True))

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for _, run in self._open.values():
                run.close()
            self._open.clear()


def _changed(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat().st_mtime_ns
    except OSError:  # it was just removed, or is a broken link
        return 0


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
