"""How a notebook shows an object that stores a run."""

from typing import Any

from ..store import open_run
from ..visualizer.store_visualizer import store_in


class DisplaysRun:
    """Shows the stored run as a page in a notebook; without a run, or without HTML, the text of ``repr``."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), **displayed(getattr(self, "visualizer", None))}


def displayed(visualizer: Any) -> dict[str, str]:
    """The stored run as HTML for a notebook; empty if there is none."""
    store = store_in(visualizer)
    if store is None or store.path is None:
        return {}
    from ..dashboard import report_html  # needed only in notebooks

    store.sync()
    with open_run(store.path) as run:
        return {} if run.last_step is None else report_html(run)._repr_mimebundle_()
