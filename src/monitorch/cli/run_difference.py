"""Compares two runs number by number."""

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..diagnosis import SampleHistory
from ..diagnosis.history import LOSS, TRAINING
from ..diagnosis.ranking import central
from ..statistic import Role
from ..store import WHOLE_RUN, Axis, LensInfo, Run, Statistic
from .reading import Choice, Numbers, choose, every_tick, pieces
from .run_facts import newest_frames
from .tick_pairs import Places, paired_ticks

SETTINGS = ("config", "model", "optimizers", "script", "git", "machine", "versions")
"""The facts of a run that say how it was trained."""

_SPEED = re.compile("per second")
"""Never the same in two runs, so compared only on request."""

LOSSES = LensInfo("losses", (Statistic("Loss/every step"),), (TRAINING,), 1, None, None)
"""What the training losses of all steps are listed as, beside the lenses."""


class Parting(NamedTuple):
    """Two numbers that differ, and the step of each; None if one was not measured."""

    step: int
    step_b: int
    layer: str
    a: float | None
    b: float | None
    difference: float


class StatisticDifference(NamedTuple):
    """A statistic of both runs: how many numbers were compared, how many differ, the first and largest difference."""

    lens: str
    statistic: str
    role: Role
    compared: int
    beyond: int
    first: Parting | None
    largest: Parting | None


class Ticks(NamedTuple):
    """How many ticks of a lens were compared, how many of each run were left out, and the most steps between two.

    ``apart`` is 0 if they were compared at the same steps, and not each with the nearest one of the other run.
    """

    both: int
    only_a: int
    only_b: int
    apart: int


class RunDifference(NamedTuple):
    """All differences of two runs; names that only one of them has are ``lens``, ``lens/statistic`` or layers.

    ``settings`` are those that differ, such as ``config.lr``, with the value of each run; None where one has none.
    ``newest`` has the same for the newest losses and other numbers of the whole run, different or not.
    """

    statistics: list[StatisticDifference]
    only_a: dict[str, list[str]]
    only_b: dict[str, list[str]]
    ticks: dict[str, Ticks]
    settings: dict[str, tuple[Any, Any]]
    newest: dict[str, tuple[Any, Any]]

    @property
    def same(self) -> bool:
        """Whether all numbers are within the tolerance, none is missing, and there was something to compare."""
        missing = any(names for side in (self.only_a, self.only_b) for names in side.values())
        return not missing and not self.parted and any(part.compared for part in self.statistics)

    @property
    def parted(self) -> list[StatisticDifference]:
        """The statistics that differ, earliest first; at the same step, band edges, shares and counts come last."""
        keyed = [(part.first.step, part.role != "line", part) for part in self.statistics if part.first]
        return [part for *_, part in sorted(keyed, key=lambda one: one[:2])]


def compare_runs(a: Run, b: Run, options: argparse.Namespace) -> RunDifference:
    """Compare the numbers that both have at the same steps, or at the nearest ones; losses at every step."""
    losses = _losses(a), _losses(b)
    lenses = [LOSSES] if all(len(one.axis.step) for one in losses) else []
    ours, theirs = _chosen(a, options, lenses), _chosen(b, options, lenses)
    ticks: dict[str, Ticks] = {}
    statistics = []
    for key, choice in ours.items():
        if key in theirs:
            read = [losses] if choice.lens is LOSSES else _pieces(a, b, choice, theirs[key])
            statistic, ticks[choice.lens.name] = _compare(choice, read, options.tolerance)
            statistics.append(statistic)
    settings = differing_settings(a.meta, b.meta)
    one, other = _newest(a), _newest(b)
    newest = {name: (one.get(name), other.get(name)) for name in one | other}
    return RunDifference(statistics, _only(ours, theirs), _only(theirs, ours), ticks, settings, newest)


def _newest(run: Run) -> dict[str, np.float32]:
    lens, frame = run.lenses.get(WHOLE_RUN), newest_frames(run).get(WHOLE_RUN)
    if lens is None or frame is None:
        return {}
    return {one.name: frame.values[frame.statistics.index(one.name), 0] for one in central(lens)}


def differing_settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings in which two runs differ, from the facts of each.

    >>> differing_settings({"config": {"lr": 0.1, "depth": 4}}, {"config": {"lr": 0.2, "depth": 4}, "script": "t.py"})
    {'config.lr': (0.1, 0.2), 'script': (None, 't.py')}
    """
    one, other = (dict(_flat("", {name: facts.get(name) for name in SETTINGS})) for facts in (a, b))
    pairs = {name: (one.get(name), other.get(name)) for name in one | other}
    return {name: pair for name, pair in pairs.items() if repr(pair[0]) != repr(pair[1])}  # NaN is not equal to itself


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The single values inside of a value, with their paths."""
    if isinstance(value, Mapping) and value:
        inside: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        inside = enumerate(value)
    else:
        yield path, value
        return
    for name, item in inside:
        yield from _flat(f"{path}.{name}" if path else str(name), item)


def relative_difference(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """The difference relative to the larger number; infinite if only one is finite, 0 if both are NaN.

    >>> relative_difference(np.array([2.0, np.nan, np.inf]), np.array([1.0, np.nan, -np.inf]))
    array([0.5, 0. , inf])
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))
    share = np.where(np.isfinite(a) & np.isfinite(b), share, np.inf)
    return np.where(same, 0.0, share)


def _losses(run: Run) -> Numbers:
    """The training loss of every step, as far as the run has kept it."""
    history = SampleHistory()
    for names, samples in run.samples(LOSS).get(LOSS, ()):
        history.add(LOSS, names, samples.places, samples.steps, samples.values)
    found = history.loss()
    values, size = found.values[None].astype(np.float32), len(found)
    axis = Axis(found.steps, np.zeros(size, np.int32), np.zeros(size))
    return Numbers((TRAINING,), axis, found.steps, values, np.isnan(values).astype(np.int64))


def _chosen(run: Run, options: argparse.Namespace, more: Sequence[LensInfo]) -> dict[tuple[str, str], Choice]:
    found = choose(run, options, with_edges=True, whole_run=True, more=more)
    if options.statistic is None:
        found = [choice for choice in found if not _SPEED.search(choice.statistic.name)]
    return {(choice.lens.name, choice.statistic.name): choice for choice in found}


def _only(here: dict[tuple[str, str], Choice], there: dict[tuple[str, str], Choice]) -> dict[str, list[str]]:
    """Lenses, statistics and layers that only this run has; layers that the other has elsewhere, by their lens."""
    lenses = {lens for lens, _ in there}
    known = {key: set(choice.layers) for key, choice in there.items()}
    layers = {layer for own in known.values() for layer in own}
    missing: dict[str, dict[str, None]] = {"layers": {}}  # each only once, in order
    for (lens, name), choice in here.items():
        for layer in choice.layers if (lens, name) in known else ():
            if layer not in known[lens, name]:
                missing.setdefault(f"layers of {lens}" if layer in layers else "layers", {})[layer] = None
    return {
        "lenses": list(dict.fromkeys(lens for lens, _ in here if lens not in lenses)),
        "statistics": [f"{lens}/{name}" for lens, name in here if lens in lenses and (lens, name) not in there],
        **{kind: list(names) for kind, names in missing.items()},
    }


def _pieces(a: Run, b: Run, ours: Choice, theirs: Choice) -> Iterator[tuple[Numbers, Numbers]]:
    """The numbers of both runs, for the layers that both have."""
    known = set(theirs.layers)
    for layers in pieces([layer for layer in ours.layers if layer in known]):
        yield every_tick(a, ours, layers), every_tick(b, theirs, layers)


def _compare(
    choice: Choice, read: Iterable[tuple[Numbers, Numbers]], tolerance: float
) -> tuple[StatisticDifference, Ticks]:
    compared = beyond = 0
    firsts: list[Parting] = []
    largest: list[Parting] = []
    ticks = Ticks(0, 0, 0, 0)
    for both in read:
        places = paired_ticks(*both)
        pairs = len(places[0])
        left_a, left_b = (len(one.last_step) - pairs for one in both)
        ticks = Ticks(pairs, left_a, left_b, int(np.ptp(_steps(*both, places), 0).max(initial=0)))
        share, measured = _shares(*both, places)
        compared += int(measured.sum())
        beyond += int((share > tolerance).sum())
        if (share > tolerance).any():
            column = int((share > tolerance).any(axis=0).argmax())
            row = int((share[:, column] > tolerance).argmax())
            firsts.append(_parting(*both, places, share, row, column))
            row, column = divmod(int(share.argmax()), share.shape[1])
            largest.append(_parting(*both, places, share, row, column))
    first = min(firsts, key=lambda one: one.step, default=None)
    worst = max(largest, key=lambda one: one.difference, default=None)
    names = choice.lens.name, choice.statistic.name, choice.statistic.role
    return StatisticDifference(*names, compared, beyond, first, worst), ticks


def _steps(a: Numbers, b: Numbers, places: Places) -> NDArray[np.int64]:
    """The steps of the ticks that are compared, ``[run, tick]``."""
    return np.stack([a.axis.step[places[0]], b.axis.step[places[1]]])


def _shares(a: Numbers, b: Numbers, places: Places) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Differences ``[layer, tick]``, and where numbers were compared.

    At the same step a number that only one run has is a difference, infinite; at different steps it is none.
    """
    one, other = a.measured[:, places[0]], b.measured[:, places[1]]
    share = relative_difference(a.values[:, places[0]], b.values[:, places[1]])
    is_same_step = np.ptp(_steps(a, b, places), 0) == 0
    compared = np.where(is_same_step, one | other, one & other)
    return np.where(compared, np.where(one == other, share, np.inf), 0.0), compared


def _parting(a: Numbers, b: Numbers, places: Places, share: NDArray[np.float64], row: int, column: int) -> Parting:
    here, there = int(places[0][column]), int(places[1][column])
    steps = int(a.axis.step[here]), int(b.axis.step[there])
    pair = _measured(a, row, here), _measured(b, row, there)
    return Parting(*steps, a.layers[row], *pair, float(share[row, column]))


def _measured(numbers: Numbers, row: int, column: int) -> Any:
    return numbers.values[row, column] if numbers.measured[row, column] else None
