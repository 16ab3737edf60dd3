"""What is wrong in a run, where, since when, and what to try. Never imports torch."""

from . import signals
from .check import check
from .diagnose import diagnose, switched_off
from .finding import ACTIONS, Evidence, Finding, Remedy, findings_of, problems, verdict
from .history import RunFacts, SampleHistory
from .symptoms import SYMPTOMS, Symptom

__all__ = [
    "ACTIONS",
    "SYMPTOMS",
    "Evidence",
    "Finding",
    "Remedy",
    "RunFacts",
    "SampleHistory",
    "Symptom",
    "check",
    "diagnose",
    "findings_of",
    "problems",
    "signals",
    "switched_off",
    "verdict",
]
