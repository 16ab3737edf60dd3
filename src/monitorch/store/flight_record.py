"""What a run has kept of its last steps when something went wrong: one file beside the run's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import StoreError
from .run_list import numbered
from .types import FilePath
from .whole_file import whole_file

VERSION = 1
PREFIX, SUFFIX = "flight", ".npz"

NORMS = "norm_"
"""What the names of arrays with norms begin with."""


class NormTable(NamedTuple):
    """Norms of the last steps: ``gradients[i, j]`` is that of parameter ``j`` in step ``steps[i]``.

    Parameter ``j`` is ``parameters[j]`` of ``layers[j]``; ``weights`` are norms of the parameters themselves, when the
    step began. A number below 0 means that there was no gradient, or that the step was skipped.
    """

    steps: NDArray[np.int64]
    layers: tuple[str, ...]
    parameters: tuple[str, ...]
    gradients: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def empty(cls) -> NormTable:
        """No steps."""
        return cls(np.zeros(0, np.int64), (), (), np.zeros((0, 0)), np.zeros((0, 0)))


class FlightRecord(NamedTuple):
    """The last steps before something happened.

    Row ``i`` was measured in step ``steps[i]``: ``rows[i]`` are sums over ``tensors[i]`` (such as ``"output"`` or
    ``"gradient weight"``) of ``layers[i]``, in the order of measuring; ``columns`` names the sums.
    """

    reason: str
    step: int
    time: float
    error: str
    rank: int
    steps: NDArray[np.int64]
    layers: tuple[str, ...]
    tensors: tuple[str, ...]
    columns: tuple[str, ...]
    rows: NDArray[np.float64]
    losses: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]
    """By name: steps, and the loss of each."""
    norms: NormTable = NormTable.empty()
    """Of every step, observed or not; empty where nobody keeps them, as on a CPU."""

    def __str__(self) -> str:
        seen = f"{len(self.rows):,} rows of the steps {_ends(self.steps)}" if len(self.steps) else "no rows"
        losses = [f"{name} of the steps {_ends(steps)}" for name, (steps, _) in self.losses.items() if len(steps)]
        norms = [f"gradient norms of the steps {_ends(self.norms.steps)}"] if len(self.norms.steps) else []
        return f"step {self.step:,}: {self.reason}; " + ", ".join([seen, *losses, *norms])


def write_flight_record(folder: Path, record: FlightRecord) -> Path:
    """Write a record into the folder of its run, all of it or nothing; the new file."""
    losses = {name: [steps.tolist(), values.tolist()] for name, (steps, values) in record.losses.items()}
    facts = {name: getattr(record, name) for name in ("reason", "step", "time", "error", "rank", "columns")}
    places, names = _numbered(zip(record.layers, record.tensors, strict=True))
    described = json.dumps({"version": VERSION, **facts, "losses": losses, "names": names})
    first = f"{PREFIX}_{record.step}" + (f"_rank{record.rank}" if record.rank else "")
    arrays: dict[str, Any] = {"steps": record.steps, "places": places, "rows": record.rows}
    arrays |= {f"{NORMS}{name}": np.array(value) for name, value in record.norms._asdict().items()}
    path = next(path for name in numbered(first) if not (path := folder / f"{name}{SUFFIX}").exists())
    with whole_file(path) as part, part.open("wb") as file:
        np.savez_compressed(file, facts=np.array(described), **arrays)
        file.flush()
        os.fsync(file.fileno())
    return path


def read_flight_record(path: FilePath) -> FlightRecord:
    """Read such a file."""
    try:
        return _read(Path(path))
    except StoreError:
        raise
    except Exception as error:  # damage shows in many ways
        raise StoreError(f"{path} is no flight record: {error}") from error


def _read(path: Path) -> FlightRecord:
    # opened here: numpy leaves what it has opened itself open if it is no archive
    with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
        facts: dict[str, Any] = json.loads(str(kept["facts"]))
        steps, places, rows = kept["steps"], kept["places"], kept["rows"]
        norms = [kept[name] for field in NormTable._fields if (name := f"{NORMS}{field}") in kept]
    if facts.pop("version") != VERSION:
        raise StoreError(f"{path} was written by another version of monitorch")
    names = facts.pop("names")
    layers, tensors = zip(*(names[place] for place in places), strict=True) if len(places) else ((), ())
    losses = {name: (np.array(of, np.int64), np.array(values)) for name, (of, values) in facts.pop("losses").items()}
    columns = tuple(facts.pop("columns"))
    of_rows = {"steps": steps, "layers": layers, "tensors": tensors, "columns": columns, "rows": rows}
    return FlightRecord(**facts, **of_rows, losses=losses, norms=_norms(norms))


def flight_records(folder: FilePath) -> list[Path]:
    """The files of a run, oldest first."""
    return sorted(Path(folder).glob(f"{PREFIX}_*{SUFFIX}"), key=lambda path: (path.stat().st_mtime, path.name))


def _norms(arrays: list[Any]) -> NormTable:
    """The norms in a file; older releases wrote none."""
    if not arrays:
        return NormTable.empty()
    steps, layers, parameters, gradients, weights = arrays
    return NormTable(steps, tuple(layers.tolist()), tuple(parameters.tolist()), gradients, weights)


def _numbered(names: Any) -> tuple[NDArray[np.int64], list[tuple[str, str]]]:
    """Each name as its place in a list of all."""
    known: dict[tuple[str, str], int] = {}
    places = [known.setdefault(name, len(known)) for name in names]
    return np.array(places, np.int64), list(known)


def _ends(steps: NDArray[np.int64]) -> str:
    return f"{steps.min():,} to {steps.max():,}"
