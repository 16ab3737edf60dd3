"""Leaving a model."""

from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from ..lens.abstract_lens import AbstractLens
from .inspector_state import InspectorState


def release(lenses: list[AbstractLens], handles: list[Any], state: InspectorState) -> None:
    """Remove all that an inspector has put on a model and its optimizers."""
    with _disable_current_modes():  # the garbage collector may call this while torch traces something else
        _release(lenses, handles, state)


def _release(lenses: list[AbstractLens], handles: list[Any], state: InspectorState) -> None:
    for lens in lenses:
        if getattr(lens, "_state", state) is state:  # it may have moved on to another inspector
            lens.detach_from_module()
    while handles:
        handles.pop().remove()
    if state.house is not None:
        state.house.close()
        state.house = None
