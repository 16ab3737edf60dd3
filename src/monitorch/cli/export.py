"""Write the numbers of a run as CSV, Parquet or TensorBoard events."""

import argparse
from pathlib import Path

from ..errors import OptionError
from .arguments import add_filters, add_json, add_run, whole_number

FORMATS = ("csv", "parquet", "tensorboard")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run(parser)
    add = parser.add_argument
    add("--to", required=True, choices=FORMATS, help="the format")
    add("-o", "--out", required=True, metavar="PATH", help="file, or folder for tensorboard; - prints the CSV")
    add("--worst", type=whole_number(0), default=5, metavar="K", help="how many layers, worst first (%(default)s)")
    add("--all", action="store_true", help="every layer, not only the worst; implied by --lens and --layers")
    add_filters(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Write the numbers to a file."""
    from .export_sinks import open_sink
    from .export_tables import tables
    from .reading import find_run

    to_stdout = options.out == "-"
    if to_stdout and (options.to != "csv" or options.json):
        raise OptionError("-o - prints CSV, without --json: name a file for anything else")
    numbers = 0
    with find_run(options, options.run) as found, open_sink(options.to, options.out) as sink:
        for piece in tables(found, options):
            numbers += sink.write(piece)
    if options.json:
        from .strict_json import print_answer

        print_answer(path=options.out, format=options.to, numbers=numbers)
    elif not to_stdout:
        from .wording import printable

        print(f"{numbers:,} numbers written to {printable(Path(options.out))}")
