"""Measure what watching costs, print tables, keep the figures.

python -m bench --user                             (what a user pays; with --device cuda on a GPU)
python -m bench                                    (make bench: one CPU thread, or with --device cuda a GPU)
python -m bench --device cuda --only gpt2-eager,kernels --peers DIR --json FILE
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from . import idle, kernels, processes, report, ticks, user, workers
from .cases import Case, plan
from .measure import Effort

SECTIONS = {
    "cpu": ["small", "ticks", "idle", "processes"],
    "cuda": ["small", "gpt2-eager", "gpt2-compiled", "kernels", "ticks", "idle", "processes", "scaling"],
}
FOLDER = Path(__file__).parent.parent / "build" / "bench"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What to measure, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--user", action="store_true", help="what a user pays: loops that do not wait, under watch()")
    parser.add_argument(
        "--only",
        help=f"comma-separated: {', '.join(SECTIONS['cuda'])}; on a CPU small alone is usual; "
        "with --user models, or a model and a setting: mlp,gpt2:default",
    )
    parser.add_argument("--long", action="store_true", help="with --user: whole runs of a minute on a GPU, too")
    parser.add_argument("--minutes", type=float, help="with --user: no case begins after so many; 8 on a GPU")
    parser.add_argument("--scaling", action="store_true", help="also with more layers, parameters and ticks")
    parser.add_argument("--quick", action="store_true", help="miniatures and two steps each, to try the bench itself")
    parser.add_argument(
        "--peers", type=Path, help="folder with upstream and torch_module_monitor; else pip fetches them"
    )
    parser.add_argument("--json", type=Path, help="where the figures go; build/bench/DEVICE.json")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU")
    if options.user:
        options.sections = ["user"]
        try:
            options.cases = user.plan(options.device, options.only, options.long)
        except ValueError as error:
            parser.error(str(error))
        return options
    chosen = options.only.split(",") if options.only else SECTIONS[options.device]
    options.sections = list(dict.fromkeys([*chosen, *(["scaling"] if options.scaling else [])]))
    if unknown := set(options.sections) - set(SECTIONS["cuda"]):
        parser.error(f"no section is called {', '.join(sorted(unknown))}")
    if options.device == "cpu" and not options.quick and any("gpt2" in name for name in options.sections):
        parser.error("gpt2 takes a GPU; --quick puts a miniature in its place")
    return options


def machine(device: str) -> str:
    """Its name, as far as it has one."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, one thread of {os.cpu_count()}"


def describe(options: argparse.Namespace, peers: Path) -> dict[str, Any]:
    """All about a run but its figures."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": options.device,
        "machine": machine(options.device),
        "versions": {"python": platform.python_version(), **workers.versions(peers)},
        "sections": options.sections,
        "quick": options.quick,
        "user": [],
        "cases": [],
        "kernels": [],
        "ticks": [],
        "idle": [],
        "processes": [],
    }


def measure_user(options: argparse.Namespace, file: Path) -> dict[str, Any]:
    """What users pay; kept after every case."""
    run = describe(options, FOLDER / "peers")
    print(report.machine(run), flush=True)
    minutes = options.minutes or (8 if options.device == "cuda" else None)
    effort = Effort(options.device, options.quick)
    for _, row in workers.run_user(options.cases, effort, None if minutes is None else 60 * minutes):
        run["user"].append(row)
        print(report.user_progress(row, len(run["user"]), len(options.cases)), flush=True)
        file.write_text(json.dumps(run, indent=1), encoding="utf-8")
    return run


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and keep what there is after every case."""
    options = parse(arguments)
    peers = options.peers or FOLDER / "peers"
    file = options.json or FOLDER / f"{'user-' if options.user else ''}{options.device}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    if options.user:
        run = measure_user(options, file)
        print("", *report.tables(run, report.text), f"figures in {file}", sep="\n\n")
        return
    cases = plan(options.sections, options.device)
    if cases and not options.peers:
        workers.install(peers)
    run = describe(options, peers)
    print(report.machine(run), flush=True)
    done: dict[Case, dict[str, Any]] = {}
    for case, row in workers.run(cases, Effort(options.device, options.quick), peers):
        done[case] = row
        print(report.progress(row, len(done), len(cases)), flush=True)
        run["cases"] = [done[case] for case in cases if case in done]
        file.write_text(json.dumps(run, indent=1), encoding="utf-8")
    if "kernels" in options.sections:
        run["kernels"] = kernels.measure(options.device)
        file.write_text(json.dumps(run, indent=1), encoding="utf-8")
    if "ticks" in options.sections:
        run["ticks"] = ticks.measure(options.device, ((4, True),) if options.quick else ticks.SIZES)
        file.write_text(json.dumps(run, indent=1), encoding="utf-8")
    if "idle" in options.sections:
        run["idle"] = idle.measure(options.device, *([[2], 2] if options.quick else []))
        file.write_text(json.dumps(run, indent=1), encoding="utf-8")
    if "processes" in options.sections:
        run["processes"] = processes.measure(*([[2], [64], 6] if options.quick else []))
        file.write_text(json.dumps(run, indent=1), encoding="utf-8")
    print("", *report.tables(run, report.text), f"figures in {file}", sep="\n\n")


if __name__ == "__main__":
    main()
