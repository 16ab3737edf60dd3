"""Removes an inspector from a model."""

from typing import Any

from ..engine.reports import tell
from ..lens.abstract_lens import AbstractLens
from .inspector_state import InspectorState


def release(lenses: list[AbstractLens], handles: list[Any], state: InspectorState) -> None:
    """Remove all hooks of an inspector from a model and its optimizers.

    The garbage collector may call this at any moment, also while torch traces or captures another model: nothing here
    computes.
    """
    try:
        for lens in lenses:
            if getattr(lens, "_state", state) is state:  # the lens may belong to another inspector now
                lens.detach_from_module()
    finally:  # a lens written by the user may fail
        while handles:
            handles.pop().remove()
        if state.engine is not None:
            state.engine.close()
            state.engine = None


def release_dropped(lenses: list[AbstractLens], handles: list[Any], state: InspectorState) -> None:
    """The same for an inspector that was garbage-collected: nobody could catch an error."""
    try:
        release(lenses, handles, state)
    except Exception as error:
        state.on_error = "warn"
        tell(state, "leaving the model", error)
