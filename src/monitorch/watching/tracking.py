"""Starts and ends the trackers of a watched run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import visualizer as visualizers
from ..cli.wording import command
from ..errors import warn
from ..inspector import PyTorchInspector
from ..store.run_list import time_name
from ..visualizer.several import Several
from ..visualizer.store_visualizer import StoreVisualizer, store_in
from ..visualizer.trackers import TrackerVisualizer
from ..visualizer.trackers.tracker import TrackedRun
from .settings import settings

REPORT = "report.html"
"""The report of a run, in its folder."""


def beside(visualizer: Any, trackers: Sequence[TrackerVisualizer]) -> Any:
    """A visualizer and trackers combined into one."""
    if not trackers:
        return visualizer
    shown = visualizers.resolve(visualizer)
    return Several([*getattr(shown, "parts", (shown,)), *trackers])


def begin_tracking(trackers: Sequence[TrackerVisualizer], inspector: PyTorchInspector, config: Any) -> None:
    """Start trackers in the main process; elsewhere, and if nothing is watched, they take nothing."""
    store = store_in(inspector.visualizer)
    for tracker in trackers:
        if inspector.is_main_process and not inspector.state.paused:
            name = None if store is None else store.name
            run = TrackedRun(name or time_name(), {} if config is None else settings(config))
            tracker.begin(run, _facts(store), 0 if store is None else store.first_step)
        else:
            tracker.close()


def end_tracking(trackers: Sequence[TrackerVisualizer], store: StoreVisualizer | None, status: str) -> None:
    """Close the trackers. Those that ask for it get the report of the stored run."""
    is_wanted = any(one.is_tracking and one.tracker.report for one in trackers)
    report = _report(store) if is_wanted and store is not None else None
    for tracker in trackers:
        tracker.close(status, report)


def _facts(store: StoreVisualizer | None) -> dict[str, str]:
    path = None if store is None else store.path
    return {} if path is None else {"run": str(path), "look at it with": f"{command()} ui {path.parent}"}


def _report(store: StoreVisualizer) -> Path | None:
    from ..dashboard import report_html  # needed only at the end

    try:
        store.sync()  # the user's own one stays open
        return None if store.path is None else report_html(store.path).save(store.path / REPORT)
    except Exception as error:
        warn(f"there is no report for trackers: {type(error).__name__}: {error}")
        return None
