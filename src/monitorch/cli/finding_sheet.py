"""Findings as text: how the run is, then what is wrong, each finding with its consequences below it."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from ..diagnosis import Finding, problems, verdict
from ..diagnosis.finding import MOST_CAUSES
from ..store import Event, Failure
from .screen import QUIET, SEVERITIES, TROUBLE, indented, words
from .wording import count_text

_MOST_CONSEQUENCES = 5
_INDENT = "    "
_DEEPEST = 3


def print_findings(
    console: Console,
    findings: Sequence[Finding],
    title: Text | None = None,
    notes: Iterable[str] = (),
    error: Failure | None = None,
    *,
    status: str = "",
    everything: bool,
) -> None:
    """Print the verdict, the title of the run, what ended it, notes, and all findings, each below its cause."""
    console.print(verdict_words(findings, status))
    if title is not None:
        console.print(title)
    if error is not None:
        console.print(words(error.line, TROUBLE))
    for note in notes:
        console.print(words(note, QUIET))
    for tree in trees(findings):
        shown = tree if everything else tree[: _MOST_CONSEQUENCES + 1]
        console.print()
        for finding, depth in shown:
            indent = _INDENT * min(depth, _DEEPEST)
            console.print(*_card(console, finding, indent), sep="\n")
        if len(tree) > len(shown):
            more = f"{count_text(len(tree) - len(shown), 'more consequence')}: --all"
            console.print(*indented([words(more, QUIET)], _INDENT))


def verdict_words(findings: Sequence[Finding], status: str = "") -> Text:
    """The verdict, in the colour of the worst problem."""
    is_known = status != "crashed" or problems(findings)
    return words(verdict(findings, status), _colour(findings) if is_known else QUIET)


def short_verdict(findings: Sequence[Finding] | None, status: str = "") -> Text:
    """The first problem and since when, how many others there are, or that there is none.

    >>> from monitorch.diagnosis import Remedy
    >>> short_verdict([Finding("no_update", "error", "fc1", 1200, 1300, "", Remedy(""))]).plain
    'no update since step 1,200'
    """
    if findings is None:
        return words(verdict(None), QUIET)
    if not problems(findings):
        return verdict_words(findings, status)
    first, *others = problems(findings)
    text = f"{first.title} since step {first.step:,}" + (f", {len(others)} more" if others else "")
    return words(text, _colour(findings))


def _colour(findings: Sequence[Finding]) -> str:
    worst = {finding.severity for finding in problems(findings)}
    return TROUBLE if "error" in worst else "bold yellow" if worst else "bold green"


def problem_lines(
    console: Console, findings: Sequence[Finding], status: str, most: int = MOST_CAUSES, *, wrapped: bool
) -> list[Text]:
    """The verdict, and the first causes of what is wrong now.

    Args:
        console: where they will be shown.
        findings: all findings of a run.
        status: that of the run.
        most: how many causes to show.
        wrapped: show each in full, instead of its beginning on one line.
    """
    causes = problems(findings)
    lines = [verdict_words(findings, status)]
    for finding in causes[:most]:
        if wrapped:
            lines += _card(console, finding, "")
        else:
            line = Text.assemble(_heading(finding), words(f": {finding.explanation}", QUIET))
            line.truncate(console.width, overflow="ellipsis")
            lines.append(line)
    rest = sum(finding.is_open for finding in findings) - min(len(causes), most)
    if rest > 0:
        lines.append(words(f"{count_text(rest, 'more finding')}: monitorch check", QUIET))
    return lines


def other_events(events: Iterable[Event], findings: Iterable[Finding]) -> list[Event]:
    """The events that say something else than the findings that last."""
    told = {(finding.title, finding.layer) for finding in findings if finding.is_open}
    return [event for event in events if (event.kind, event.layer) not in told]


def trees(findings: Sequence[Finding]) -> list[list[tuple[Finding, int]]]:
    """The findings behind each first cause, that one first, and how many others are between them and it.

    Findings that claim to cause each other are listed, too.
    """
    known = {finding.id for finding in findings}
    below: dict[str | None, list[Finding]] = {}
    for finding in findings:
        cause = finding.caused_by if finding.caused_by in known else None
        below.setdefault(cause, []).append(finding)
    made: list[list[tuple[Finding, int]]] = []
    while below:
        for first in below.pop(None, None) or below.pop(next(iter(below))):
            waiting, tree = [(first, 0)], []
            while waiting:
                finding, depth = waiting.pop()
                tree.append((finding, depth))
                waiting += [(one, depth + 1) for one in reversed(below.pop(finding.id, []))]
            made.append(tree)
    return made


def _card(console: Console, finding: Finding, indent: str) -> list[Text]:
    """What, where, since when, why, and what to try."""
    lines = indented(_heading(finding).wrap(console, console.width - len(indent)), indent)
    indent += "  "
    for text in (words(finding.explanation), _advice(finding)):
        if text:
            lines += indented(text.wrap(console, console.width - len(indent)), indent)
    return lines


def _heading(finding: Finding) -> Text:
    colour = SEVERITIES.get(finding.severity, "") if finding.is_open else QUIET
    return words(finding.heading, f"bold {colour}" if finding.is_open else colour)


def _advice(finding: Finding) -> Text:
    return (
        Text.assemble(("Try: ", "cyan"), words(finding.remedy.text))
        if finding.is_open and finding.remedy.text
        else Text()
    )
