"""What a user pays: real training loops under ``monitorch.watch``, which do not wait for the device between steps."""

from __future__ import annotations

import contextlib
import gc
import io
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from . import counters
from .measure import Effort, Trial
from .models import workload
from .subjects import Watcher
from .windows import Turns, calm, compare, is_true, neighbours, whole_run

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "budget": {"budget": 0.02},
    "every10": {"every": 10},
    "every1": {"every": 1},
    "all": {"lenses": "all"},
    "all10": {"lenses": "all", "every": 10},
}
"""Options of ``monitorch.watch`` by name."""

USUAL = ("default", "budget", "every10", "every1")
"""Those of every model; all signals are turned on for some."""

SIGNALS = ("gpt=10m", "gpt=10m-busy")
"""The models with all signals on at every tenth step: the second one keeps a GPU busy."""

SMALL = ("mlp", "mlp=2x32", "mlp=20x64", "cnn")

COMPILES = 12
"""Steps in which a watched model compiles both its graphs, that of observed steps and that of others, and in which one
of every ten steps is observed for the first time, which compiles kernels for a GPU."""

SETTLES = 100
"""Steps after which a budget has found its cadence."""

FEWEST = 8
"""Steps of a window: the first one seems to last as long as the bare window before it, and must be an exception."""

MANY_STEPS = 300
"""With more steps in a window, a third of it is enough. A machine changes its speed within seconds: the sooner windows
take turns, the less of that is left in their ratio."""

WHOLE_RUNS = (5.0, 60.0)
"""Runs whose whole cost is told, in seconds of bare training."""


@dataclass(frozen=True)
class UserCase:
    """One way to watch one model."""

    model: str
    setting: str = "default"
    compiled: bool = False
    seconds: float = 0.0  # train at least so long, bare

    @property
    def name(self) -> str:
        """What ``--only`` calls the model."""
        return self.model + ("-compiled" if self.compiled else "")

    @property
    def has_allowance(self) -> bool:
        """Whether it may spend some seconds at once."""
        return SETTINGS[self.setting].keys().isdisjoint({"every", "budget"})

    @property
    def compiles_at_once(self) -> bool:
        """Whether all that is compiled is compiled in the first three steps: the first ones are observed."""
        return not self.compiled and "every" not in SETTINGS[self.setting]

    @property
    def label(self) -> str:
        """The call in short."""
        return ", ".join(f"{name}={value}" for name, value in SETTINGS[self.setting].items()) or self.setting


@dataclass(frozen=True)
class Pace:
    """How long to measure, in seconds of one of the two models."""

    window: float
    first: float  # at most so long until the first seconds are spent, or a budget has settled
    later: int  # windows after that
    recent: float  # at most so long after that, until the overhead shown is about these windows alone
    precise: float  # and at most so long, until the overhead is known well enough to judge what is shown
    alone: float  # training in a process of its own, whose memory is measured
    whole_runs: tuple[float, ...] = WHOLE_RUNS


def pace(effort: Effort) -> Pace:
    """Short on a GPU, whose time is dear."""
    if effort.quick:
        return Pace(window=0.02, first=0.04, later=2, recent=0.0, precise=0.0, alone=0.05, whole_runs=(0.02, 0.1))
    if effort.device == "cuda":
        return Pace(window=1.2, first=36.0, later=8, recent=30.0, precise=40.0, alone=0.0)
    return Pace(window=1.5, first=30.0, later=12, recent=30.0, precise=40.0, alone=3.0)


def plan(device: str, only: str | None = None, long: bool = False) -> list[UserCase]:
    """The cases of a device, the most telling first; ``only`` names models, or a model and a setting: mlp:default.

    On a GPU whole runs of a minute are left out unless ``long`` asks for them, and so are some settings.
    """
    short, minute = WHOLE_RUNS
    longest = minute if device == "cpu" or long else short
    cases = list(_on_gpu(longest) if device == "cuda" else _on_cpu(longest))
    if only is None:
        return cases
    wanted = only.split(",")
    known = {word for case in cases for word in (case.name, f"{case.name}:{case.setting}")}
    if unknown := [word for word in wanted if word not in known]:
        names = ", ".join(dict.fromkeys(case.name for case in cases))
        raise ValueError(f"no case is called {', '.join(unknown)}; there are {names}, each with :SETTING or all of it")
    return [case for case in cases if not {case.name, f"{case.name}:{case.setting}"}.isdisjoint(wanted)]


def _all_settings(models: Iterable[str], longest: float) -> Iterator[UserCase]:
    for model in models:
        for setting in USUAL:
            yield UserCase(model, setting, seconds=longest if setting == "default" else 0.0)


def _on_cpu(longest: float) -> Iterator[UserCase]:
    yield from _all_settings(SMALL, longest)
    yield UserCase("mlp", "all")
    yield UserCase(SIGNALS[0], "all10")


def _on_gpu(longest: float) -> Iterator[UserCase]:
    """Steps of large models are long: it takes a while until the default observes one of them again."""
    yield from _all_settings(["gpt2"], max(longest, 10.0))
    yield from _all_settings(["mlp"], longest)
    yield UserCase("gpt2", "all", seconds=10.0)
    yield from (UserCase(model, "all10") for model in SIGNALS)
    yield UserCase("gpt2-xl", seconds=15.0)
    yield UserCase("gpt2", compiled=True, seconds=10.0)
    yield UserCase("gpt2-xl", compiled=True, seconds=15.0)
    yield UserCase("gpt2-xl", "all", seconds=15.0)
    yield UserCase("gpt2", "all", compiled=True, seconds=10.0)
    yield from (UserCase(model, seconds=longest) for model in SMALL[1:])


class Watched(Watcher):
    """A model under ``monitorch.watch``, with its run in ``folder``."""

    def __init__(self, trial: Trial, options: Mapping[str, Any], folder: Path) -> None:
        import monitorch  # here, since a bare process must not pay for it

        with contextlib.redirect_stdout(io.StringIO()):  # where to see the run: nobody will look
            self.watch = monitorch.watch(trial.model, trial.optimizer, loss_fn=trial.loss_fn, folder=folder, **options)

    def settle(self) -> None:
        """Wait for the thread that shows ticks: what it does belongs to the watched window."""
        self.watch.inspector.state.settle()

    def overhead(self) -> tuple[float | None, bool]:
        """What monitorch says that it costs, and whether it says that it may be more."""
        return self.watch.inspector.overhead, self.watch.inspector.overhead_is_lower_bound

    def recent_steps(self) -> int:
        """How many steps that is about."""
        return self.watch.inspector.state.cadence.cost.recent_steps

    def seen(self) -> int | None:
        """The number of records of the last tick."""
        return len(self.watch.records())

    def close(self) -> float:
        """End the run; the seconds that takes."""
        start = time.perf_counter()
        self.watch.close()
        return time.perf_counter() - start


def train(trial: Trial, steps: int) -> float:
    """Train so many steps without waiting in between, then wait for all that they have started; the seconds.

    On a device the last tick may not be finished yet, since ticks take their time there. Nobody who goes on training
    waits for it, so that wait does not count.
    """
    start = time.perf_counter()
    for _ in range(steps):
        trial.train()
    counters.synchronize(trial.device)
    trained = time.perf_counter()
    if isinstance(trial.watcher, Watched):
        trial.watcher.settle()
    return (trained if trial.device == "cuda" else time.perf_counter()) - start


class CountsCpu:
    """Trains a window, and notes the CPU time of all threads: other programs on the machine do not change it much."""

    def __init__(self, train: Callable[[int], float]) -> None:
        self._train = train
        self.seconds: list[float] = []

    def __call__(self, steps: int) -> float:
        """Train so many steps; the seconds by the clock."""
        start = time.process_time()
        seconds = self._train(steps)
        self.seconds.append(time.process_time() - start)
        return seconds


def warm_up(trial: Trial) -> float:
    """Train until everything is compiled; the seconds of a step after that, when nothing else disturbs it."""
    train(trial, 3)
    steps = 1
    while train(trial, steps) < 0.05 and steps < 64:
        steps *= 2
    return min(train(trial, steps) for _ in range(3)) / steps


@dataclass(frozen=True)
class Bare:
    """The model that nobody watches."""

    trial: Trial
    step: float
    bytes: int | None


def bare(model: str, compiled: bool, effort: Effort) -> Bare:
    """A new one for each case: one that has been trained for longer may take another time for its steps."""
    if effort.device == "cuda":  # what CUDA's libraries allocate once belongs to no model
        train(_unwatched("gpt", False, effort), 2)
        gc.collect()
    held = counters.allocated(effort.device)
    trial = _unwatched(model, compiled, effort)
    step = warm_up(trial)
    counters.forget_peak(effort.device)
    train(trial, 3)
    return Bare(trial, step, counters.peak_since(held, effort.device))


def _unwatched(model: str, compiled: bool, effort: Effort) -> Trial:
    return Trial(workload(model, effort.device, effort.quick), effort.device, compiled, lambda trial: Watcher())


def measure(case: UserCase, effort: Effort) -> dict[str, Any]:
    """The figures of a case; ``problem`` says why there are none."""
    start = time.perf_counter()
    row: dict[str, Any] = {**asdict(case), "label": case.label, "problem": None}
    try:
        row |= _compare(case, effort)
    except Exception as error:
        row["problem"] = f"failed: {type(error).__name__}: {error}"
    gc.collect()
    if effort.device == "cuda":
        torch.cuda.empty_cache()
    return {**row, "took_s": round(time.perf_counter() - start, 2)}


def _compare(case: UserCase, effort: Effort) -> dict[str, Any]:
    plain, how = bare(case.model, case.compiled, effort), pace(effort)
    least = min(case.seconds, how.whole_runs[-1])
    with tempfile.TemporaryDirectory() as folder:
        held = counters.allocated(effort.device)
        trial, watcher = _watched(case, effort, Path(folder))
        try:
            if case.compiled or effort.device == "cuda":
                train(trial, 3 if case.compiles_at_once else COMPILES)  # compiling is not charged, of kernels neither
            if case.compiled:
                gc.collect()  # nor is going over millions of objects that it leaves: two seconds for GPT-2 XL
            counters.forget_peak(effort.device)
            steps = steps_of_window(how.window / plain.step)
            without, with_ = CountsCpu(partial(_pausing, watcher, plain.trial)), CountsCpu(partial(train, trial))
            turns = Turns(without, with_, steps)
            first = _first_stretch(turns, case, how)
            first_extra = turns.extra
            while len(turns.watched) < first + how.later or sum(turns.around) <= least:
                turns.take()
            while _is_about_more(watcher, turns, first) and sum(turns.watched[first:]) < how.recent:
                turns.take()
            while _is_vague(turns, first, watcher.recent_steps()) and sum(turns.watched[first:]) < how.precise:
                turns.take()
            bytes_ = counters.peak_since(held, effort.device)
            (said, is_bound), recently = watcher.overhead(), watcher.recent_steps()
        finally:
            closing = watcher.close()
        seen = watcher.seen()
    around, places = turns.around, _calm(turns, first)
    row = compare(_at(places, around), _at(places, turns.watched), turns.steps)
    overhead, error = _recent_overhead(turns, first, recently)
    runs = {f"{seconds:g}": whole_run(around, turns.watched, seconds, closing) for seconds in how.whole_runs}
    row |= {
        "cpu_ratio": _cpu_ratio(without.seconds, with_.seconds, places, turns.steps),
        "said": said,
        "said_is_bound": is_bound,
        "overhead": overhead,
        "overhead_error": error,
        "said_is_true": None if said is None else is_true(said, overhead, error, is_bound),
        "whole_runs": {} if case.compiled or case.setting != "default" else runs,
        "first_windows": first,
        "first_extra_s": first_extra,
        "closing_s": closing,
        "memory_gib": None if bytes_ is None or plain.bytes is None else (bytes_ - plain.bytes) / 2**30,
        "bare_s": turns.bare,
        "watched_s": turns.watched,
        "bare_cpu_s": without.seconds,
        "watched_cpu_s": with_.seconds,
        "seen": seen,
    }
    return row if seen else row | {"problem": "failed: nothing was recorded"}


def steps_of_window(fit: float) -> int:
    """How many steps a window has, if so many fit into its time."""
    return max(FEWEST, round(fit if fit <= MANY_STEPS else fit / 3))


def _watched(case: UserCase, effort: Effort, folder: Path) -> tuple[Trial, Watched]:
    work, options = workload(case.model, effort.device, effort.quick), SETTINGS[case.setting]
    made: list[Watched] = []

    def watch(trial: Trial) -> Watched:
        made.append(Watched(trial, options, folder))
        return made[0]

    return Trial(work, effort.device, case.compiled, watch), made[0]


def _pausing(watcher: Watched, trial: Trial, steps: int) -> float:
    """A bare window. The watch is paused: time that the other model takes is no training time of the watched one."""
    with watcher.watch.inspector.paused():
        return train(trial, steps)


def _first_stretch(turns: Turns, case: UserCase, how: Pace) -> int:
    """Let the default spend what it may spend at once, and a budget find its cadence; the windows that took."""

    def is_over() -> bool:
        from monitorch.watching.model_watch import BUDGET, HEAD_START  # here, since a bare process must not pay for it

        if case.has_allowance:
            return turns.extra >= HEAD_START + BUDGET * sum(turns.around)
        return sum(turns.watched) >= how.first / 10 and len(turns.watched) * turns.steps >= SETTLES

    while not is_over() and sum(turns.watched) < how.first:
        turns.take()
    return len(turns.watched)


def _is_about_more(watcher: Watched, turns: Turns, first: int) -> bool:
    """Whether the overhead that is shown reaches back into the first stretch, where some steps are like no others."""
    return watcher.recent_steps() > turns.steps * (len(turns.watched) - first)


def _calm(turns: Turns, first: int) -> list[int]:
    """The places of the watched windows from this one on that nothing else has disturbed; if there are none, of all."""
    places = range(first, len(turns.watched))
    return [place for place, is_calm in enumerate(calm(turns.bare)) if is_calm and place >= first] or list(places)


def _at(places: Iterable[int], numbers: Sequence[float]) -> list[float]:
    return [numbers[place] for place in places]


def _cpu_ratio(bare: Sequence[float], watched: Sequence[float], places: Sequence[int], steps: int) -> float:
    return float(compare(_at(places, neighbours(bare)), _at(places, watched), steps)["ratio"])


def _recent_overhead(turns: Turns, first: int, steps: int) -> tuple[float, float]:
    """The mean over windows since the first stretch, and its standard error.

    If the last so many steps reach further back, earlier windows count as well. What is shown is a mean, too: a median
    would leave out whatever few windows hold.
    """
    start = min(first, max(0, len(turns.watched) - max(1, round(steps / turns.steps))))
    places = _calm(turns, start)
    found = compare(_at(places, turns.around), _at(places, turns.watched), turns.steps)
    return found["mean"] - 1, found["error"]


def _is_vague(turns: Turns, first: int, steps: int) -> bool:
    """Whether the overhead is not known to a tenth of itself, or to half a percentage point."""
    overhead, error = _recent_overhead(turns, first, steps)
    return error > max(0.1 * overhead, 0.005)


def footprint(case: UserCase, is_watched: bool, effort: Effort) -> int | None:
    """Most bytes of this process, which has to be a fresh one, when it trains for a while; None: it cannot tell."""
    with tempfile.TemporaryDirectory() as folder:
        if is_watched:
            trial, watcher = _watched(case, effort, Path(folder))
        else:
            trial = _unwatched(case.model, case.compiled, effort)
        start = time.perf_counter()
        while time.perf_counter() - start < pace(effort).alone:
            train(trial, 5)
        if is_watched:
            watcher.close()
    return counters.peak_of_process()
