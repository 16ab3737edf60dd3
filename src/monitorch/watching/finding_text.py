"""Findings as plain text, for ``print``."""

from collections.abc import Sequence

from ..diagnosis import Finding, verdict


def finding_text(findings: Sequence[Finding]) -> str:
    """The verdict, and below it each finding, with what to try while it lasts; consequences stand further in.

    >>> from monitorch.diagnosis import Remedy
    >>> print(finding_text([Finding("no_update", "warning", "fc1", 5, 8, "It does not change.", Remedy("Thaw it."))]))
    1 problem since step 5
      warning: no update in fc1 since step 5: It does not change.
        try: Thaw it.
    """
    lines = [verdict(findings)]
    for finding in findings:
        space = "  " if finding.caused_by is None else "    "
        lines.append(space + finding.line)
        if finding.is_open:
            lines.append(f"{space}  try: {finding.remedy.text}")
    return "\n".join(lines)
