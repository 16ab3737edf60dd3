"""Findings as plain text, for ``print``."""

from collections.abc import Iterable, Sequence

from ..diagnosis import Finding, verdict


def finding_text(findings: Sequence[Finding], notes: Iterable[str] = ()) -> str:
    """The verdict, then the notes and each finding, with what to try while it is open. Consequences are indented.

    >>> from monitorch.diagnosis import Remedy
    >>> print(finding_text([Finding("no_update", "warning", "fc1", 5, 8, "It does not change.", Remedy("Thaw it."))]))
    1 problem since step 5
      warning: no update in fc1 since step 5: It does not change.
        try: Thaw it.
    """
    lines = [verdict(findings), *(f"  {note}" for note in notes)]
    for finding in findings:
        space = "  " if finding.caused_by is None else "    "
        lines.append(space + finding.line)
        if finding.is_open:
            lines.append(f"{space}  try: {finding.remedy.text}")
    return "\n".join(lines)
