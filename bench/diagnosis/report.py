"""Tables of scores, for a terminal and for RESULTS.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..report import cells, machine, markdown
from .case import Case
from .rules import RULES
from .runs import CADENCES
from .score import Run, delay, failures, named, remedies, score

RESULTS = Path(__file__).with_name("RESULTS.md")
Form = Callable[[Sequence[Sequence[str]]], str]
OURS = "monitorch, "


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _between(key: str) -> Callable[[dict[str, Any]], str]:
    """A share with the interval that resampled cases give."""

    def show(row: dict[str, Any]) -> str:
        if row[key] is None:
            return ""
        value, low, high = row[key]
        return f"{100 * value:.1f} % ({100 * low:.0f} to {100 * high:.0f})"

    return show


MEASURES: dict[str, Callable[[dict[str, Any]], str]] = {
    "diagnosis": lambda row: row["by"],
    "root cause first": _between("recall1"),
    "among three": _between("recall3"),
    "precision": lambda row: _share(row["precision"]),
    "healthy alarmed": lambda row: f"{row['alarmed']} of {row['healthy']}" if row["healthy"] else "",
    "at most": lambda row: _share(row["alarmed_bound"]),
    "as errors": lambda row: str(row["errors"]) if row["healthy"] else "",
    "twins alarmed": lambda row: f"{row['twins_alarmed']} of {row['twins']}" if row["twins"] else "",
    "layer": _between("layer"),
    "within one module": _between("layer_near"),
    "delay": lambda row: "" if row["delay"] is None else f"{row['delay']:.0f}",
    "95th": lambda row: "" if row["delay95"] is None else f"{row['delay95']:.0f}",
    "healed by first remedy": _between("healed"),
    "stored agrees": lambda row: _share(row["agreement"]),
}


def diagnosers(runs: Sequence[Run]) -> list[str]:
    """Whose findings there are, ours first."""
    there = {run["by"] for run in runs}
    return [by for by in (*CADENCES, *RULES) if by in there]


def label(by: str) -> str:
    """The name of a row."""
    return OURS + by if by in CADENCES else by


def scores(runs: Sequence[Run], cases: Mapping[str, Case]) -> list[dict[str, Any]]:
    """The measures of each diagnoser; for programs of others also alone."""
    rows = []
    for by in diagnosers(runs):
        own = [run for run in runs if run["by"] == by]
        rows.append({"by": label(by), **score(own, cases)})
    for by in diagnosers(runs):
        ports = [
            run for run in runs if run["by"] == by and run["case"] in cases and cases[run["case"]].family == "port"
        ]
        if ports:
            rows.append({"by": f"{label(by)}: programs of others", **score(ports, cases)})
    return rows


def by_symptom(runs: Sequence[Run], cases: Mapping[str, Case]) -> list[list[str]]:
    """For each symptom how often it was first, and after how many steps, by cadence."""
    ours = [by for by in diagnosers(runs) if by in CADENCES]
    lines = [["symptom", "cases", *(f"{by}: {what}" for by in ours for what in ("first", "delay"))]]
    for symptom in dict.fromkeys(case.symptom for case in cases.values()):
        line = [symptom, str(sum(case.symptom == symptom for case in cases.values()))]
        for by in ours:
            own = [
                (run, cases[run["case"]])
                for run in runs
                if run["by"] == by and run["kind"] == "fault" and cases[run["case"]].symptom == symptom
            ]
            delays = sorted(d for run, case in own if (d := delay(run, case)) is not None)
            line += [f"{sum(named(run, case, 1) for run, case in own)} of {len(own)}"]
            line += [str(delays[len(delays) // 2]) if delays else ""]
        if len(line) > 2 and any("of 0" not in cell for cell in line[2::2]):
            lines.append(line)
    return lines


def wrong(runs: Sequence[Run], cases: Mapping[str, Case]) -> list[list[str]]:
    """Each case that monitorch judges wrongly, and what it says instead."""
    lines = [["case", "seed", "cadence", "truth", "said"]]
    for run in failures([run for run in runs if run["by"] in CADENCES], cases):
        said = [
            f"{one['severity']} {one['symptom']}" + (f" in {one['layer']}" if one["layer"] else "")
            for one in run["findings"][:3]
        ]
        name = run["case"] + (" (twin)" if run["kind"] == "twin" else "")
        truth = cases[run["case"]].symptom if run["kind"] == "fault" else "healthy"
        told = run["problem"] or "; ".join(said) or "nothing"
        lines.append([name, str(run["seed"]), run["by"], truth, told.replace("|", " or ")])
    return lines


def unhealed(runs: Sequence[Run], cases: Mapping[str, Case]) -> list[list[str]]:
    """Each fault that the first remedy does not heal."""
    lines = [["case", "seed", "score", "twin", "remedy", "score with it"]]
    for run in remedies(runs, cases):
        if not run["healed"]:
            scores = [f"{run[key]:.2f}" if run[key] is not None else "" for key in ("score", "twin", "treated")]
            lines.append([run["case"], str(run["seed"]), *scores[:2], run["remedy"], scores[2]])
    return lines


TEXT = """Programs with a known fault, each with a healthy twin, and healthy programs that may look odd; small, on one
CPU thread, with data made by torch. A twin or a healthy program counts only if it reaches its target. No reference
run, no target and no source code is given to a diagnosis, and its thresholds are the same for all.

- *root cause first*, *among three*: share of cases in which the root cause is the first finding, or one of three.
- *precision*: of all warnings and errors in all runs, without those said to be consequences, how many name a root
  cause.
- *healthy alarmed*: healthy programs with a warning or an error; *at most* is the 95 % upper bound of their share.
- *layer*: the first finding names the right layer; *within one module*: or a neighbour, in the order in which they run.
- *delay*: steps from the fault to the first right finding, the median; *95th*: their 95th percentile.
- *healed by first remedy*: of faults that do harm and that an action of the vocabulary can heal, how many reach 95 % of
  their twin's score when they run again with the first remedy.
- *stored agrees*: how often a stored run gives the same first finding and the same warnings and errors.

Intervals are of 95 % and come from resampled cases. The rule sets of others were written anew from their descriptions,
get every step, and each of their verdicts counts for all symptoms that it may mean. SageMaker Debugger is without the
three rules that alarm on nearly every healthy run (LossNotDecreasing, PoorWeightInitialization, Overfit)."""


def document(report: Mapping[str, Any], cases: Mapping[str, Case]) -> str:
    """All of it, as RESULTS.md has it."""
    runs = report["runs"]
    kinds = [f"{len({run['case'] for run in runs if run['kind'] == kind})} {what}" for kind, what in KINDS.items()]
    parts = [
        "# How well problems of training are named",
        "Written by `python -m bench.diagnosis --write`; `make bench-diagnosis` runs it.",
        TEXT,
        f"{', '.join(kinds)}; {report['seeds']} seed(s). {machine(report)}; it took {report['minutes']:.0f} minutes.",
        markdown(cells(scores(runs, cases), MEASURES)),
        "## By symptom",
        markdown(by_symptom(runs, cases)),
        "## Judged wrongly",
        markdown(lines) if len(lines := wrong(runs, cases)) > 1 else "Nothing.",
    ]
    if len(lines := unhealed(runs, cases)) > 1:
        parts += ["## Not healed by the first remedy", markdown(lines)]
    if left_out := sorted({tuple(one) for row in scores(runs, cases) for one in row["left_out"]}):
        parts += ["## Left out", "Did not reach their target: " + ", ".join(f"{n} (seed {s})" for n, s in left_out)]
    return "\n\n".join(parts) + "\n"


KINDS = {"fault": "faulty programs with their twins", "healthy": "healthy programs"}
