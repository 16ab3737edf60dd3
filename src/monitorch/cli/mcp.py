"""Serve runs to agents and other programs over the Model Context Protocol, read only, on standard input and output."""

import argparse
from pathlib import Path

from ..errors import OptionError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder", type=Path, nargs="?", metavar="FOLDER", help="folder of runs, or of one run (monitorch_runs)"
    )


def run(options: argparse.Namespace) -> None:
    """Serve until the input ends."""
    from ..integration.mcp import serve
    from ..store import DEFAULT_FOLDER

    if options.folder is not None and not options.folder.is_dir():
        raise OptionError(f"there is no folder {options.folder}: name one with runs, such as {DEFAULT_FOLDER}")
    serve(options.folder or Path(DEFAULT_FOLDER))
