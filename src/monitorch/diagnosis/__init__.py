"""What is wrong in a run, where, since when, and what to try. Never imports torch."""

from .finding import ACTIONS, Evidence, Finding, Remedy, verdict

__all__ = ["ACTIONS", "Evidence", "Finding", "Remedy", "verdict"]
