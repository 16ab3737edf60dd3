"""What hooks and lenses may ask while training runs."""

from collections.abc import Callable

from ..errors import OptionError

ERROR_MODES = ("warn", "raise")


class InspectorState:
    """Counts ticks and says whether hooks record now.

    Args:
        is_active_fn: record only in ticks whose number is a multiple of this, or for which this function says so.
        on_error: what an error inside a hook does: ``"warn"`` once and go on without that layer, or ``"raise"``.

    >>> state = InspectorState(is_active_fn=3)
    >>> [state.is_active, state.tick(), state.tick(), state.is_active]
    [False, 2, 3, True]
    """

    def __init__(self, is_active_fn: int | Callable[[int], bool] = 1, on_error: str = "warn") -> None:
        if isinstance(is_active_fn, int) and is_active_fn < 1:
            raise OptionError(f"is_active_fn={is_active_fn!r} must be at least 1, or a function of the tick's number")
        if not callable(is_active_fn) and not isinstance(is_active_fn, int):
            raise OptionError(
                f"is_active_fn={is_active_fn!r} must be a whole number or a function of the tick's number"
            )
        if on_error not in ERROR_MODES:
            raise OptionError.unknown("on_error", on_error, ERROR_MODES)
        self.is_active_fn: Callable[[int], bool] = is_active_fn if callable(is_active_fn) else EveryNth(is_active_fn)
        self.on_error = on_error
        self.restart()
        self.attached = False
        self.paused = False
        self.loss_share = 1.0

    def restart(self) -> None:
        """Begin to count anew."""
        self.counter = 1
        self.ticks = 0
        self.step = 0

    def tick(self, n_ticks: int = 1) -> int:
        """Move on, and return the number of the tick that begins."""
        self.counter += n_ticks
        self.ticks += n_ticks
        return self.counter

    @property
    def is_active(self) -> bool:
        """Whether to record now; asked at every hook, so that the answer may change within a tick."""
        return not self.paused and bool(self.is_active_fn(self.counter))


class EveryNth:
    """The function behind an integer ``is_active_fn``; a class, so that it can be pickled."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, counter: int) -> bool:
        """Whether ``counter`` is a multiple of n."""
        return counter % self.n == 0
