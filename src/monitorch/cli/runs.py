"""List the runs of a folder with what is wrong in them, and remove crashed or old ones."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MonitorchError, OptionError
from .arguments import add_json, age

if TYPE_CHECKING:
    from ..store import RunInfo

_ENDED = ("crashed", "finished")
_ENDINGS = (".log", ".db", ".db-wal", ".db-shm", ".db-journal")
_NUMBERS = ("ticks", "last step", "last sign", "size")
_HEADINGS = ("run", "status", *_NUMBERS, "verdict")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("folder", nargs="?", type=Path, metavar="FOLDER", help="folder of the runs (monitorch_runs)")
    add("--prune", action="store_true", help="remove runs that crashed, after asking")
    add("--older-than", type=age, metavar="AGE", help="prune all runs that ended longer ago than this, such as 7d")
    add("--yes", action="store_true", help="prune without asking")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """List, or prune."""
    from ..store import DEFAULT_FOLDER, list_runs

    if not options.prune and (options.yes or options.older_than is not None):
        raise OptionError("--yes and --older-than are for --prune")
    if options.prune and options.json and not options.yes:
        raise OptionError("--prune --json cannot ask: add --yes")
    if options.folder is not None and not options.folder.is_dir():
        raise OptionError(f"there is no folder {str(options.folder)!r}; without FOLDER it is {DEFAULT_FOLDER}")
    folder = options.folder or Path(DEFAULT_FOLDER)
    if options.prune:
        _prune(folder, options)
    elif options.json:
        _print_json(runs=_facts(list_runs(folder)))
    else:
        _print_table(folder, list_runs(folder))


def _prune(folder: Path, options: argparse.Namespace) -> None:
    found = _useless(folder, options.older_than)
    if not found:
        _print_json(removed=[]) if options.json else print("nothing to prune")
        return
    if not options.json:
        _print_table(folder, found)
    if not options.yes and not _agreed(len(found)):
        print("nothing is removed")
        return
    # a run may have been resumed before the answer
    chosen = {info.path for info in found}
    removed = [info for info in _useless(folder, options.older_than) if info.path in chosen]
    facts = _facts(removed) if options.json else []  # read before the files are gone
    kept = [path for info in removed for path in _remove(info)]
    if options.json:
        _print_json(removed=facts)
    else:
        from .wording import count_text, printable, size_text

        print(f"removed {count_text(len(removed), 'run')}, {size_text(sum(info.size for info in removed))}")
        for path in kept:
            print(f"left alone, since it holds other files: {printable(path)}")


def _useless(folder: Path, older_than: float | None) -> "list[RunInfo]":
    """The runs that crashed or, with an age in seconds, all that ended longer ago.

    Never includes running or unreadable runs, or links to runs.
    """
    from ..store import list_runs

    runs = [info for info in list_runs(folder) if info.status in _ENDED and not info.path.is_symlink()]
    if older_than is None:
        return [info for info in runs if info.status == "crashed"]
    return [info for info in runs if info.age > older_than]


def _remove(info: "RunInfo") -> list[Path]:
    """Remove the files of a run and its folder; a folder that holds other files is kept and returned."""
    for rank in info.ranks:
        for ending in _ENDINGS:
            (info.path / f"rank{rank}{ending}").unlink(missing_ok=True)
    if any(info.path.iterdir()):
        return [info.path]
    info.path.rmdir()
    return []


def _agreed(number: int) -> bool:
    from .wording import count_text

    try:
        answer = input(f"\nRemove {count_text(number, 'run')}? [y/N] ")
    except EOFError:
        raise MonitorchError("nobody answered, so nothing is removed; --yes removes without asking") from None
    return answer.strip().lower() in ("y", "yes")


def _facts(runs: "list[RunInfo]") -> list[dict[str, Any]]:
    from .run_facts import listed

    return [listed(info) for info in runs]


def _print_json(**facts: list[dict[str, Any]]) -> None:
    from .strict_json import print_answer

    print_answer(**facts)


def _print_table(folder: Path, runs: "list[RunInfo]") -> None:
    from .finding_sheet import short_verdict
    from .run_facts import found_in
    from .screen import QUIET, open_console, status_words, table, words
    from .wording import age_text, count_text, size_text, status_text

    console = open_console()
    if not runs:
        cure = "train with monitorch.watch(model, optimizer), or name another folder"
        console.print(words(f"no runs in {folder}; {cure}"))
        return
    rows = [
        (
            words(info.name, "bold"),
            status_words(status_text(info.status, info.age)),
            f"{info.ticks:,}",
            "-" if info.last_step is None else f"{info.last_step:,}",
            age_text(info.age),
            size_text(info.size),
            words("-") if info.problem else short_verdict(found_in(info), info.status),
        )
        for info in runs
    ]
    console.print(table(console, _HEADINGS, rows, _NUMBERS, notes=[_note(info) for info in runs]))
    total = sum(info.size for info in runs)
    console.print()
    console.print(words(f"{count_text(len(runs), 'run')} in {folder}, {size_text(total)}", QUIET))


def _note(info: "RunInfo") -> str:
    """What ended the run, why it cannot be read, or what it has lost."""
    from .wording import count_text

    lost = f"{count_text(info.dropped, 'frame')} lost, because the disk was too slow" if info.dropped else ""
    return "; ".join(filter(None, (info.why, lost)))
