"""What the project wants to cost at most, and whether it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]
ON = {"cuda": "GPU", "cpu": "CPU, one thread"}


class Target(NamedTuple):
    """A figure of all eight lenses together, and what it may be."""

    device: str
    model: str
    limit: float | Callable[[float], float]  # or of what is measured at every step
    compiled: bool = False
    correlation: str = "exact"
    every: int = 1
    figure: str = "ratio"

    def wanted(self) -> dict[str, Any]:
        """The case in which it is measured."""
        setting = {"correlation": self.correlation, "every": self.every, "compiled": self.compiled, "tick": 0}
        return {"model": self.model, "subject": "monitorch", "lenses": "all", **setting}


def tenth(ratio: float) -> float:
    """Two observed steps in ten, and one percent."""
    return 1 + 0.2 * (ratio - 1) + 0.01


def cadence(device: str, model: str) -> list[Target]:
    """What one step in ten may cost."""
    return [Target(device, model, tenth, every=10), Target(device, model, 1.03, correlation="none", every=10)]


FIGURES = {
    "ratio": "ratio",
    "memory_gib": "GiB added",
    "breaks": "graph breaks",
    "us_per_module": "µs added per module",
}

TARGETS = [
    Target("cuda", "gpt2", 1.25),
    Target("cuda", "gpt2", 1.13, correlation="sketch"),
    Target("cuda", "gpt2", 0.3, correlation="sketch", figure="memory_gib"),
    Target("cuda", "gpt2", 1.28, compiled=True),
    Target("cuda", "gpt2", 0, compiled=True, figure="breaks"),
    Target("cuda", "mlp", 1.5),
    Target("cuda", "cnn", 1.5),
    Target("cpu", "mlp", 1.35),
    Target("cpu", "cnn", 1.12),
    Target("cuda", "layers=100", 60, figure="us_per_module"),
    *(target for model in ("gpt2", "mlp", "cnn") for target in cadence("cuda", model)),
    *(target for model in ("mlp", "cnn") for target in cadence("cpu", model)),
]


def judge(runs: Sequence[Row]) -> Iterator[list[str]]:
    """One line per target: on, what, target, measured, met."""
    for target in TARGETS:
        rows = [row for run in runs if run["device"] == target.device for row in run["cases"]]
        wanted = target.wanted()
        measured = _find(rows, wanted, target.figure)
        limit = target.limit
        if callable(limit):
            whole = _find(rows, wanted | {"every": 1}, target.figure)
            limit = float("nan") if whole is None else limit(whole)
        on = ON[target.device]
        shown = ["not measured", ""] if measured is None else [f"{measured:.4g}", _verdict(measured, limit)]
        yield [
            on,
            _words(target),
            f"at most {limit:.4g}" if limit == limit else "1 + 0.2 (ratio of every step - 1) + 0.01",
            *shown,
        ]


class TickTarget(NamedTuple):
    """What a tick may cost, with runs stored and ten observed steps between two ticks."""

    layers: int
    reads_parameters: bool
    figure: str
    limit: float


TICKS = [
    TickTarget(76, False, "thread_ms", 2),
    TickTarget(76, True, "thread_ms", 2),
    TickTarget(76, True, "cpu_ms", 10),
    TickTarget(760, False, "thread_ms", 10),
    TickTarget(760, True, "thread_ms", 10),
]


def judge_ticks(runs: Sequence[Row]) -> Iterator[list[str]]:
    """The same for ticks."""
    for run in runs:
        for target in TICKS:
            for row in run.get("ticks", ()):
                if (row["layers"], row["parameters"]) == (target.layers, target.reads_parameters):
                    on = ON[run["device"]]
                    reads = ", parameters read" if target.reads_parameters else ""
                    kind = {"thread_ms": "ms of the training thread", "cpu_ms": "ms of CPU time, all threads"}
                    what = f"a tick of {row['series']:,} series{reads}, {kind[target.figure]}"
                    measured = row[target.figure]
                    yield [on, what, f"at most {target.limit:.4g}", f"{measured:.4g}", _verdict(measured, target.limit)]


HOOKS = 10 / 3
"""What an idle step, and its loss, may cost, as multiples of four empty hooks: 10 µs where these take 3."""


def judge_idle(runs: Sequence[Row]) -> Iterator[list[str]]:
    """The same for idle steps."""
    for run in runs:
        for row in run.get("idle", ()):
            for figure, what in (("idle_us", "idle steps"), ("loss_us", "their losses")):
                ratio = row[figure] / row["empty_us"]
                words = f"{what} of {row['layers']} layers, as multiples of four empty hooks"
                yield [ON[run["device"]], words, f"at most {HOOKS:.3g}", f"{ratio:.3g}", _verdict(ratio, HOOKS)]


class UserTarget(NamedTuple):
    """What a user may pay at most."""

    figure: str  # a key of a row; "run of N s": that of a whole run
    limit: float
    setting: str = "default"
    device: str | None = None  # None: each
    models: tuple[str, ...] = ()  # none: each

    def applies(self, device: str, row: Row) -> bool:
        """Whether it is about this row."""
        is_there = self.device in (None, device) and (not self.models or model_of(row) in self.models)
        return is_there and row["setting"] == self.setting and not row["problem"]

    def measured(self, row: Row) -> float | None:
        """The figure, if there is one."""
        value = row["whole_runs"].get(self.figure.split()[2]) if self.figure in RUNS else row.get(self.figure)
        return None if value is None else float(value)


RUNS = ("run of 5 s", "run of 60 s")
USER_FIGURES = {"ratio": "ratio", "memory_gib": "GiB added", **{run: f"{run}, ratio" for run in RUNS}}
USER = [
    UserTarget("ratio", 1.04, device="cuda", models=("gpt2", "gpt2 compiled", "gpt2-xl", "gpt2-xl compiled")),
    UserTarget("memory_gib", 0.15, device="cuda", models=("gpt2", "gpt2 compiled")),
    UserTarget("memory_gib", 0.5, device="cuda", models=("gpt2-xl", "gpt2-xl compiled")),
    UserTarget("ratio", 1.04, device="cpu", models=("mlp", "mlp=2x32", "mlp=20x64")),
    UserTarget("ratio", 1.04, setting="all"),
    UserTarget("memory_gib", 0.15, setting="all", device="cuda", models=("gpt2", "gpt2 compiled")),
    UserTarget("memory_gib", 0.5, setting="all", device="cuda", models=("gpt2-xl",)),
    UserTarget("ratio", 1.05, setting="all10"),
    UserTarget("run of 5 s", 1 + 2 / 5 + 0.03),  # two seconds at once, and three percent
    UserTarget("run of 60 s", 1.07),
    UserTarget("ratio", 1.025, setting="budget"),  # two percent, give or take half a percent
]


def model_of(row: Row) -> str:
    """The name of a row's model."""
    return str(row["model"]) + (" compiled" if row["compiled"] else "")


def user_limit(device: str, row: Row) -> float | None:
    """The ratio that a row may have, where there is a target for it."""
    return next((target.limit for target in USER if target.figure == "ratio" and target.applies(device, row)), None)


def user_rows(runs: Iterable[Row]) -> dict[str, list[Row]]:
    """The users' cases of each device, whenever they were measured, by model and the default first."""
    found: dict[str, list[Row]] = {}
    for run in runs:
        found.setdefault(run["device"], []).extend(run.get("user", []))
    return {
        device: sorted(rows, key=lambda row: (model_of(row), row["setting"] != "default", row["label"]))
        for device, rows in found.items()
    }


def judge_user(runs: Sequence[Row]) -> Iterator[list[str]]:
    """The same for what users pay; at the end of each device, in how many cases the overhead that is shown is true."""
    for device, rows in user_rows(runs).items():
        for target in USER:
            for row in rows:
                measured = target.measured(row) if target.applies(device, row) else None
                if measured is not None:
                    what = f"watch, {model_of(row)}, {row['label']}, {USER_FIGURES[target.figure]}"
                    verdict = [f"{measured:.4g}", _verdict(measured, target.limit)]
                    yield [ON[device], what, f"at most {target.limit:.4g}", *verdict]
        known = [row for row in rows if not row["problem"]]
        if known:
            true, false = (sum(row["said_is_true"] is answer for row in known) for answer in (True, False))
            verdict = "**no**" if false else "yes" if true == len(known) else "cannot be told"
            yield [ON[device], "watch, cases whose shown overhead is true", str(len(known)), str(true), verdict]


def _find(rows: Iterable[Row], wanted: dict[str, Any], figure: str) -> float | None:
    own = [row for row in rows if wanted.items() <= row.items() and not row["problem"]]
    if figure == "us_per_module":
        return next((row["added_ms"] * 1e3 / row["modules"] for row in own), None)
    values = [row.get(figure) for row in own]
    return next((float(value) for value in values if value is not None), None)


def _verdict(measured: float, limit: float) -> str:
    return "" if limit != limit else "yes" if measured <= limit else "**no**"


def _words(target: Target) -> str:
    words = [target.model + (" compiled" if target.compiled else " eager")]
    words += {"exact": [], "sketch": ["sketched"], "none": ["no correlation"]}[target.correlation]
    words += [f"every {target.every}"] if target.every > 1 else []
    return ", ".join([*words, FIGURES[target.figure]])
