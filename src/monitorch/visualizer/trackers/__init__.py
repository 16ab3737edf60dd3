"""Trackers: other programs in which people keep their runs, and the digest that is written to them."""

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...errors import OptionError
from .tracker import Tracker
from .tracker_visualizer import TrackerVisualizer

if TYPE_CHECKING:
    from .mlflow import MlflowTracker
    from .tensorboard import TensorBoardTracker
    from .trackio import TrackioTracker
    from .wandb import WandbTracker

__all__ = ["MlflowTracker", "TensorBoardTracker", "Tracker", "TrackerVisualizer", "TrackioTracker", "WandbTracker"]

TRACKERS = {
    "tensorboard": "TensorBoardTracker",
    "wandb": "WandbTracker",
    "mlflow": "MlflowTracker",
    "trackio": "TrackioTracker",
}
"""The names that ``watch(trackers=...)`` takes, which are also those of modules, packages and extras."""


def __getattr__(name: str) -> Any:
    """Import a tracker on first use."""
    for module, known in TRACKERS.items():
        if known == name:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def trackers_from(given: str | Tracker | Iterable[str | Tracker] | None) -> list[Tracker]:
    """The trackers that were given, by name or as objects.

    >>> trackers_from(None)
    []
    """
    several = [] if given is None else [given] if isinstance(given, (str, Tracker)) else given
    if not isinstance(several, Iterable):
        raise OptionError(f"trackers={given!r} must be a name, a tracker, or a list of them: {_choices()}")
    return [_tracker(one) for one in several]


def _tracker(given: Any) -> Tracker:
    if isinstance(given, Tracker):
        return given
    if not isinstance(given, str):
        hint = f": write {given.__name__}()" if isinstance(given, type) else f"; choose from {_choices()}, or an object"
        raise OptionError(f"{given!r} is not a tracker{hint}")
    if given not in TRACKERS:
        raise OptionError.unknown("trackers", given, TRACKERS)
    found: Tracker = __getattr__(TRACKERS[given])()
    return found


def _choices() -> str:
    return ", ".join(map(repr, TRACKERS))
