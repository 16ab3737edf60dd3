"""What a notebook shows of whoever has a stored run."""

from typing import Any

from ..store import open_run
from ..visualizer.store_visualizer import StoreVisualizer


class DisplaysRun:
    """Shows the run as a page, where HTML can be shown and one is being stored; else the text of ``repr``."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), **displayed(getattr(self, "visualizer", None))}


def displayed(visualizer: Any) -> dict[str, str]:
    """The stored run as a notebook shows it; nothing where there is none yet."""
    stores = [part for part in getattr(visualizer, "parts", (visualizer,)) if isinstance(part, StoreVisualizer)]
    if not stores or stores[0].path is None:
        return {}
    from ..dashboard import report_html  # only who looks at it needs it

    stores[0].sync()
    with open_run(stores[0].path) as run:
        return {} if run.last_step is None else report_html(run)._repr_mimebundle_()
