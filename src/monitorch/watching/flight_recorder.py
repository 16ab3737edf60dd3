"""Keeps the last steps of a run, and writes them beside it when something goes wrong."""

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from ..engine.buffers import METER, STEP
from ..engine.columns import Column
from ..engine.engine import Engine
from ..engine.norm_ring import OF_GRADIENTS, OF_PARAMETERS
from ..engine.recent_rows import RecentRows
from ..engine.reports import tell
from ..inspector import PyTorchInspector
from ..lens import LossMetrics
from ..store import Event
from ..store.failure import Failure
from ..store.flight_record import FlightRecord, NormTable, write_flight_record
from ..store.types import FINDING
from ..visualizer.store_visualizer import StoreVisualizer

STEPS = 10
"""How many observed steps to keep."""

DUMPING = "writing a flight record"
"""What the warning says failed."""

PATIENCE = 10.0
"""Seconds that a program which was asked to end waits for its record."""

ASKED_TO_END = "the program was asked to end (SIGTERM)"


class FlightRecorder:
    """Keeps the rows of the last observed steps, and writes them with the last losses into the folder of the run.

    On a GPU, also the norms of all gradients and parameters of the last steps, observed or not.

    Args:
        inspector: whose losses to keep.
        engine: whose rows to keep.
        store: where the run is stored.
    """

    def __init__(self, inspector: PyTorchInspector, engine: Engine, store: StoreVisualizer) -> None:
        self._inspector, self._engine, self._store = inspector, engine, store
        self._rows = engine.recent_rows = RecentRows(STEPS)
        engine.norms.keep()
        self._known_kinds = set[str]()
        inspector.state.events.also_show_in(self)
        self.is_closed = False
        self._give_up_signal = _when_asked_to_end(self)

    def dump(self, reason: str, error: BaseException | None = None, step: int | None = None) -> Path | None:
        """Write what is known of the last steps, until now or until this one.

        Returns the file; None if there is no folder for it.
        """
        state = self._inspector.state
        try:
            self._engine.settle()
        except Exception as failure:  # a failed device cannot be read, but earlier numbers are still here
            reason = f"{reason}; numbers since the last tick could not be read: {Failure.of(failure).line}"
        folder = self._store.path
        if folder is None:
            return None
        path = write_flight_record(folder, self._record(reason, error, step))
        state.events.add(state.step, "flight record", text=f"the last steps are in {path.name}")
        return path

    def show_event(self, event: Event) -> None:
        """Write a record of the steps before, if it is an error and the first of its kind."""
        is_sudden = event.severity == "error" and FINDING not in event.body  # findings are not sudden: they last
        if is_sudden and event.kind not in self._known_kinds:
            self._known_kinds.add(event.kind)
            try:
                self.dump(event.line, step=event.step)
            except Exception as error:
                tell(self._inspector.state, DUMPING, error)

    def close(self) -> None:
        """Do not wait for a signal any more."""
        self.is_closed = True  # its handler may remain, if other code installed one after it
        self._give_up_signal()

    def _record(self, reason: str, error: BaseException | None, step: int | None) -> FlightRecord:
        state = self._inspector.state
        until = None if step is None else step - state.steps_have_ends
        infos, rows = self._rows.read(until)
        meters = [self._engine.meters[number] for number in infos[:, METER]]
        return FlightRecord(
            reason=reason,
            step=state.step if step is None else step,
            time=time.time(),
            error="" if error is None else "\n".join(Failure.of(error).traceback),
            rank=self._store.writer.rank,
            steps=infos[:, STEP] + state.steps_have_ends,  # a row knows how many steps had ended before
            layers=tuple(meter.name for meter in meters),
            tensors=tuple(meter.what for meter in meters),
            columns=tuple(column.name for column in Column),
            rows=rows,
            losses={"train_loss": self._losses()},
            norms=self._norms(until),
        )

    def _norms(self, until: int | None) -> NormTable:
        steps, names, numbers = self._engine.norms.read(until)
        layers, parameters = zip(*names, strict=True) if names else ((), ())
        gradients, weights = numbers[:, OF_GRADIENTS], numbers[:, OF_PARAMETERS]
        return NormTable(steps + self._inspector.state.steps_have_ends, layers, parameters, gradients, weights)

    def _losses(self) -> tuple[Any, Any]:
        """The newest steps that have a loss, and these losses."""
        known = [lens.recent_losses() for lens in self._inspector.lenses if isinstance(lens, LossMetrics)]
        longest = max(known, key=len, default=[])
        return np.array([step for step, _ in longest], np.int64), np.array([loss for _, loss in longest], np.float64)


def _when_asked_to_end(recorder: FlightRecorder) -> Callable[[], None]:
    """Write a record at SIGTERM, before the handler that was there; returns a function that cancels this."""
    known, before, process = weakref.ref(recorder), signal.getsignal(signal.SIGTERM), os.getpid()
    # Python allows handlers in the main thread only; a handler written in C could be neither called nor put back
    if threading.current_thread() is not threading.main_thread() or before is None:
        return lambda: None

    def dump() -> None:
        found = known()
        if found is not None and not found.is_closed:
            try:
                found.dump(ASKED_TO_END)
                found._store.sync()
            except Exception as error:
                tell(found._inspector.state, DUMPING, error)

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:  # a child that was forked, such as a worker of a DataLoader, has no run of its own
            # in a thread: the signal may have come while this one holds a lock that the dump needs
            dumping = threading.Thread(target=dump, name="monitorch dump", daemon=True)
            dumping.start()
            dumping.join(PATIENCE)
        if callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def cancel() -> None:
        is_possible = threading.current_thread() is threading.main_thread()
        if is_possible and signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, before)

    signal.signal(signal.SIGTERM, handle)
    return cancel
