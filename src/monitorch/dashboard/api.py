"""What the page gets as JSON: names and facts. Measured numbers are sent as bytes, see windows.py."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..diagnosis import findings_of, verdict
from ..diagnosis.check import without_diagnosis
from ..diagnosis.ranking import LayerHealth, rank
from ..store import WHOLE_RUN, Event, LensInfo, Run, RunInfo, Statistic
from ..store.status import age

DESCRIBED_LAYERS = 40
"""So many layers are described even if nothing is wrong with them."""


def plain(value: Any) -> Any:
    """The same value, with text for NaN and infinity, which JSON lacks.

    >>> plain({"clip": float("inf"), "rates": (0.1, float("nan"))})
    {'clip': 'Infinity', 'rates': [0.1, 'NaN']}
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def runs(infos: Iterable[RunInfo]) -> list[dict[str, Any]]:
    """All runs in short; paths on the disk are not sent.

    ``error`` is what ended a run: its ``type``, ``message`` and ``traceback``, a list of lines. ``problem`` says why a
    run cannot be read. Both may be None.
    """
    return [plain({**info._asdict(), "path": None}) for info in infos]


def head(run: Run) -> dict[str, Any]:
    """Everything about a run, except its numbers and events."""
    meta, lenses, now = run.meta, run.lenses, time.time()
    facts = {
        "name": run.path.parent.name,
        "status": run.status,
        "error": run.error,
        "last_step": run.last_step,
        "age": age(meta),
        "tick_age": _tick_age(run, lenses.values(), now),
        "dropped": meta.get("dropped", 0),
        "overhead": meta.get("overhead"),
        "overhead_at_least": bool(meta.get("overhead_at_least")),
        "meta": without_diagnosis(meta),
    }
    # names, of which there may be thousands, need no conversion
    layers = [layer._asdict() for layer in run.layers]
    return {**plain(facts), "layers": layers, "lenses": [_lens(lens) for lens in lenses.values()]}


def summary(run: Run) -> dict[str, Any]:
    """A run in the list of runs: its facts, and the newest number of each line of the whole run."""
    lens = run.lenses.get(WHOLE_RUN)
    lines = [known for known in lens.statistics if known.role == "line"] if lens else []
    newest = {one.name: number for one in lines if lens and (number := _newest(run, lens, one.name)) is not None}
    known = [_statistic(one) for one in lines if one.name in newest]
    told = plain(without_diagnosis(run.meta))
    return {
        "meta": told,
        "verdict": verdict(findings_of(run.meta), run.status),
        "statistics": known,
        "newest": plain(newest),
    }


def health(run: Run) -> dict[str, Any]:
    """How a run is: ``verdict`` in a few words, ``findings`` first cause first, and which layers are worst.

    ``notes`` are sentences about what could not be looked at.

    ``findings`` is None if the run was not diagnosed. ``layers`` has the names of all layers, the worst first, and
    ``described`` tells about those with which something is wrong, and about the first ones in any case.
    """
    findings = findings_of(run.meta)
    ranked = rank(run, findings or ())
    described = [one for place, one in enumerate(ranked) if one.tone or place < DESCRIBED_LAYERS]
    return {
        "verdict": verdict(findings, run.status),
        "findings": None if findings is None else [plain(one.to_json()) for one in findings],
        "notes": run.meta.get("notes", []),
        "layers": [one.layer for one in ranked],
        "described": {one.layer: _layer_health(one) for one in described},
    }


def events(found: Iterable[Event]) -> list[dict[str, Any]]:
    """Events, oldest first."""
    return [plain(event._asdict()) for event in found]


def histogram(run: Run, lens: str, tag: str, layers: Sequence[str] | None, step: int | None) -> dict[str, Any] | None:
    """The histograms of some layers, or of all, at a step, or the last ones before it; None if there are none.

    ``counts`` has a list for each of ``layers``; bins outside of all of them are left out.
    """
    found = run.histograms(lens, tag, step, layers)
    if found is None:
        return None
    filled = np.flatnonzero(found.counts.any(axis=0))
    first, end = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
    edges, counts = found.edges[first : end + 1].tolist(), found.counts[:, first:end].tolist()
    return {"step": found.step, "layers": found.layers, "edges": edges, "counts": counts}


def _tick_age(run: Run, lenses: Iterable[LensInfo], now: float) -> float | None:
    """Seconds since the newest tick; reads only one number."""
    ticked = [lens for lens in lenses if lens.ticks]
    if not ticked:
        return None
    newest = max(ticked, key=lambda lens: lens.last_step or 0)
    window = run.window(newest.name, newest.statistics[0].name, newest.last_step, layers=newest.layers[:1])
    return max(now - float(window.axis.time[-1]), 0.0)


def _newest(run: Run, lens: LensInfo, statistic: str) -> float | None:
    """The last measured number; looks at the last few ticks first, which nearly always have one."""
    if lens.first_step is None or lens.last_step is None:
        return None
    span = lens.last_step - lens.first_step
    for share in (256, 16, 1):
        values = run.series(lens.name, statistic, WHOLE_RUN, lens.last_step - span // share).values
        if len(values):
            return float(values[-1])
    return None


def _layer_health(one: LayerHealth) -> dict[str, Any]:
    facts = {"tone": one.tone, "reason": one.reason, "lens": one.lens, "statistic": one.statistic.name}
    return {**facts, "value": plain(one.newest)}


def _lens(lens: LensInfo) -> dict[str, Any]:
    return {**lens._asdict(), "statistics": list(map(_statistic, lens.statistics))}


def _statistic(statistic: Statistic) -> dict[str, Any]:
    """All fields, what a statistic is called where its plot is known, and its error as people write it."""
    return {**plain(statistic._asdict()), "label": statistic.label, "error_text": statistic.error_text}
