"""Watch a run in the terminal: the worst layers first, with the reason and their recent values."""

import argparse
import sys
from typing import TYPE_CHECKING

from .arguments import add_filters, add_json, add_run

if TYPE_CHECKING:
    from ..store import Run

SORTS = ("worst", "value", "name", "depth")
_SECONDS = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run(parser, optional=True)
    add_filters(parser)
    parser.add_argument("--sort", choices=SORTS, default=SORTS[0], help="order of the layers (%(default)s)")
    parser.add_argument("--once", action="store_true", help="print one screen and exit, as without a terminal")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Print once, or keep the screen up to date."""
    from .reading import find_run

    with find_run(options, options.run) as found:
        if options.json:
            from .strict_json import print_answer
            from .top_rows import facts

            print_answer(**facts(found, options))
        elif options.once or not sys.stdout.isatty():
            from .screen import open_console
            from .top_screen import Screen

            console = open_console()
            console.print(Screen(found, options, console).draw())
        else:
            _watch(found, options)


def _watch(found: "Run", options: argparse.Namespace) -> None:
    import time

    from rich.live import Live

    from .screen import open_console
    from .top_screen import Screen

    console = open_console()
    screen = Screen(found, options, console)
    first = screen.draw(console.height)  # report errors in the options before taking over the screen
    try:
        with Live(first, console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen.draw(console.height), refresh=True)
                time.sleep(_SECONDS)
    except KeyboardInterrupt:  # Ctrl-C is the way to quit
        pass
