"""The recent numbers of every layer, and which layers to show first."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosis import Finding, findings_of
from ..diagnosis.ranking import (
    RECENT_TICKS,
    LayerHealth,
    Severity,
    central,
    judged,
    open_problems,
    tells_more,
)
from ..store import WHOLE_RUN, Run, Statistic
from .reading import Choice, choose, recent
from .run_facts import headline


@dataclass(frozen=True)
class TopRow:
    """The recent numbers of a statistic of a layer; ``place`` is the position of the layer in the model."""

    layer: str
    place: int
    lens: str
    statistic: Statistic
    step: int
    severity: Severity
    newest: np.float32
    values: NDArray[np.float32]
    broken: NDArray[np.bool_]
    findings: tuple[Finding, ...] = ()

    @property
    def health(self) -> LayerHealth:
        """How bad the layer is, and why."""
        return LayerHealth(self.layer, self.findings, self.lens, self.statistic, self.severity)


def layer_rows(run: Run, options: argparse.Namespace) -> list[TopRow]:
    """One row for each layer, with the statistic in which it is worst, in the given order.

    For a layer that is calm in all statistics, it is the first one that is not 0: that no output is NaN tells little.
    """
    places = {layer.name: place for place, layer in enumerate(run.layers)}
    rows: dict[str, TopRow] = {}
    for row in _all_rows(run, choose(run, options, with_edges=False), places):
        known = rows.get(row.layer)
        if known is None or tells_more(row.severity, known.severity):
            rows[row.layer] = row
    problems = open_problems(findings_of(run.meta) or (), run.layers)
    rows = {name: replace(row, findings=problems.get(name, ())) for name, row in rows.items()}
    ordered = sorted(rows.values(), key=lambda row: row.place)
    if options.sort == "worst":
        ordered.sort(key=lambda row: row.health.key, reverse=True)
    elif options.sort == "value":
        ordered.sort(key=lambda row: row.severity.key[2], reverse=True)
    elif options.sort == "name":
        ordered.sort(key=lambda row: row.layer)
    return ordered


def whole_run_rows(run: Run) -> list[TopRow]:
    """Losses, learning rates and other numbers of the whole run.

    Statistics with limits are left out: they are rates of the worst layer, which has its own row.
    """
    lens = run.lenses.get(WHOLE_RUN)
    if lens is None or not lens.ticks:
        return []
    choices = [Choice(lens, statistic, lens.layers) for statistic in central(lens) if statistic.limits is None]
    return list(_all_rows(run, choices, {}))


def facts(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """The same as data for other programs."""

    def row_facts(row: TopRow) -> dict[str, Any]:
        names = {"layer": row.layer, "lens": row.lens, "statistic": row.statistic.name, "step": row.step}
        why = {"findings": [found.id for found in row.findings], "reason": row.health.reason}
        return {**names, **why, **row.severity._asdict(), "value": row.newest, "recent": row.values}

    rows = {"run": whole_run_rows(run), "layers": layer_rows(run, options)}
    return {**headline(run), **{name: [row_facts(row) for row in part] for name, part in rows.items()}}


def _all_rows(run: Run, choices: list[Choice], places: dict[str, int]) -> Iterator[TopRow]:
    for choice in choices:
        numbers = recent(run, choice, RECENT_TICKS)
        found = judged(choice.statistic, numbers.values, numbers.nonfinite)
        seen = zip(numbers.layers, numbers.values, numbers.nonfinite > 0, numbers.measured, found, strict=True)
        for layer, values, broken, measured, severity in seen:
            if measured.any():
                newest = np.flatnonzero(measured)[-1]
                names = layer, places.get(layer, 0), choice.lens.name, choice.statistic
                yield TopRow(*names, int(numbers.last_step[newest]), severity, values[newest], values, broken)
