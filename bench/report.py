"""Turn figures into tables.

python -m bench.report build/bench/cpu.json build/bench/user-cuda.json

keeps these figures in figures.json, where rows measured again replace older ones, and writes RESULTS.md, and costs into
README.md. Without files it writes them from what is kept.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import figures, targets

Row = dict[str, Any]
RESULTS = Path(__file__).with_name("RESULTS.md")
NOTES = Path(__file__).with_name("NOTES.md")
README = Path(__file__).parents[1] / "README.md"


def number(key: str, digits: int) -> Callable[[Row], str]:
    """A column of numbers, empty where one does not apply."""
    return lambda row: "" if row.get(key) is None else f"{row[key]:.{digits}f}"


def per_module(row: Row) -> str:
    """Microseconds that watching adds per module, where modules are all alike."""
    if row.get("ratio") is None or not row["model"].startswith("layers="):
        return ""
    return f"{row['added_ms'] * 1e3 / row['modules']:.1f}"


def first_line(problem: str | None) -> str:
    """As much of a message as fits a table."""
    return (problem or "").partition("\n")[0][:100]


def spread(row: Row) -> str:
    """Between which ratios half of all windows lie."""
    return "" if row.get("quartiles") is None else "{:.3f} to {:.3f}".format(*row["quartiles"])


TRUTH = {True: "yes", False: "**no**", None: "cannot be told"}
"""Whether the overhead that is shown is the one that was measured."""


def overhead(row: Row) -> str:
    """The overhead that was measured; rows from before lack its standard error."""
    found = number("overhead", 3)(row)
    return found if row.get("overhead_error") is None else f"{found} ± {row['overhead_error']:.3f}"


def said(row: Row) -> str:
    """The overhead that monitorch shows."""
    return "" if row.get("said") is None else f"{'at least ' * row['said_is_bound']}{row['said']:.3f}"


def run_of(seconds: str) -> Callable[[Row], str]:
    """A column of whole runs."""
    return lambda row: number("ratio", 3)({"ratio": row.get("whole_runs", {}).get(seconds)})


USER: dict[str, Callable[[Row], str]] = {
    "on": lambda row: row.get("on", ""),
    "model": targets.model_of,
    "watch": lambda row: row["label"],
    "bare ms": number("bare_ms", 3),
    "ratio": number("ratio", 3),
    "half of all windows": spread,
    "of CPU time": number("cpu_ratio", 3),
    "at most": number("limit", 3),
    "met": lambda row: "" if row.get("limit") is None else "yes" if row["ratio"] <= row["limit"] else "**no**",
    "overhead": overhead,
    "shown": said,
    "true": lambda row: TRUTH[row.get("said_is_true")] if said(row) else "",
    "+MiB": lambda row: "" if row.get("memory_gib") is None else f"{row['memory_gib'] * 1024:.0f}",
    "first stretch s": lambda row: number("first_extra_s", 2)(row) if row["setting"] in ("default", "all") else "",
    "run of 5 s": run_of("5"),
    "run of 60 s": run_of("60"),
    "": lambda row: first_line(row["problem"]),
}
CASES: dict[str, Callable[[Row], str]] = {
    "model": targets.model_of,
    "subject": lambda row: row["subject"],
    "watched": lambda row: row["label"],
    "bare ms": number("bare_ms", 3),
    "with ms": number("watched_ms", 3),
    "ratio": number("ratio", 3),
    "us/module": per_module,
    "+GiB": number("memory_gib", 2),
    "+syncs": number("syncs", 1),
    "+launches": number("launches", 1),
    "+breaks": number("breaks", 0),
    "+recompiles": number("recompiles", 0),
    "": lambda row: first_line(row["problem"]),
}
KERNELS: dict[str, Callable[[Row], str]] = {
    "kernel": lambda row: row["kernel"],
    "tensor": lambda row: row["tensor"],
    "ms": number("ms", 3),
    "TB/s": number("tb_per_s", 2),
    "of ceiling": lambda row: "" if row.get("of_ceiling") is None else f"{row['of_ceiling']:.0%}",
    "host us": number("host_us", 1),
    "": lambda row: first_line(row.get("problem")),
}


TICKS: dict[str, Callable[[Row], str]] = {
    "series": lambda row: str(row["series"]),
    "layers": lambda row: str(row["layers"]),
    "norms of parameters": lambda row: "read at the tick" if row["parameters"] else "",
    "training thread ms": number("thread_ms", 2),
    "CPU ms": number("cpu_ms", 1),
    "Python calls": lambda row: str(row["calls"]),
}


IDLE: dict[str, Callable[[Row], str]] = {
    "layers": lambda row: str(row["layers"]),
    "bare step µs": number("bare_us", 0),
    "four empty hooks µs": number("empty_us", 1),
    "idle step µs": number("idle_us", 1),
    "its loss µs": number("loss_us", 1),
}


PROCESSES: dict[str, Callable[[Row], str]] = {
    "processes": lambda row: str(row["processes"]),
    "": lambda row: row["how"],
    "CPU ms": number("cpu_ms", 1),
    "wall ms": number("wall_ms", 1),
    "sent kB": number("sent_kb", 0),
}


def cells(rows: Iterable[Row], columns: dict[str, Callable[[Row], str]]) -> list[list[str]]:
    """A head and a line per row; a column that says nothing at all is left out."""
    lines = [list(columns), *([show(row) for show in columns.values()] for row in rows)]
    kept = [i for i in range(len(columns)) if any(line[i] for line in lines[1:])]
    return [[line[i] for i in kept] for line in lines]


def text(lines: Sequence[Sequence[str]]) -> str:
    """Aligned for a terminal: words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = [all(_is_number(cell) for cell in column[1:]) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:>{width}}" if right else f"{cell:{width}}"
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """The same for a document."""
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, f"|{' --- |' * len(lines[0])}", *body])


def progress(row: Row, index: int, count: int) -> str:
    """One line for a case that is done."""
    outcome = row["problem"] or f"x{row['ratio']:.3f} ({row['pairs']} pairs)"
    return _line(f"{targets.model_of(row)}, {row['subject']}: {row['label']}", outcome, row, index, count)


def user_progress(row: Row, index: int, count: int) -> str:
    """The same for a case of a user."""
    shown = said(row) or "no overhead yet"
    outcome = row["problem"] or f"x{row['ratio']:.3f} ({spread(row)}; {row['windows']} windows), shows {shown}"
    return _line(f"{targets.model_of(row)}, {row['label']}", outcome, row, index, count)


def _line(name: str, outcome: str, row: Row, index: int, count: int) -> str:
    return f"[{index:3}/{count}] {name:60} {first_line(outcome)}  [{row['took_s']:.1f} s]"


def with_limits(device: str, rows: Iterable[Row]) -> list[Row]:
    """Users' cases, each with what it may cost."""
    return [{**row, "limit": targets.user_limit(device, row)} for row in rows]


def tables(run: Row, form: Callable[[Sequence[Sequence[str]]], str]) -> list[str]:
    """All tables of a run."""
    found = [(with_limits(run["device"], run.get("user", [])), USER), (run["cases"], CASES), (run["kernels"], KERNELS)]
    found += [(run.get("ticks", []), TICKS), (run.get("idle", []), IDLE), (run.get("processes", []), PROCESSES)]
    return [form(cells(rows, columns)) for rows, columns in found if rows]


def machine(run: Row) -> str:
    """Where and when, in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return f"{run['machine']}; {versions}; {run['date']}"


USER_TEXT = (
    "Training loops that do not wait for the device, watched by `monitorch.watch(model, optimizer, loss_fn=...)` with "
    "the options in the table; runs are stored. A bare and a watched model take turns in windows of about a second, "
    "or less if it has many steps, and of the same number of steps; each watched window is compared with the bare "
    "ones before and after it, unless one of these took unusually long: something else has disturbed them. `ratio` is "
    "the cost after the first stretch (in which the default may spend two seconds plus three percent): the median "
    "over windows, or their mean if windows have few steps or are short. `of CPU time` is the same for the CPU time "
    "of all threads. `overhead` is the mean over windows with its standard error, `shown` is "
    "`watch.inspector.overhead`, a mean over recent steps. It is true if it is within a fifth of the other, or one "
    "percentage point; whether it is cannot be told if it is not, but would be if the other was off by twice its "
    "standard error. Memory is what is added to the peak of the device, or of the process on a CPU including imports. "
    "`first stretch s` is what the default has spent before that; less than two seconds means that it had some left. "
    "`run of N s` is the time of a whole run over the N seconds that it takes bare. Compiling is not counted."
)


def document(runs: Sequence[Row]) -> str:
    """What a user pays first, then targets, then every figure."""
    parts = [
        "# What watching costs",
        "Written by `python -m bench.report` from `bench/NOTES.md` and what `make bench` and `make bench-gpu` measure, "
        "each also with `BENCH_OPTIONS=--user`.",
    ]
    paid = [
        {**row, "on": targets.ON[device]}
        for device, rows in targets.user_rows(runs).items()
        for row in with_limits(device, rows)
    ]
    if paid:
        machines = dict.fromkeys(f"* {targets.ON[run['device']]}: {machine(run)}" for run in runs if run.get("user"))
        parts += ["## What a user pays", USER_TEXT, markdown(cells(paid, USER)), "\n".join(machines)]
    parts += [
        "## Targets",
        markdown([["on", "what", "target", "measured", "met"], *_judge(runs)]),
        NOTES.read_text(encoding="utf-8").strip(),
        "## Steps one by one",
        "A bare and a watched model train in turns in one process; the ratio is the median over such pairs of steps. "
        "`every 10` is the mean over ten steps. `+` columns are what watching adds to a step (memory: to the peak). "
        "upstream is monitorch 0.1.0.7; torch_module_monitor takes norms of outputs, parameters and gradients only.",
    ]
    for run in [run for run in runs if _sections(run)]:
        others = tables({**run, "user": []}, markdown)
        parts += [f"## {run['device']}: {', '.join(_sections(run))}", machine(run), *others]
    return "\n\n".join(parts) + "\n"


def _sections(run: Row) -> list[str]:
    """Those of its sections that still have rows; users' cases come first in the document."""
    of_cases = {row["section"] for row in run.get("cases", [])}
    return [section for section in run["sections"] if section in of_cases or (run.get(section) and section != "user")]


MODELS = {
    "mlp": "MLP 784-512-512-10",
    "mlp=20x64": "MLP of 20 layers of width 64",
    "mlp=2x32": "MLP of 2 layers of width 32",
    "gpt2": "GPT-2 (12 layers of width 768), bfloat16",
    "gpt2 compiled": "the same, compiled",
    "gpt2-xl": "GPT-2 XL (1.5 B parameters), bfloat16",
    "gpt2-xl compiled": "the same, compiled",
}
"""Models that the README tells of, in words."""


def summary(results: str) -> str:
    """What the README says of costs: rows of the first table of the document, of watching with no options."""
    head, _, *lines = re.findall(r"^\|.*\|$", results.split("\n## ")[1], re.MULTILINE)
    names, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines))
    found = [dict(zip(names, row, strict=True)) for row in rows]
    chosen = [row for name in MODELS for row in found if (row["model"], row["watch"]) == (name, "default")]
    titles = ["on", "model", "bare step", "a run of 5 s", "a run of 60 s", "after the first seconds", "memory added"]
    lines = [
        [
            row["on"],
            MODELS[row["model"]],
            f"{float(row['bare ms']):.2g} ms" if float(row["bare ms"]) < 10 else f"{float(row['bare ms']):.0f} ms",
            *(f"{float(row[column]):.2f}" if row[column] else "" for column in ("run of 5 s", "run of 60 s", "ratio")),
            f"{row['+MiB']} MiB" if float(row["+MiB"]) > 0 else "none",
        ]
        for row in sorted(chosen, key=lambda row: row["on"])
        if row["model"].startswith("gpt") == (row["on"] == targets.ON["cuda"])
    ]
    return markdown([titles, *lines])


def renew(readme: str, results: str) -> str:
    """The README with the costs that are in the document."""
    table = summary(results)
    return re.sub(r"(?<=<!-- costs -->\n\n).*?(?=\n\n<!-- end -->)", lambda _: table, readme, flags=re.DOTALL)


def _judge(runs: Sequence[Row]) -> Iterator[list[str]]:
    yield from targets.judge_user(runs)
    yield from targets.judge(runs)
    yield from targets.judge_ticks(runs)
    yield from targets.judge_idle(runs)


def _is_number(cell: str) -> bool:
    return not cell.strip("0123456789.-%")


def main() -> None:
    """Write the document, and what the README says of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path, nargs="*", help="JSON files of the bench; none: those that are kept")
    parser.add_argument("--out", type=Path, help="write only this document, from these files, and keep nothing")
    options = parser.parse_args()
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in options.figures]
    if any(run["quick"] for run in runs):
        parser.error("figures of --quick say nothing about costs")
    if options.out is not None:
        options.out.write_text(document(runs), encoding="utf-8")
        print(f"wrote {options.out}")
        return
    RESULTS.write_text(document(figures.keep(runs)), encoding="utf-8")
    README.write_text(renew(README.read_text(encoding="utf-8"), RESULTS.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {RESULTS} and the costs in {README}")


if __name__ == "__main__":
    main()
