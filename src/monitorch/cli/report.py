"""Write a run as one HTML file that opens anywhere, without a network."""

import argparse
from contextlib import ExitStack
from pathlib import Path

from ..errors import OptionError
from .arguments import add_json, whole_number

_LARGEST_BYTES = 6_000_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    others = "the newest one if left out, further ones to compare it with"
    add("run", nargs="*", metavar="RUN", help=f"folder of a run, or its name in DIR; {others}")
    add("-o", "--out", type=Path, metavar="FILE", help="file to write (RUN.html; RUN-RUN.html for two)")
    add("--columns", type=whole_number(40, 4000), default=500, metavar="N", help="points in time to keep (%(default)s)")
    add("--runs", type=Path, metavar="DIR", help="folder of the runs (monitorch_runs)")
    add("--rank", type=whole_number(0), metavar="N", help="rank of the process to read (the lowest)")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Write the report, print its path, and what was found in each run."""
    from ..dashboard.notebook import report_html
    from ..diagnosis import findings_of
    from .reading import find_run
    from .run_facts import headline

    if options.out is not None and options.out.is_dir():
        raise OptionError(f"{options.out} is a folder: name a file, such as {options.out / 'report.html'}")
    with ExitStack() as stack:
        runs = [stack.enter_context(find_run(options, name)) for name in options.run or [None]]
        report = report_html(*runs, columns=options.columns, max_bytes=_LARGEST_BYTES)
        names = [one.path.absolute().parent.name for one in runs]
        path = report.save(options.out or f"{'-'.join(names)}.html")
        findings = {name: (findings_of(one.meta), one.status) for name, one in zip(names, runs, strict=True)}
        heads = [headline(one) for one in runs]
    size = path.stat().st_size
    if options.json:
        from .strict_json import print_answer

        print_answer(path=path, size=size, runs=heads)
    else:
        from .finding_sheet import problem_lines
        from .screen import open_console, words

        console = open_console()
        console.print(words(f"{path}: {size / 1e6:.1f} MB"), soft_wrap=True)
        for name, (found, status) in findings.items():
            if found is not None:
                console.print()
                if len(names) > 1:
                    console.print(words(f"{name}:"))
                console.print(*problem_lines(console, found, status, wrapped=False), sep="\n")
