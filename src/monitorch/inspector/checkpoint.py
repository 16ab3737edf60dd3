"""What an inspector saves, to continue in another process as if there had been no interruption."""

from typing import Any

from ..errors import LifecycleError, OptionError
from ..lens.base import Lens

VERSION = 3


def save(inspector: Any) -> dict[str, Any]:
    """Plain data and tensors, which ``torch.load`` reads with its default options."""
    inspector.state.settle()
    engine = inspector.state.engine
    if engine is not None:
        engine.settle()
    return {
        "version": VERSION,
        "state": inspector.state.state_dict(),
        "pushed": inspector._call_preprocessor.state_dict(),
        "logged": inspector._logged.state_dict(),
        "lenses": [_saved_lens(lens) for lens in _own_lenses(inspector)],
        "engine": None if engine is None else engine.state_dict(),
    }


def load(inspector: Any, saved: dict[str, Any]) -> None:
    """Continue from what :func:`save` returned, with the same lenses on a model with the same layers."""
    _check(inspector, saved)
    engine = inspector.state.engine
    if engine is not None and saved["engine"] is not None:
        engine.load_state_dict(saved["engine"])
    for lens, own in zip(_own_lenses(inspector), saved["lenses"], strict=True):
        if isinstance(lens, Lens):
            lens.load_state_dict(own["state"])
    inspector._call_preprocessor.load_state_dict(saved["pushed"])
    inspector._logged.load_state_dict(saved["logged"])
    inspector.state.load_state_dict(saved["state"])
    _tell_of_step(inspector)
    inspector._show_logged()


def count_on(inspector: Any, step: int) -> None:
    """Continue from this step, without a saved state."""
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise OptionError(f"begin_at() takes the number of a step, at least 0, not {step!r}")
    if inspector.state.passes:
        raise LifecycleError("begin_at() comes before the first step")
    inspector.state.begin_at(step)
    _tell_of_step(inspector)


def _tell_of_step(inspector: Any) -> None:
    """Pass the step number on to everything that counts steps."""
    if inspector._steps is not None:
        inspector._steps.run_statistics.begin_at(inspector.state.step)
    if hasattr(inspector.visualizer, "continue_from"):
        inspector.visualizer.continue_from(inspector.state.step)


def _own_lenses(inspector: Any) -> list[Any]:
    """The lenses that the user has given, without the one for logged numbers, which is made when needed."""
    return [lens for lens in inspector._adopted if lens is not inspector._logged]


def _saved_lens(lens: Any) -> dict[str, Any]:
    return {"kind": type(lens).__name__, "state": lens.state_dict() if isinstance(lens, Lens) else None}


def _check(inspector: Any, saved: Any) -> None:
    if not isinstance(saved, dict) or "lenses" not in saved:
        raise OptionError("this is not the state of an inspector: pass what its state_dict() returned")
    if saved["version"] != VERSION:
        raise OptionError(f"the state has version {saved['version']}, this release reads version {VERSION}")
    then, now = [own["kind"] for own in saved["lenses"]], [type(lens).__name__ for lens in _own_lenses(inspector)]
    if then != now:
        raise OptionError(
            f"the state was saved with lenses {then}, this inspector has {now}: use the same lenses in the same order"
        )
    if not inspector.state.attached:
        raise OptionError("attach() the model first: a state belongs to its layers")
