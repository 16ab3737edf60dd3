"""One call that watches a model, the run it writes to disk, and the facts kept beside the numbers."""

from .model_watch import Watch, watch

__all__ = ["Watch", "watch"]
