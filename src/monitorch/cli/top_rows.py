"""The recent numbers of every layer, and which layers to show first."""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosis import Finding, findings_of
from ..diagnosis.ranking import RECENT_TICKS, Severity, central, severities
from ..store import WHOLE_RUN, Run, Statistic
from ..store.types import SEVERITIES
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
    finding: Finding | None = None
    """The worst that lasts there."""

    @property
    def reason(self) -> str:
        """Why the layer is bad, in a few words; empty for a calm layer."""
        finding = self.finding
        return self.severity.reason if finding is None else f"{finding.title} since step {finding.step:,}"

    @property
    def is_broken(self) -> bool:
        """Whether it is more than a warning."""
        return self.severity.nonfinite > 0 or (self.finding is not None and self.finding.severity == "error")


def layer_rows(run: Run, options: argparse.Namespace) -> list[TopRow]:
    """One row for each layer, with the statistic in which it is worst, in the given order.

    For a layer that is calm in all statistics, it is the first one.
    """
    places = {layer.name: place for place, layer in enumerate(run.layers)}
    rows: dict[str, TopRow] = {}
    for row in _all_rows(run, choose(run, options, with_edges=False), places):
        known = rows.get(row.layer)
        if known is None or row.severity.key[:2] > known.severity.key[:2]:
            rows[row.layer] = row
    worst = worst_findings(findings_of(run.meta) or ())
    for name, row in rows.items():  # a row is a layer, or a parameter of one
        rows[name] = replace(row, finding=worst.get(name) or worst.get(name.rpartition(".")[0]))
    ordered = sorted(rows.values(), key=lambda row: row.place)
    if options.sort == "worst":
        ordered.sort(key=lambda row: (health(row.finding), row.severity.key), reverse=True)
    elif options.sort == "value":
        ordered.sort(key=lambda row: row.severity.key[2], reverse=True)
    elif options.sort == "name":
        ordered.sort(key=lambda row: row.layer)
    return ordered


def worst_findings(findings: Iterable[Finding]) -> dict[str, Finding]:
    """By layer, the worst warning or error that lasts."""
    worst: dict[str, Finding] = {}
    for finding in findings:
        if finding.layer is not None and health(finding) > health(worst.get(finding.layer)):
            worst[finding.layer] = finding
    return worst


def health(finding: Finding | None) -> tuple[int, int]:
    """Greater is worse: the more harm a finding does, and the longer it lasts."""
    if finding is None or not finding.is_open or finding.severity == "info":
        return 0, 0
    return SEVERITIES.index(finding.severity), -finding.step


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
        why = {"finding": row.finding and row.finding.id, "reason": row.reason, **row.severity._asdict()}
        return {**names, **why, "value": row.newest, "recent": row.values}

    rows = {"run": whole_run_rows(run), "layers": layer_rows(run, options)}
    return {**headline(run), **{name: [row_facts(row) for row in part] for name, part in rows.items()}}


def _all_rows(run: Run, choices: list[Choice], places: dict[str, int]) -> Iterator[TopRow]:
    for choice in choices:
        numbers = recent(run, choice, RECENT_TICKS)
        judged = severities(numbers.values, numbers.nonfinite, choice.statistic.limits)
        seen = zip(numbers.layers, numbers.values, numbers.nonfinite > 0, numbers.measured, judged, strict=True)
        for layer, values, broken, measured, severity in seen:
            if measured.any():
                newest = np.flatnonzero(measured)[-1]
                names = layer, places.get(layer, 0), choice.lens.name, choice.statistic
                yield TopRow(*names, int(numbers.last_step[newest]), severity, values[newest], values, broken)
