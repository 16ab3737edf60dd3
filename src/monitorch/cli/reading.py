"""Finds the runs and numbers that the options of a command select."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..diagnosis import ranking
from ..errors import OptionError
from ..store import DEFAULT_FOLDER, WHOLE_RUN, Axis, LensInfo, Run, Statistic, Window, list_runs, open_run

T = TypeVar("T")


class Choice(NamedTuple):
    """A statistic of a lens, and some of its layers; the lens as it was when chosen, since the run may grow."""

    lens: LensInfo
    statistic: Statistic
    layers: tuple[str, ...]


class Numbers(NamedTuple):
    """Numbers ``[layer, tick]``, and how many samples of each were non-finite.

    NaN with a count of 0 means not measured.
    """

    layers: tuple[str, ...]
    axis: Axis
    last_step: NDArray[np.int64]
    values: NDArray[np.float32]
    nonfinite: NDArray[np.integer[Any]]

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Where there is a number, finite or not."""
        return ~np.isnan(self.values) | (self.nonfinite > 0)


def find_run(options: argparse.Namespace, name: str | None) -> Run:
    """The run with this folder, file or name; without one, the newest."""
    folder = Path(options.runs or DEFAULT_FOLDER)
    if name is None:
        runs = list_runs(folder)
        readable = [info for info in runs if info.problem is None]
        if not readable:
            why = "".join(f"; {info.name} {info.problem}" for info in runs)
            cure = "train with monitorch.watch(model, optimizer), name a run, or --runs DIR to look elsewhere"
            raise OptionError(f"there is no run in {folder}: {cure}{why}")
        return open_run(readable[0].path, options.rank)
    inside = folder / name
    if Path(name).is_file() or _is_run(Path(name)) or not _is_run(inside):
        inside = Path(name)
    if not inside.exists():
        known = [info.name for info in list_runs(folder)]
        cure = f"choose from {', '.join(known)}" if known else "--runs DIR says where runs are"
        raise OptionError(f"there is no run {name!r}, neither here nor in {folder}; {cure}")
    return open_run(inside, options.rank)


def _is_run(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob("rank*"))


def choose(
    run: Run,
    options: argparse.Namespace,
    *,
    with_edges: bool,
    whole_run: bool = False,
    more: Sequence[LensInfo] = (),
) -> list[Choice]:
    """The statistics and layers that pass the filters.

    Args:
        run: the run to choose from.
        options: with ``lens``, ``statistic`` and ``layers``.
        with_edges: also include band edges, counts and facts of parameters, such as checksums; with a filter by name
            they are always included.
        whole_run: also include numbers of the whole model.
        more: what else there is to choose from.
    """
    lenses = [*more, *(lens for lens in run.lenses.values() if lens.ticks and (whole_run or lens.name != WHOLE_RUN))]
    matching = _matching("lens", options.lens, {lens.name: lens for lens in lenses}).values()
    names = {statistic.name: statistic for lens in matching for statistic in lens.statistics}
    statistics = set(_matching("statistic", options.statistic, names))
    layers = set(_matching("layers", options.layers, {layer: None for lens in matching for layer in lens.layers}))
    with_edges = with_edges or options.statistic is not None
    return [
        Choice(lens, statistic, shown)
        for lens in matching
        if (shown := tuple(layer for layer in lens.layers if layer in layers))
        for statistic in (lens.statistics if with_edges else ranking.sizes(lens))
        if statistic.name in statistics
    ]


def recent(run: Run, choice: Choice, ticks: int) -> Numbers:
    """The last ticks of a statistic; where only averages are stored, their columns."""
    return _numbers(ranking.recent(run, choice.lens, choice.statistic, choice.layers, ticks))


def every_tick(run: Run, choice: Choice, layers: Sequence[str]) -> Numbers:
    """All ticks of a statistic."""
    return _read(run, choice, layers, ranking.ALL_TICKS)


def _read(run: Run, choice: Choice, layers: Sequence[str], columns: int) -> Numbers:
    lens = choice.lens
    return _numbers(run.window(lens.name, choice.statistic.name, None, lens.last_step, columns, layers))


def _numbers(found: Window) -> Numbers:
    return Numbers(found.layers, found.axis, found.last_step, found.mean, found.nonfinite)


def outline(run: Run, choice: Choice, columns: int) -> Numbers:
    """The whole run in at most this many columns."""
    return _read(run, choice, choice.layers, columns)


def pieces(layers: Sequence[str], size: int = 64) -> Iterable[Sequence[str]]:
    """Layers in groups, so that the numbers of a large model fit into memory."""
    return (layers[start : start + size] for start in range(0, len(layers), size))


def _matching(option: str, pattern: re.Pattern[str] | None, names: dict[str, T]) -> dict[str, T]:
    if pattern is None:
        return names
    found = {name: value for name, value in names.items() if pattern.search(name)}
    if not found:
        shown = ", ".join(list(names)[:12]) + (", ..." if len(names) > 12 else "")
        raise OptionError(f"--{option} {pattern.pattern} matches nothing; there are {shown or 'none'}")
    return found
