"""Which layers are worst: the one rule by which layers are ordered.

1. Layers with open warnings or errors come first: the most severe, then first causes before what they explain, then
those that last longest. 2. Then layers with non-finite numbers: the more of their recent ticks have some, the earlier.
3. Then those that jumped: the newest number against the median of the recent ones before it, in decades, up or down.
Less than a factor of 3, or fewer than 4 earlier numbers, is calm and counts as no jump. A change shared by most layers
does not count as a jump: a learning rate schedule moves all of them. A layer whose last 5 numbers are 0 counts as
the largest jump, unless all layers were 0 all the time, or 0 is a number like any other: of the smallest and largest
elements, of quantiles and of counts.
4. Then those with the largest newest number.

Entries that are not layers, such as the input, are not ranked, and facts such as a checksum do not jump.

Signs are ignored. Numbers near zero jump easily without meaning anything. So less than a millionth of the largest
number of all layers is calm, and both sides of a ratio get something added: a hundredth of the range of a statistic
that has limits, or the largest number of a statistic that changes its sign.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..store import WHOLE_RUN, Layer, LensInfo, Run, Statistic, Window
from ..store.types import INFO, SEVERITIES
from .finding import Finding

RECENT_TICKS = 60
"""How many ticks count as recent."""

CALM_FACTOR = 3.0
ALL_TICKS = 10**9
"""More columns than any window has ticks."""
FACT = "last"
"""The line of a statistic that is a fact, not a size."""
_ZERO_IS_FINE = re.compile(r"min|max|q\d+|zero|infinite|nan|unused")
"""Lines of extremes, quantiles and counts: that one of them is 0 does not say that nothing is left."""
_FEWEST = 4
_SHARE_OF_LIMITS = 0.01
_NOISE = 1e-6


class Severity(NamedTuple):
    """How bad a layer is, and why.

    Args:
        nonfinite: how many samples of the recent ticks were not finite.
        broken: how many recent ticks had such samples.
        ticks: how many recent ticks have measured this layer.
        jump: decades between its newest number and its median, less what most layers have moved; infinite if one of
            them is 0 and others are not, or if it has been 0 for long; and 0 if it is calm.
        median: of the magnitudes of the recent numbers before the newest.
        value: the newest finite number; NaN if there is none.
        shared: the decades that most layers have moved in the same direction, which do not count.
    """

    nonfinite: int
    broken: int
    ticks: int
    jump: float
    median: float
    value: float
    shared: float = 0.0

    @property
    def key(self) -> tuple[float, float, float]:
        """Greater is worse."""
        return self.broken, abs(self.jump), abs(self.value) if np.isfinite(self.value) else -1.0

    @property
    def reason(self) -> str:
        """Why the layer is bad, in a few words; empty for a calm layer.

        >>> Severity(nonfinite=0, broken=0, ticks=60, jump=2.0, median=0.5, value=50.0).reason
        '100x its median'
        >>> Severity(nonfinite=83, broken=6, ticks=20, jump=0.0, median=0.5, value=0.5).reason
        '83 not finite in 6 of 20 ticks'
        >>> Severity(nonfinite=0, broken=0, ticks=60, jump=1.0, median=0.5, value=50.0, shared=1.0).reason
        '100x its median, most layers 10x'
        """
        if self.nonfinite:
            return f"{self.nonfinite:,} not finite in {self.broken} of {self.ticks} ticks"
        if not self.jump:
            return ""
        if not self.median or not self.value:
            return "rose from 0" if self.value else "fell to 0" if self.median else "0 for long"
        ratio = abs(self.value) / self.median
        own = f"{_short(ratio)}x its median" if ratio > 1 else f"1/{_short(1 / ratio)} of its median"
        others = _short(10 ** abs(self.shared))
        if others == _short(1):
            return own
        return f"{own}, most layers {f'{others}x' if self.shared > 0 else f'1/{others}'}"


def severities(
    values: NDArray[Any], nonfinite: NDArray[Any], limits: tuple[float, float] | None = None
) -> list[Severity]:
    """How bad each layer is.

    Args:
        values: recent numbers ``[layer, tick]``, such as the ``mean`` of a window.
        nonfinite: how many samples of each are not finite; where that is 0, NaN means that nothing was measured.
        limits: the smallest and largest possible value of the statistic, if it has them.

    >>> calm, loud = [1.0, 1.1, 0.9, 1.0, 1.0], [1.0, 1.1, 0.9, 1.0, 40.0]
    >>> [round(severity.jump, 1) for severity in severities(np.array([calm, loud]), np.zeros((2, 5)))]
    [0.0, 1.6]
    """
    numbers, broken = np.asarray(values, np.float64), np.asarray(nonfinite) > 0
    finite = np.isfinite(numbers)
    newest = np.where(finite, np.arange(numbers.shape[1]), -1).max(axis=1, initial=-1)
    latest = np.where(newest >= 0, np.take_along_axis(_padded(numbers), newest[:, None] + 1, axis=1)[:, 0], np.nan)
    earlier = finite & (np.arange(numbers.shape[1]) < newest[:, None])
    history = np.sort(np.where(earlier, np.abs(numbers), np.nan), axis=1)  # NaN goes to the end
    count = earlier.sum(axis=1)
    median = _median(history, count)
    floor = np.zeros(len(numbers)) if limits is None else np.full(len(numbers), float(abs(limits[1] - limits[0])))
    floor *= _SHARE_OF_LIMITS
    changes_sign = (numbers < 0).any(axis=1, where=finite) & (numbers > 0).any(axis=1, where=finite)
    floor = np.where(changes_sign, np.maximum(floor, np.nan_to_num(_pick(history, count - 1))), floor)
    with np.errstate(divide="ignore", invalid="ignore"):
        jump = np.nan_to_num(np.log10(np.abs(latest) + floor) - np.log10(median + floor), posinf=np.inf, neginf=-np.inf)
    largest = np.max(np.abs(numbers), where=finite, initial=0.0)
    jump[(np.abs(latest) < _NOISE * largest) & (median < _NOISE * largest)] = 0.0
    jump[count < _FEWEST] = 0.0
    whole = jump
    jump = _without_shared(whole, count >= _FEWEST)
    jump[np.abs(jump) < np.log10(CALM_FACTOR)] = 0.0
    shared = np.subtract(whole, jump, out=np.zeros(len(jump)), where=np.isfinite(whole) & (jump != 0))
    if limits is None and largest > 0:
        alive = np.where(finite & (numbers != 0), np.arange(numbers.shape[1]), -1).max(axis=1, initial=-1)
        jump[(finite & (np.arange(numbers.shape[1]) > alive[:, None])).sum(axis=1) > _FEWEST] = -np.inf
    counts = np.asarray(nonfinite).sum(axis=1), broken.sum(axis=1), (finite | broken).sum(axis=1)
    rows = *counts, jump, median, latest, shared
    return [Severity(*row) for row in zip(*(row.tolist() for row in rows), strict=True)]


def judged(statistic: Statistic, values: NDArray[Any], nonfinite: NDArray[Any]) -> list[Severity]:
    """How bad each layer is in a statistic.

    Another fact, such as a checksum, is no jump. Of extremes, quantiles and counts, 0 is a number like any other.

    >>> silent = np.array([[4.0] * 9, [0.0] * 9]), np.zeros((2, 9))
    >>> [severity.reason for severity in judged(Statistic.of("Output Norm", "mean"), *silent)]
    ['', '0 for long']
    >>> [severity.reason for severity in judged(Statistic.of("Output Extremes", "min"), *silent)]
    ['', '']
    """
    found = severities(values, nonfinite, statistic.limits)
    if statistic.line == FACT:
        return [severity._replace(jump=0.0) for severity in found]
    if _ZERO_IS_FINE.fullmatch(statistic.line):
        return [severity._replace(jump=0.0) if severity.jump == -math.inf else severity for severity in found]
    return found


def worst_first(severities: Iterable[Severity]) -> list[int]:
    """Indices, worst layer first; equally bad layers keep their order.

    >>> calm, fallen = Severity(0, 0, 9, 0.0, 1.0, 1.0), Severity(0, 0, 9, -2.0, 1.0, 0.01)
    >>> worst_first([calm, Severity(7, 2, 9, 0.0, 1.0, 1.0), fallen])
    [1, 2, 0]
    """
    keys = [severity.key for severity in severities]
    return sorted(range(len(keys)), key=keys.__getitem__, reverse=True)


class LayerHealth(NamedTuple):
    """The health of one layer.

    Args:
        layer: its name.
        findings: open warnings and errors about it, its module or one of its parameters; the worst first.
        lens: the lens and the statistic in which its recent numbers are worst; the first ones if it is calm in all.
        statistic: see ``lens``.
        severity: how bad it is there.
        newest: its newest number there, as it is: NaN if that was not finite.
    """

    layer: str
    findings: tuple[Finding, ...]
    lens: str
    statistic: Statistic
    severity: Severity
    newest: float = math.nan

    @property
    def key(self) -> tuple[float, ...]:
        """Greater is worse."""
        return *problem_key(self.findings), *self.severity.key

    @property
    def tone(self) -> str:
        """The severity of its worst finding, else ``"nonfinite"``, ``"jump"``, or nothing if it is calm."""
        if self.findings:
            return self.findings[0].severity
        return "nonfinite" if self.severity.nonfinite else "jump" if self.severity.jump else ""

    @property
    def reason(self) -> str:
        """Why the layer is bad, in a few words; empty for a calm layer."""
        found = [f"{one.title} since step {one.step:,}" for one in self.findings]
        return "; ".join(found) or self.severity.reason


def rank(run: Run, findings: Iterable[Finding] = ()) -> list[LayerHealth]:
    """The health of each layer of a run, worst first; ties in model order."""
    layers = run.layers
    problems = open_problems(findings, layers)
    found: dict[str, LayerHealth] = {}
    for lens in _lenses_of_layers(run, layers):
        for statistic in sizes(lens):
            window = recent(run, lens, statistic)
            found_here = judged(statistic, window.mean, window.nonfinite)
            for layer, severity, newest in zip(window.layers, found_here, _newest(window), strict=True):
                known = found.get(layer)
                if severity.ticks and (known is None or tells_more(severity, known.severity)):
                    found[layer] = LayerHealth(layer, problems.get(layer, ()), lens.name, statistic, severity, newest)
    ordered = [found[layer.name] for layer in layers if layer.name in found]
    return sorted(ordered, key=lambda health: health.key, reverse=True)


def _newest(window: Window) -> list[float]:
    """The newest measured number of each layer."""
    numbers = np.asarray(window.mean, np.float64)
    measured = np.isfinite(numbers) | (window.nonfinite > 0)
    last = np.where(measured, np.arange(measured.shape[1]), -1).max(axis=1, initial=-1)
    found: list[float] = np.take_along_axis(_padded(numbers), last[:, None] + 1, axis=1)[:, 0].tolist()
    return found


def open_problems(findings: Iterable[Finding], layers: Iterable[Layer]) -> dict[str, tuple[Finding, ...]]:
    """The open warnings and errors of each layer that has some, the worst first.

    A finding about a module is also about its parameters, and the other way round; lenses have rows for both. If it
    names parameters, it is about these and their modules.

    >>> from .finding import Remedy
    >>> dead = Finding("dead_units", "error", "fc", 80, 90, "No unit is active.", Remedy("Lower the rate."))
    >>> sorted(open_problems([dead], [Layer("fc", "Linear"), Layer("fc.weight"), Layer("fc2", "Linear")]))
    ['fc', 'fc.weight']
    """
    known = {layer.name: layer for layer in layers}
    about: dict[str, list[Finding]] = {}
    for one in findings:
        if one.is_open and one.layer is not None and one.severity != INFO:
            for place in dict.fromkeys([one.layer, *_named_parameters(one)]):
                about.setdefault(place, []).append(one)
    problems: dict[str, tuple[Finding, ...]] = {}
    for name, layer in known.items():
        related = {name}
        if layer.kind is None:
            related.add(name.rpartition(".")[0])
        related |= {place for place in about if place.rpartition(".")[0] == name and _is_parameter(place, known)}
        found = {one.id: one for place in sorted(related) for one in about.get(place, ())}
        if layer.kind is None:
            found = {key: one for key, one in found.items() if name in (_named_parameters(one) or [name])}
        if found:
            problems[name] = tuple(sorted(found.values(), key=lambda one: problem_key([one]), reverse=True))
    return problems


def _named_parameters(one: Finding) -> list[str]:
    return list(one.remedy.arguments.get("parameters", ()))


def problem_key(findings: Sequence[Finding]) -> tuple[float, float, float]:
    """How bad the first of these findings is: greater is worse. One that began earlier lasts longer."""
    if not findings:
        return 0, 0, 0
    first = findings[0]
    return SEVERITIES.index(first.severity), first.caused_by is None, -first.step


def central(lens: LensInfo) -> tuple[Statistic, ...]:
    """The lines, without band edges, shares and counts; all, if there are no others."""
    chosen = tuple(statistic for statistic in lens.statistics if statistic.role == "line")
    return chosen or lens.statistics


def sizes(lens: LensInfo) -> list[Statistic]:
    """The central statistics that are large or small; a fact, such as a checksum, is neither."""
    return [statistic for statistic in central(lens) if statistic.line != FACT]


def recent(
    run: Run, lens: LensInfo, statistic: Statistic, layers: Sequence[str] | None = None, ticks: int = RECENT_TICKS
) -> Window:
    """The last ticks of a statistic; where only averages are stored, their columns."""
    first, last = lens.first_step or 0, lens.last_step or 0
    span = (last - first) * ticks // max(lens.ticks - 1, 1) + 1
    while True:  # ticks need not be evenly spread
        window = run.window(lens.name, statistic.name, last - span, last, ALL_TICKS, layers)
        if len(window.last_step) >= ticks or last - span <= first:
            break
        span *= 4
    newest = slice(-ticks, None)
    arrays = {name: getattr(window, name)[..., newest] for name in Window._fields if name not in ("layers", "axis")}
    return window._replace(axis=window.axis.take(newest), **arrays)


def _lenses_of_layers(run: Run, layers: Sequence[Layer]) -> list[LensInfo]:
    """The lenses with rows for modules or parameters; all, if the modules are not known."""
    modules = {layer.name for layer in layers if layer.kind is not None}
    lenses = [lens for lens in run.lenses.values() if lens.ticks and lens.name != WHOLE_RUN]
    chosen = [
        lens for lens in lenses if any(name in modules or name.rpartition(".")[0] in modules for name in lens.layers)
    ]
    return chosen or lenses


def tells_more(one: Severity, other: Severity) -> bool:
    """Whether it is worse; of two that are calm, the first one that is not 0."""
    return (*one.key[:2], bool(one.value)) > (*other.key[:2], bool(other.value))


def _is_parameter(name: str, known: Mapping[str, Layer]) -> bool:
    return name not in known or known[name].kind is None


def _without_shared(jump: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Jumps minus the jump that more than half of the layers share in the same direction.

    >>> _without_shared(np.array([-1.0, -1.5, -1.0, -4.0, 2.0]), np.full(5, True)).tolist()
    [0.0, -0.5, 0.0, -3.0, 2.0]
    """
    if known.sum() < 2:
        return jump
    majority = int(known.sum()) // 2
    upwards = max(float(np.sort(jump[known])[::-1][majority]), 0.0)
    downwards = max(float(np.sort(-jump[known])[::-1][majority]), 0.0)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        left = np.where(jump > 0, jump - upwards, jump + downwards)
    return np.where(np.isnan(left) | (np.sign(left) != np.sign(jump)), 0.0, left)


def _short(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}" if ratio < 1e6 else f"{ratio:.0e}"


def _padded(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """With a column in front, to pick where there is no number."""
    return np.pad(numbers, ((0, 0), (1, 0)))


def _pick(ordered: NDArray[np.float64], place: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(
        place >= 0, np.take_along_axis(_padded(ordered), np.maximum(place, -1)[:, None] + 1, axis=1)[:, 0], np.nan
    )


def _median(ordered: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    return (_pick(ordered, (count - 1) // 2) + _pick(ordered, count // 2 - (count == 0))) / 2
