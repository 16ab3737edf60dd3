"""Runs in a folder."""

import os
import re
import time
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ..errors import StoreError
from .reader import Run
from .status import age, derive_status

FilePath: TypeAlias = str | os.PathLike[str]

DEFAULT_FOLDER = "monitorch_runs"
_FILE = re.compile(r"rank(\d+)\.(db|log)")


class RunInfo(NamedTuple):
    """A run at a glance; of one that cannot be read only name, path, size and age are known.

    Args:
        status: running, finished, crashed, or damaged.
        ticks: how many ticks are stored, of the lens that has most.
        age: seconds since its last sign of life.
        size: bytes of all its files.
        dropped: how many frames were lost.
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


def list_runs(folder: FilePath = DEFAULT_FOLDER) -> list[RunInfo]:
    """All runs in a folder, the one with the newest sign of life first."""
    folders = [path for path in Path(folder).iterdir() if path.is_dir()] if Path(folder).is_dir() else []
    return sorted((_info(path) for path in folders if ranks_of(path)), key=lambda info: info.age)


def open_run(path: FilePath, rank: int | None = None) -> Run:
    """Open a run by its folder, or by a file in it; of a folder that has no rank 0 the lowest rank."""
    path = Path(path)
    if path.is_file():
        return Run(path)
    ranks = ranks_of(path)
    if not ranks:
        beside = [info.name for info in path.parent.iterdir() if ranks_of(info)] if path.parent.is_dir() else []
        hint = f"; runs beside it: {', '.join(sorted(beside))}" if beside else ""
        raise StoreError(f"there is no run in {path}{hint}")
    chosen = min(ranks) if rank is None else rank
    if chosen not in ranks:
        raise StoreError(f"rank={rank} is not in {path}; choose from {', '.join(map(str, sorted(ranks)))}")
    return Run(ranks[chosen])


def ranks_of(folder: Path) -> dict[int, Path]:
    """The files of a run by rank."""
    if not folder.is_dir():
        return {}
    found = [(match, path) for path in folder.iterdir() if (match := _FILE.fullmatch(path.name))]
    return {int(match[1]): path for match, path in sorted(found, key=lambda pair: int(pair[0][1]))}


def free_name(folder: Path, name: str) -> str:
    """The name, with a number if there is such a run."""
    names = chain([name], (f"{name}_{number}" for number in count(2)))
    return next(name for name in names if not (folder / name).exists())


def time_name() -> str:
    """A name for a run that was given none."""
    return time.strftime("%Y-%m-%d_%H-%M-%S")


def file_of(folder: Path, rank: int) -> Path | None:
    """The file of a rank, if it exists."""
    return ranks_of(folder).get(rank)


def status_of(file: Path) -> tuple[str, int]:
    """Whether a file is being written, and by which process."""
    with Run(file) as run:
        meta = run.meta
    return derive_status(meta), int(meta.get("pid", 0))


def _info(folder: Path) -> RunInfo:
    files = ranks_of(folder)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.name.startswith("rank"))
    first = files[min(files)]
    ranks = tuple(files)
    try:
        with Run(first) as run:
            meta, lenses, last = run.meta, run.lenses.values(), run.last_step
    except (StoreError, OSError):
        seen = time.time() - first.stat().st_mtime
        return RunInfo(folder.name, folder, "damaged", 0, None, seen, size, 0, ranks)
    ticks = max((lens.ticks for lens in lenses), default=0)
    status, dropped = derive_status(meta), int(meta.get("dropped", 0))
    return RunInfo(folder.name, folder, status, ticks, last, age(meta), size, dropped, ranks)
