"""Say what is wrong in a run, where, since when, and what to try."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .arguments import add_json, add_run

if TYPE_CHECKING:
    from ..diagnosis import Finding

SEVERITIES = ("info", "warning", "error")
"""Those of findings, from harmless to harmful; said again here, since the store is loaded only when a command runs."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run(parser, optional=True)
    fail_on = "exit code 1 if something at least this bad lasts, or the run has crashed (default: never)"
    parser.add_argument("--fail-on", choices=SEVERITIES, metavar="|".join(SEVERITIES), help=fail_on)
    parser.add_argument("--all", action="store_true", help="every consequence, however many")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Judge the stored numbers of a run again, and print what was found."""
    from ..diagnosis.check import check_with_notes
    from .reading import find_run
    from .run_facts import headline

    with find_run(options, options.run) as found:
        findings, notes = check_with_notes(found)
        facts = headline(found, findings)
        if options.json:
            from .strict_json import print_answer

            print_answer(**facts, notes=notes)
        else:
            from .finding_sheet import print_findings
            from .run_sheet import title
            from .screen import open_console

            shown = findings, title(facts), notes, found.error
            print_findings(open_console(), *shown, status=found.status, everything=options.all)
        has_crashed = found.status == "crashed"
    return int(options.fail_on is not None and (has_crashed or is_as_bad(findings, options.fail_on)))


def is_as_bad(findings: "Iterable[Finding]", severity: str) -> bool:
    """Whether a finding lasts that is at least this bad, a consequence or not."""
    from ..diagnosis.causes import strongest

    worst = strongest(findings)
    return worst is not None and SEVERITIES.index(worst) >= SEVERITIES.index(severity)
