"""A run at a glance, for a notebook that shows it while it trains: HTML without scripts, and a line of text."""

import html
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..diagnosis import Finding, findings_of, problems, verdict
from ..diagnosis.finding import MOST_CAUSES
from ..diagnosis.ranking import central
from ..store import WHOLE_RUN, LensInfo, Run, Statistic
from ..visualizer.table import number_text, overhead_text

COLUMNS = 200
PLOTS = ("Loss", "Loss & Metrics", "Gradient Norm")
"""What is drawn, by the tag of its statistics."""

LOG_FROM = 30.0
"""Positive numbers are drawn on a logarithmic scale if the largest is so many times the smallest."""

FLAT = 0.1
"""The height of a picture is at least this share of the numbers in it."""

COLOURS = ("#1f77b4", "#d97706", "#7c3aed", "#0d9488")
GOOD, BAD, WORSE, UNKNOWN = "#2e7d32", "#b26a00", "#c62828", "#6b7280"
_WIDTH, _HEIGHT = 600, 120


class Curve(NamedTuple):
    """Numbers over steps; NaN where there is none that is finite."""

    name: str
    step: NDArray[np.int64]
    values: NDArray[np.float64]
    nonfinite: NDArray[np.bool_]

    @property
    def newest(self) -> float:
        """The last number."""
        return float(self.values[-1])


def card(run: Run) -> dict[str, str]:
    """The run as HTML and as text, by the type of each."""
    plots, findings = _plots(run), findings_of(run.meta)
    return {"text/html": _html(run, plots, findings), "text/plain": _line(run, plots, findings)}


def _plots(run: Run) -> dict[str, list[Curve]]:
    lens = run.lenses.get(WHOLE_RUN)
    if lens is None or not lens.ticks:
        return {}
    found: dict[str, list[Curve]] = {}
    for statistic in central(lens):
        if statistic.tag in PLOTS and len((curve := _curve(run, lens, statistic)).step):
            found.setdefault(statistic.tag, []).append(curve)
    return {tag: found[tag] for tag in PLOTS if tag in found}


def _curve(run: Run, lens: LensInfo, statistic: Statistic) -> Curve:
    window = run.window(lens.name, statistic.name, resolution=COLUMNS)
    values, counts = window.mean[0].astype(np.float64), window.nonfinite[0] > 0
    measured = np.isfinite(values) | counts
    name = statistic.label or statistic.tag
    return Curve(name, window.last_step[measured], values[measured], counts[measured])


def _html(run: Run, plots: dict[str, list[Curve]], findings: Sequence[Finding] | None) -> str:
    causes = problems(findings or ())
    colour = UNKNOWN if findings is None or run.status == "crashed" else GOOD
    if causes:
        colour = WORSE if any(one.severity == "error" for one in causes) else BAD
    chip = (
        f'<span style="background:{colour};color:#fff;border-radius:1em;padding:.15em .7em;white-space:nowrap">'
        f"{html.escape(verdict(findings, run.status))}</span>"
    )
    head = f'<b style="font-size:115%">{html.escape(run.name)}</b> {chip} <span style="opacity:.7">{_facts(run)}</span>'
    parts = [f'<div style="display:flex;flex-wrap:wrap;gap:.4em .8em;align-items:baseline">{head}</div>']
    if run.error is not None:
        parts.append(f'<div style="color:{WORSE};margin-top:.4em">{html.escape(run.error.line)}</div>')
    parts += [_cause(one) for one in causes[:MOST_CAUSES]]
    steps = [step for curves in plots.values() for curve in curves for step in curve.step[[0, -1]].tolist()]
    drawn = "".join(_plot(tag, curves, (min(steps), max(steps))) for tag, curves in plots.items())
    parts.append(f'<div style="display:flex;flex-wrap:wrap;gap:1em;margin-top:.6em">{drawn or "no numbers yet"}</div>')
    style = (
        "font:13px/1.45 system-ui,sans-serif;max-width:960px;border:1px solid rgba(128,128,128,.4);"
        "border-radius:6px;padding:.7em .9em"
    )
    return f'<div class="monitorch" style="{style}">{"".join(parts)}</div>'


def _facts(run: Run) -> str:
    """Status, newest step and what observing costs."""
    step = "no steps yet" if run.last_step is None else f"step {run.last_step:,}"
    overhead, at_least = run.meta.get("overhead"), bool(run.meta.get("overhead_at_least"))
    cost = [overhead_text(overhead, at_least=at_least)] if isinstance(overhead, int | float) else []
    return " · ".join([run.status, step, *cost])


def _cause(finding: Finding) -> str:
    colour = WORSE if finding.severity == "error" else BAD
    advice = f"<br><b>Try:</b> {html.escape(finding.remedy.text)}" if finding.is_open and finding.remedy.text else ""
    return (
        f'<div style="border-left:3px solid {colour};padding-left:.6em;margin-top:.5em">'
        f"<b>{html.escape(finding.heading)}</b><br>{html.escape(finding.explanation)}{advice}</div>"
    )


def _plot(tag: str, curves: Sequence[Curve], steps: tuple[int, int]) -> str:
    """Curves in one picture, with their newest numbers above and the range of steps, the same in all, below."""
    names = "".join(
        f'<span style="white-space:nowrap"><span style="color:{colour}">━</span> {html.escape(curve.name)} '
        f"<b>{number_text(curve.newest)}</b></span> "
        for curve, colour in zip(curves, _colours(curves), strict=True)
    )
    low, high = _span(np.concatenate([curve.values for curve in curves]))
    is_log = low > 0 and high / low >= LOG_FROM
    scale = " (log)" if is_log else ""
    small = "opacity:.65;font-size:11px;display:flex;justify-content:space-between"
    return (
        f'<div style="flex:1 1 280px;min-width:0"><div><b>{html.escape(tag)}</b>{scale} {names}</div>'
        f'<div style="{small}"><span>{number_text(high)}</span></div>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'style="width:100%;height:{_HEIGHT}px;display:block;background:rgba(128,128,128,.08)">'
        f"<title>{html.escape(tag)}</title>{''.join(_paths(curves, steps, (low, high), is_log))}</svg>"
        f'<div style="{small}"><span>{number_text(low)}</span><span>step {steps[0]:,} to {steps[1]:,}</span></div>'
        "</div>"
    )


def _span(numbers: NDArray[np.float64]) -> tuple[float, float]:
    """The smallest and the largest number, a little apart: noise around a number that stays should look like it.

    >>> _span(np.array([1.0, 5.0, np.nan])), _span(np.array([100.0, 101.0]))
    ((1.0, 5.0), (95.45, 105.55))
    """
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    room = max(FLAT * max(abs(low), abs(high)) - (high - low), 0.0) / 2
    return low - room, high + room


def _paths(curves: Sequence[Curve], steps: tuple[int, int], span: tuple[float, float], is_log: bool) -> Iterable[str]:
    """The lines, and red marks at the bottom where numbers were not finite."""
    low, high = map(math.log, span) if is_log else span
    for curve, colour in zip(curves, _colours(curves), strict=True):
        x = _WIDTH * (curve.step - steps[0]) / max(steps[1] - steps[0], 1)
        with np.errstate(all="ignore"):
            heights = (np.log(curve.values) if is_log else curve.values) - low
            y = _HEIGHT - 4 - (_HEIGHT - 8) * heights / (high - low) if high > low else heights * 0 + _HEIGHT / 2
        look = f'stroke="{colour}" stroke-width="1.6" fill="none" vector-effect="non-scaling-stroke"'
        for piece in _pieces(x, y):
            yield f'<polyline {look} stroke-linecap="round" points="{piece}"/>'
        for place in x[curve.nonfinite]:
            mark = f"M{place:.1f} {_HEIGHT - 8}V{_HEIGHT}"
            yield f'<path d="{mark}" stroke="{WORSE}" stroke-width="3" vector-effect="non-scaling-stroke"/>'


def _pieces(x: NDArray[np.float64], y: NDArray[np.float64]) -> Iterable[str]:
    """The points of each line without gaps; a single point is a short line, so that it is seen."""
    for piece in np.split(np.arange(len(y)), np.flatnonzero(~np.isfinite(y))):
        points = [f"{x[place]:.1f},{y[place]:.1f}" for place in piece if np.isfinite(y[place])]
        if points:
            yield " ".join(points if len(points) > 1 else points * 2)


def _colours(curves: Sequence[Curve]) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(len(curves))]


def _line(run: Run, plots: dict[str, list[Curve]], findings: Sequence[Finding] | None) -> str:
    numbers = [f"{curve.name} {number_text(curve.newest)}" for curves in plots.values() for curve in curves]
    return "  ".join([run.name, _facts(run), *numbers, verdict(findings, run.status)])
