"""What is known of a run, as plain data."""

import argparse
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..diagnosis import findings_of, verdict
from ..store import Frame, Run
from .reading import Choice, choose
from .wording import status_text


def headline(run: Run) -> dict[str, Any]:
    """Name, status, the newest step, what observing costs, and what was found."""
    meta, lenses = run.meta, run.lenses
    found = findings_of(meta)
    age = max(time.time() - float(meta.get("heartbeat", 0.0)), 0.0)
    return {
        "name": run.name,
        "path": run.path,
        "status": status_text(run.status, age),
        "error": run.error,
        "ticks": max((lens.ticks for lens in lenses.values()), default=0),
        "last_step": run.last_step,
        "age": age,
        "size": _size(run.path),
        "dropped": int(meta.get("dropped", 0)),
        "overhead": meta.get("overhead"),
        "overhead_at_least": bool(meta.get("overhead_at_least")),
        "verdict": verdict(found),
        "findings": None if found is None else [finding.to_json() for finding in found],
    }


def _size(path: Path) -> int:
    """Bytes of a file and of the side files that SQLite keeps while it is written."""
    size = 0
    for file in path.parent.glob(f"{path.name}*"):
        with suppress(FileNotFoundError):  # the writer has just finished
            size += file.stat().st_size
    return size


def newest_numbers(frame: Frame, choice: Choice) -> dict[str, np.float32]:
    """The numbers of a statistic by layer."""
    row = frame.values[frame.statistics.index(choice.statistic.name)]
    places = {layer: place for place, layer in enumerate(frame.layers)}
    return {layer: row[places[layer]] for layer in choice.layers}


def facts(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that ``show`` shows."""
    choices = choose(run, options, with_edges=True, whole_run=True)
    newest = run.newest()
    numbers: dict[str, dict[str, dict[str, Any]]] = {}
    for choice in choices:
        cells = newest_numbers(newest[choice.lens.name], choice)
        numbers.setdefault(choice.lens.name, {})[choice.statistic.name] = cells
    steps = {lens: frame.step for lens, frame in newest.items()}
    return {
        **headline(run),
        "meta": run.meta,
        "lenses": [{**lens._asdict(), "newest_step": steps.get(lens.name)} for lens in run.lenses.values()],
        "layers": run.layers,
        "newest": numbers,
        "events": run.events(),
    }
