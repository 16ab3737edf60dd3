"""What an inspector saves, to continue in another process as if there had been no interruption."""

from typing import Any, NamedTuple

from ..errors import LifecycleError, OptionError
from ..lens.abstract_lens import AbstractLens
from ..lens.base import Lens
from ..lens.logged_scalars import LoggedScalars
from ..preprocessor import ExplicitCall
from .inspector_state import InspectorState

VERSION = 3


class InspectorParts(NamedTuple):
    """What an inspector consists of."""

    state: InspectorState
    pushed: ExplicitCall
    logged: LoggedScalars
    lenses: list[AbstractLens]
    """Those that the user has given."""


def save(parts: InspectorParts) -> dict[str, Any]:
    """Plain data and tensors, which ``torch.load`` reads with its default options."""
    parts.state.settle()
    engine = parts.state.engine
    if engine is not None:
        engine.settle()
    return {
        "version": VERSION,
        "state": parts.state.state_dict(),
        "pushed": parts.pushed.state_dict(),
        "logged": parts.logged.state_dict(),
        "lenses": [_saved_lens(lens) for lens in parts.lenses],
        "engine": None if engine is None else engine.state_dict(),
    }


def load(parts: InspectorParts, saved: dict[str, Any]) -> None:
    """Continue from what :func:`save` returned, with the same lenses on a model with the same layers."""
    _check(parts, saved)
    engine = parts.state.engine
    if engine is not None and saved["engine"] is not None:
        engine.load_state_dict(saved["engine"])
    for lens, own in zip(parts.lenses, saved["lenses"], strict=True):
        if isinstance(lens, Lens):
            lens.load_state_dict(own["state"])
    parts.pushed.load_state_dict(saved["pushed"])
    parts.logged.load_state_dict(saved["logged"])
    parts.state.load_state_dict(saved["state"])


def count_on(state: InspectorState, step: int) -> None:
    """Continue from this step, without a saved state."""
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise OptionError(f"begin_at() takes the number of a step, at least 0, not {step!r}")
    if state.passes:
        raise LifecycleError("begin_at() comes before the first step")
    state.begin_at(step)


def _saved_lens(lens: AbstractLens) -> dict[str, Any]:
    return {"kind": type(lens).__name__, "state": lens.state_dict() if isinstance(lens, Lens) else None}


def _check(parts: InspectorParts, saved: Any) -> None:
    if not isinstance(saved, dict) or "lenses" not in saved:
        raise OptionError("this is not the state of an inspector: pass what its state_dict() returned")
    if saved["version"] != VERSION:
        raise OptionError(f"the state has version {saved['version']}, this release reads version {VERSION}")
    then, now = [own["kind"] for own in saved["lenses"]], [type(lens).__name__ for lens in parts.lenses]
    if then != now:
        raise OptionError(
            f"the state was saved with lenses {then}, this inspector has {now}: use the same lenses in the same order"
        )
    if not parts.state.attached:
        raise OptionError("attach() the model first: a state belongs to its layers")
