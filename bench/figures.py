"""The figures behind the document: all that was measured and not measured again since."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

FILE = Path(__file__).with_name("figures.json")

KEYS: dict[str, Callable[[Row], Any]] = {
    "user": lambda row: (row["model"], row["setting"], row["compiled"]),
    "cases": lambda row: (row["model"], row["subject"], row["label"], row["compiled"]),
    "kernels": lambda row: (row["kernel"], row["tensor"]),
    "ticks": lambda row: (row["layers"], row["parameters"]),
    "idle": lambda row: row["layers"],
    "processes": lambda row: row["processes"],
}
"""What makes two rows of a kind measurements of the same thing on the same device."""

SINGLE = ("bare_s", "watched_s", "bare_cpu_s", "watched_cpu_s")
"""Times of single windows; they are not kept."""


def load(file: Path = FILE) -> list[Row]:
    """The runs that are kept, the oldest first; each with those of its rows that no later run has replaced."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


def merged(runs: Sequence[Row], new: Row) -> list[Row]:
    """These runs and a new one, without rows that the new one has measured again, and without runs that have none left.

    A row that has failed replaces nothing.

    >>> old = {"device": "cpu", "idle": [{"layers": 2, "idle_us": 9.0}, {"layers": 20, "idle_us": 9.5}]}
    >>> new = {"device": "cpu", "idle": [{"layers": 2, "idle_us": 8.0}]}
    >>> [run["idle"] for run in merged([old], new)]
    [[{'layers': 20, 'idle_us': 9.5}], [{'layers': 2, 'idle_us': 8.0}]]
    """
    kept = []
    for run in runs:
        if run["device"] == new["device"]:
            run = {**run, **{kind: _not_in(new.get(kind, []), run.get(kind, []), kind) for kind in KEYS if kind in run}}
        if any(run.get(kind) for kind in KEYS):
            kept.append(run)
    known = [
        {KEYS[kind](row) for run in kept if run["device"] == new["device"] for row in run.get(kind, [])}
        for kind in KEYS
    ]
    own = {
        kind: [_short(row) for row in new[kind] if not row.get("problem") or KEYS[kind](row) not in keys]
        for kind, keys in zip(KEYS, known, strict=True)
        if kind in new
    }
    return [*kept, {**new, **own}]


def keep(runs: Sequence[Row], file: Path = FILE) -> list[Row]:
    """Merge new runs into the file; returns all that are kept."""
    kept = load(file)
    for run in runs:
        kept = merged(kept, run)
    file.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return kept


def _not_in(new: Sequence[Row], rows: Sequence[Row], kind: str) -> list[Row]:
    again = {KEYS[kind](row) for row in new if not row.get("problem")}
    return [row for row in rows if KEYS[kind](row) not in again]


def _short(row: Row) -> Row:
    return {
        name: round(value, 7) if type(value) is float else value for name, value in row.items() if name not in SINGLE
    }
