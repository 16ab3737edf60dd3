"""Runs in a folder."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from ..errors import NoRunError, UnreadableRunError
from .failure import Failure
from .reader import Run
from .status import age, derive_status
from .types import FilePath

DEFAULT_FOLDER = "monitorch_runs"
_FILE = re.compile(r"rank(\d+)\.(db|log)")
_OWN_FILE = re.compile(r"rank(\d+)\D.*")


class RunInfo(NamedTuple):
    """A run in short; of an unreadable one only name, path, size, age and the reason are known.

    Args:
        status: ``"running"``, ``"finished"`` or ``"crashed"``; for an unreadable run the state of its file:
            ``"empty"``, ``"newer"``, ``"foreign"``, ``"locked"``, ``"damaged"`` or ``"unreadable"``.
        ticks: how many ticks are stored, of the lens with the most.
        age: seconds since its last heartbeat.
        size: bytes of all its files.
        dropped: how many frames were lost.
        error: the exception that ended it.
        problem: why it cannot be read; None if it can.
    """

    name: str
    path: Path
    status: str
    ticks: int
    last_step: int | None
    age: float
    size: int
    dropped: int
    ranks: tuple[int, ...]
    error: Failure | None = None
    problem: str | None = None

    @property
    def why(self) -> str:
        """What ended the run, or why it cannot be read, on one line; empty if all is well."""
        return self.problem or (self.error.line if self.error else "")


def list_runs(folder: FilePath = DEFAULT_FOLDER) -> list[RunInfo]:
    """All runs in a folder, linked ones included, the one with the newest heartbeat first."""
    found: list[tuple[float, RunInfo]] = []
    for path in _entries(Path(folder)):
        with suppress(OSError):  # just removed
            if files := ranks_of(path):
                info = _info(path, files)
                found.append((time.time() - info.age, info))  # ages are of different moments: reading takes time
    return [info for _, info in sorted(found, key=lambda pair: pair[0], reverse=True)]


def list_ranks(info: RunInfo) -> list[RunInfo]:
    """The processes of a run other than the lowest rank, each with what it has stored itself."""
    others = [*zip(info.ranks, names_of_ranks(info.name, info.ranks), strict=True)][1:]
    files = ranks_of(info.path) if others else {}
    found = []
    for rank, name in others:
        with suppress(OSError, KeyError):  # just removed
            found.append(_info(info.path, {rank: files[rank]})._replace(name=name))
    return found


def names_of_ranks(run: str, ranks: Iterable[int]) -> list[str]:
    """What the processes of a run are called: the lowest rank like the run itself. ``ranks`` are sorted.

    >>> names_of_ranks("baseline", [0, 3])
    ['baseline', 'baseline/rank3']
    """
    return [f"{run}/rank{rank}" if place else run for place, rank in enumerate(ranks)]


def open_run(path: FilePath, rank: int | None = None) -> Run:
    """Open a run by its folder, or by a file in it; a folder opens the lowest rank."""
    path = Path(path)
    if path.is_file():
        return Run(path)
    ranks = ranks_of(path)
    if not ranks:
        if inside := _runs_in(path):
            raise NoRunError(f"{path} is a folder of runs: name one of them: {inside}")
        beside = _runs_in(path.parent)
        raise NoRunError(f"there is no run in {path}" + (f"; runs beside it: {beside}" if beside else ""))
    chosen = min(ranks) if rank is None else rank
    if chosen not in ranks:
        raise NoRunError(f"rank={rank} is not in {path}; choose from {', '.join(map(str, sorted(ranks)))}")
    return Run(ranks[chosen])


def ranks_of(folder: Path) -> dict[int, Path]:
    """The files of a run by rank."""
    found = [(int(match[1]), path) for path in _entries(folder) if (match := _FILE.fullmatch(path.name))]
    return dict(sorted(found))


def _runs_in(folder: Path) -> str:
    """The names of the runs in a folder."""
    return ", ".join(sorted(entry.name for entry in _entries(folder) if ranks_of(entry)))


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder; none if it is not a folder, or cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def numbered(name: str) -> Iterator[str]:
    """The name, then the same with numbers, to find one that is free.

    >>> from itertools import islice
    >>> list(islice(numbered("baseline"), 3))
    ['baseline', 'baseline_2', 'baseline_3']
    """
    return chain([name], (f"{name}_{number}" for number in count(2)))


def time_name() -> str:
    """A default name for a run."""
    return time.strftime("%Y-%m-%d_%H-%M-%S")


def file_of(folder: Path, rank: int) -> Path | None:
    """The file of a rank, if it exists."""
    return ranks_of(folder).get(rank)


def _info(folder: Path, files: Mapping[int, Path]) -> RunInfo:
    first, size = files[min(files)], 0
    for path in folder.iterdir():
        if (match := _OWN_FILE.fullmatch(path.name)) and int(match[1]) in files:
            with suppress(OSError):  # side files come and go
                size += path.stat().st_size
    unknown = time.time() - first.stat().st_mtime
    blank = RunInfo(folder.name, folder, "damaged", 0, None, max(unknown, 0.0), size, 0, tuple(files))
    try:
        with Run(first) as run:
            meta, lenses, last = run.meta, run.lenses.values(), run.last_step
        ticks = max((lens.ticks for lens in lenses), default=0)
        status, dropped = derive_status(meta), int(meta.get("dropped", 0))
        found = blank._replace(status=status, ticks=ticks, last_step=last, age=age(meta), dropped=dropped)
    except UnreadableRunError as error:
        return blank._replace(status=error.state, problem=error.reason)
    except (TypeError, ValueError) as error:
        return blank._replace(problem=f"is damaged: {error}")
    return found._replace(error=Failure.from_meta(meta))
