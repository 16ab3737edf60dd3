"""Score what was found against what is true.

A run is a dictionary: ``case``, ``seed``, ``kind`` (fault, twin or healthy), ``by`` (whose findings), ``score`` and
``target`` of the program, ``findings`` (dictionaries, root cause first), ``order`` (leaf modules as they run), and
where they apply ``treated`` (the score after the first remedy) and ``agrees`` (whether the stored run says the same).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median, quantiles
from typing import Any

from .case import Case

Run = dict[str, Any]
NEAR = 0.95
"""A run has reached its twin with so much of its score."""

RESAMPLES = 1000


def is_right(finding: Mapping[str, Any], case: Case) -> bool:
    """Whether it names the root cause; rule sets may name several symptoms, with ``|`` between them."""
    return any(symptom in (case.symptom, *case.synonyms) for symptom in finding["symptom"].split("|"))


def alarms(run: Run) -> list[Mapping[str, Any]]:
    """Warnings and errors that no other finding explains."""
    return [one for one in run["findings"] if one["severity"] != "info" and one["caused_by"] is None]


def named(run: Run, case: Case, first: int) -> bool:
    """Whether the root cause is among the first findings."""
    return any(is_right(one, case) for one in run["findings"][:first])


def layer_distance(run: Run, case: Case) -> float:
    """How many modules, as they run, lie between the layer that the first finding names and the true one."""
    said = run["findings"][0]["layer"] if run["findings"] else None
    if said is None:
        return math.inf
    said = said.removesuffix(".weight").removesuffix(".bias")
    if said in case.layers:
        return 0
    there, true = (_places(run["order"], names) for names in ([said], case.layers))
    # what holds the right layer is near it, but not it
    return min((max(abs(a - b), 1) for a in there for b in true), default=math.inf)


def _places(order: Sequence[str], names: Iterable[str]) -> list[int]:
    inside = tuple(name for known in names for name in (known, f"{known}."))
    return [number for number, leaf in enumerate(order) if leaf in inside or leaf.startswith(inside[1::2])]


def delay(run: Run, case: Case) -> int | None:
    """Steps from the fault to the first finding that is right; None if there is none."""
    found = [one["detected_at"] for one in run["findings"] if is_right(one, case)]
    return max(min(found) - case.onset, 0) if found else None


def upper_bound(hits: int, count: int, level: float = 0.95) -> float:
    """The largest share that explains so few hits in this many runs.

    >>> round(upper_bound(0, 300), 4)
    0.0099
    """
    if hits >= count:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(60):
        share = (low + high) / 2
        chance = sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(hits + 1))
        low, high = (share, high) if chance > 1 - level else (low, share)
    return high


def interval(values: Mapping[str, Sequence[float]]) -> tuple[float, float, float] | None:
    """The mean over cases of numbers by case, and between which two it lies in 95 % of resampled sets of cases."""
    each = [mean(numbers) for numbers in values.values() if numbers]
    if not each:
        return None
    random_ = random.Random(0)
    drawn = sorted(mean(random_.choices(each, k=len(each))) for _ in range(RESAMPLES))
    return mean(each), drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]


def invalid(runs: Iterable[Run]) -> set[tuple[str, int]]:
    """Cases and seeds of which the healthy program did not reach its target: they are not scored."""
    return {(run["case"], run["seed"]) for run in runs if run["kind"] != "fault" and not run["score"] >= run["target"]}


def score(runs: Sequence[Run], cases: Mapping[str, Case]) -> dict[str, Any]:
    """All measures of the runs of one diagnoser."""
    left_out = invalid(runs)
    valid = [run for run in runs if (run["case"], run["seed"]) not in left_out]
    by_kind = {kind: [run for run in valid if run["kind"] == kind] for kind in ("fault", "twin", "healthy")}
    faults = by_kind["fault"]

    def over(measure: Callable[[Run, Case], float], some: Iterable[Run] = faults) -> tuple[float, float, float] | None:
        values: dict[str, list[float]] = {}
        for run in some:
            values.setdefault(run["case"], []).append(float(measure(run, cases[run["case"]])))
        return interval(values)

    placed = [run for run in faults if cases[run["case"]].layers]
    delays = [found for run in faults if (found := delay(run, cases[run["case"]])) is not None]
    emitted = [(one, run) for run in valid for one in alarms(run)]
    right = sum(run["kind"] == "fault" and is_right(one, cases[run["case"]]) for one, run in emitted)
    tried = remedies(valid, cases)
    known = [run["agrees"] for run in valid if run.get("agrees") is not None]
    alarmed = sum(bool(alarms(run)) for run in by_kind["healthy"])
    return {
        "faults": len(faults),
        "recall1": over(lambda run, case: named(run, case, 1)),
        "recall3": over(lambda run, case: named(run, case, 3)),
        "precision": right / len(emitted) if emitted else None,
        "healthy": len(by_kind["healthy"]),
        "alarmed": alarmed,
        "alarmed_bound": upper_bound(alarmed, len(by_kind["healthy"])) if by_kind["healthy"] else None,
        "errors": sum(any(one["severity"] == "error" for one in alarms(run)) for run in by_kind["healthy"]),
        "twins": len(by_kind["twin"]),
        "twins_alarmed": sum(bool(alarms(run)) for run in by_kind["twin"]),
        "layer": over(lambda run, case: layer_distance(run, case) == 0, placed),
        "layer_near": over(lambda run, case: layer_distance(run, case) <= 1, placed),
        "delay": median(delays) if delays else None,
        "delay95": quantiles(delays, n=20, method="inclusive")[-1] if len(delays) > 1 else None,
        "healed": over(lambda run, case: run["healed"], tried),
        "agreement": mean(known) if known else None,
        "left_out": sorted(left_out),
    }


def remedies(runs: Sequence[Run], cases: Mapping[str, Case]) -> list[Run]:
    """Faults that were treated, do harm, and that some action of the vocabulary heals: with the twin's score.

    ``healed`` says whether this remedy did.
    """
    twins = {(run["case"], run["seed"]): run["score"] for run in runs if run["kind"] == "twin"}
    found = []
    for run in runs:
        twin = twins.get((run["case"], run["seed"]))
        if "treated" in run and twin is not None and cases[run["case"]].cure and run["score"] < NEAR * twin:
            healed = run["treated"] is not None and run["treated"] >= NEAR * twin
            found.append({**run, "twin": twin, "healed": healed})
    return found


def failures(runs: Iterable[Run], cases: Mapping[str, Case]) -> list[Run]:
    """Runs that were judged wrongly: a root cause that is not first, or an alarm where all is well."""
    return [run for run in runs if (not named(run, cases[run["case"]], 1) if run["kind"] == "fault" else alarms(run))]
