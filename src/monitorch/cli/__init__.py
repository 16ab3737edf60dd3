"""The command line. Each command has its own file, and none imports torch before it runs."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from .. import __doc__ as promise
from .. import __version__
from ..errors import MonitorchError, OptionError
from . import check, compare, demo, export, mcp, report, runs, show, top, ui
from .wording import printable


class Command(Protocol):
    """What the file of a command defines; its docstring is its help text, of which a list shows the first line."""

    __doc__: str | None

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""

    def run(self, options: argparse.Namespace) -> int | None:
        """Run the command; returns the exit code if it is not 0. Errors that the user can fix are a MonitorchError."""


COMMANDS: Mapping[str, Command] = {
    "demo": demo,
    "runs": runs,
    "show": show,
    "top": top,
    "check": check,
    "ui": ui,
    "report": report,
    "compare": compare,
    "export": export,
    "mcp": mcp,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; without a command, help."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        code = COMMANDS[options.command].run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("monitorch: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has closed the pipe; Python would complain again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (MonitorchError, OSError) as error:
        print(f"monitorch: error: {printable(error)}", file=sys.stderr)
        return 2 if isinstance(error, OptionError) else 1
    return code or 0


def build_parser() -> argparse.ArgumentParser:
    """The options of all commands."""
    parser = argparse.ArgumentParser(prog="monitorch", description=promise)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="command")
    for name, command in COMMANDS.items():
        text = command.__doc__ or ""
        command.add_options(commands.add_parser(name, help=text.partition("\n")[0], description=text))
    return parser
