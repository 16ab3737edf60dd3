"""Options that several commands share, and their types. Light, since it is loaded before any command runs."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

_AGE_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def add_run(parser: argparse.ArgumentParser, *names: str, optional: bool = False) -> None:
    """One or more runs, and where to look for them."""
    default = "; the newest one if left out" if optional else ""
    for name in names or ("run",):
        text = f"folder of a run, or its name in DIR{default}"
        parser.add_argument(name, nargs="?" if optional else None, metavar=name.upper(), help=text)
    parser.add_argument("--runs", type=Path, metavar="DIR", help="folder of the runs (monitorch_runs)")
    parser.add_argument("--rank", type=whole_number(0), metavar="N", help="rank of the process to read (the lowest)")


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Which numbers to use; an expression matches anywhere in a name, in upper or lower case."""
    for option, what in (("--lens", "lenses"), ("--statistic", "statistics"), ("--layers", "layers")):
        parser.add_argument(option, type=expression, metavar="REGEX", help=f"only {what} whose name matches")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Output for other programs."""
    parser.add_argument("--json", action="store_true", help='print JSON; numbers may be "nan", "inf", "-inf" or null')


def whole_number(lowest: int, highest: int | None = None) -> Callable[[str], int]:
    """A type of option: whole numbers in a range."""
    limits = f"of at least {lowest}" if highest is None else f"between {lowest} and {highest}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if value < lowest or (highest is not None and value > highest):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {limits}")
        return value

    return parse


def expression(text: str) -> re.Pattern[str]:
    """A type of option: regular expressions."""
    try:
        return re.compile(text, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from error


def tolerance(text: str) -> float:
    """A type of option: the largest difference that counts as equal."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0, such as 1e-4")
    return value


def age(text: str) -> float:
    """A type of option: a time as seconds.

    >>> age("90min"), age("2 d")
    (5400.0, 172800.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip())
    if not match or match[2] not in _AGE_UNITS:
        units = ", ".join(_AGE_UNITS)
        raise argparse.ArgumentTypeError(f"{text!r} is not an age: write a number and one of {units}, such as 7d")
    return float(match[1]) * _AGE_UNITS[match[2]]
