"""Plays a recording to another visualizer."""

from pathlib import Path
from typing import Any

from ..errors import OptionError, RecordingError, warn
from .recording import (
    OPTIONAL_METHODS,
    PLOT_METHODS,
    VERSION,
    Damage,
    FilePath,
    RecordedCall,
    Session,
    check_format,
    read_calls,
    read_sessions,
)


class PlayerVisualizer:
    """Repeats recorded calls on a visualizer, in their order.

    Args:
        source_filepath: a file written by ``RecorderVisualizer``.
        target_visualizer: receives the calls, an object or a name; methods that it lacks are skipped with a warning.
        session: id of the session to play; the newest one if None.
    """

    def __init__(self, source_filepath: FilePath, target_visualizer: Any, session: str | None = None) -> None:
        self.source_filepath = source_filepath
        from . import create  # the package itself imports this module

        self.visualizer = create(target_visualizer) if isinstance(target_visualizer, str) else target_visualizer
        self.session = session

    def sessions(self) -> list[Session]:
        """The sessions of the file, oldest first."""
        path = Path(self.source_filepath)
        check_format(path)
        return read_sessions(path)

    def playback(self) -> "PlayerVisualizer":
        """Play one session; lines that are damaged are skipped with a warning."""
        epoch: int | None = None
        missing: set[str] = set()
        for call in read_calls(Path(self.source_filepath), self._chosen_session()):
            if isinstance(call, Damage):
                self._warn_of(call)
                continue
            if call.method in (*PLOT_METHODS, "begin_tick", "count_nonfinite"):
                if epoch not in (None, call.arguments[0]):
                    self._flush_target()
                epoch = call.arguments[0]
            self._play(call, missing)
        self._flush_target()
        return self

    def _chosen_session(self) -> str:
        sessions = {session.id: session for session in self.sessions()}
        if not sessions:
            raise RecordingError(f"{self.source_filepath} holds no session: it is empty or its only header is cut off")
        chosen = list(sessions)[-1] if self.session is None else self.session
        if chosen not in sessions:
            raise OptionError.unknown("session", chosen, sessions)
        session = sessions[chosen]
        if session.version > VERSION:
            raise RecordingError(
                f"{self.source_filepath} was recorded by monitorch {session.monitorch} in version {session.version} of "
                f"the format, this monitorch knows up to version {VERSION}: update it to play the file"
            )
        return chosen

    def _play(self, call: RecordedCall, missing: set[str]) -> None:
        method = getattr(self.visualizer, call.method, None)
        if method is not None:
            method(*call.arguments)
        elif call.method not in missing and call.method not in OPTIONAL_METHODS:
            missing.add(call.method)
            target = type(self.visualizer).__name__
            warn(f"{target} has no method {call.method}; these calls are skipped")

    def _flush_target(self) -> None:
        flush = getattr(self.visualizer, "flush", None)
        if flush is not None:
            flush()

    def _warn_of(self, damage: Damage) -> None:
        what = "cut off, as when a process is killed" if damage.is_cut else "damaged"
        text = f"line {damage.line} of {self.source_filepath} is {what}: it is skipped, all other lines are played"
        warn(text)
