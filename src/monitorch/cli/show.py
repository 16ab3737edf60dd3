"""Show what is known of a run: facts, lenses, the newest numbers of its layers, events."""

import argparse

from .arguments import add_filters, add_json, add_run


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run(parser, optional=True)
    add_filters(parser)
    parser.add_argument("--all", action="store_true", help="every layer, statistic and event, however many")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Print a run."""
    from .reading import find_run

    with find_run(options, options.run) as found:
        if options.json:
            from .run_facts import facts
            from .strict_json import print_answer

            print_answer(**facts(found, options))
        else:
            from .run_sheet import print_sheet

            print_sheet(found, options)
