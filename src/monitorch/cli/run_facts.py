"""What is known of a run, as plain data."""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..diagnosis import Finding, findings_of, verdict
from ..diagnosis.check import without_diagnosis
from ..errors import StoreError
from ..store import WHOLE_RUN, Frame, Run, RunInfo, is_absent, open_run
from ..store.status import age
from .reading import Choice, choose
from .wording import status_text


def listed(info: RunInfo) -> dict[str, Any]:
    """A run in a list of runs, and how it is; None if it cannot be read."""
    told = None if info.problem else verdict(found_in(info), info.status)
    return {**info._asdict(), "status": status_text(info.status, info.age), "verdict": told}


def found_in(info: RunInfo) -> list[Finding] | None:
    """The findings of a run in a list of runs; None if it was not diagnosed, or cannot be read."""
    if info.problem is None:
        with suppress(StoreError, OSError), open_run(info.path) as run:  # it may just have been removed
            return findings_of(run.meta)
    return None


def headline(run: Run, findings: Sequence[Finding] | None = None) -> dict[str, Any]:
    """Name, status, the newest step, what observing costs, and what was found.

    Args:
        run: the run.
        findings: what a diagnosis of the stored run says; None for what was found while it trained.
    """
    meta, lenses = run.meta, run.lenses
    found = findings_of(meta) if findings is None else findings
    seconds = age(meta)
    return {
        "name": run.name,
        "path": run.path.parent,
        "status": status_text(run.status, seconds),
        "error": run.error,
        "ticks": max((lens.ticks for lens in lenses.values()), default=0),
        "last_step": run.last_step,
        "age": seconds,
        "size": _size(run.path),
        "dropped": int(meta.get("dropped", 0)),
        "overhead": meta.get("overhead"),
        "overhead_at_least": bool(meta.get("overhead_at_least")),
        "verdict": verdict(found, run.status),
        "findings": None if found is None else [finding.to_json() for finding in found],
    }


def _size(path: Path) -> int:
    """Bytes of a file and of the side files that SQLite keeps while it is written."""
    size = 0
    for file in path.parent.glob(f"{path.name}*"):
        with suppress(FileNotFoundError):  # the writer has just finished
            size += file.stat().st_size
    return size


def newest_frames(run: Run) -> dict[str, Frame]:
    """The newest frame of each lens; that of the whole run has the newest number of each of its statistics.

    Its last tick may be one that an evaluation needed, or the end of the run: that has no training loss.
    """
    frames = run.newest()
    frame = frames.get(WHOLE_RUN)
    if frame is not None:
        values = frame.values.copy()
        for row, column in np.argwhere(is_absent(values)):
            known = run.series(WHOLE_RUN, frame.statistics[row], frame.layers[column], last=frame.step).values
            values[row, column] = known[-1] if len(known) else values[row, column]
        frames[WHOLE_RUN] = frame._replace(values=values)
    return frames


def newest_numbers(frame: Frame, choice: Choice) -> dict[str, np.float32]:
    """The numbers of a statistic by layer."""
    row = frame.values[frame.statistics.index(choice.statistic.name)]
    places = {layer: place for place, layer in enumerate(frame.layers)}
    return {layer: row[places[layer]] for layer in choice.layers}


def facts(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Everything that ``show`` shows."""
    choices = choose(run, options, with_edges=True, whole_run=True)
    newest = newest_frames(run)
    numbers: dict[str, dict[str, dict[str, Any]]] = {}
    for choice in choices:
        cells = newest_numbers(newest[choice.lens.name], choice)
        numbers.setdefault(choice.lens.name, {})[choice.statistic.name] = cells
    steps = {lens: frame.step for lens, frame in newest.items()}
    return {
        **headline(run),
        "meta": without_diagnosis(run.meta),
        "lenses": [{**lens._asdict(), "newest_step": steps.get(lens.name)} for lens in run.lenses.values()],
        "layers": run.layers,
        "newest": numbers,
        "events": run.events(),
    }
