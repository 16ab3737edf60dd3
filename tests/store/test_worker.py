"""The thread that writes."""

import numpy as np
import pytest

from monitorch.store import Layer, Statistic, worker
from monitorch.store.types import Event, Frame, Looks, Meta, ModelLayers, Segment
from monitorch.store.worker import GROUP_LENGTH, FlushRequest, Prologue, Worker


def frame(step):
    return Frame("Norm", step, 0, 0.0, ("mean",), ("fc",), np.float32([[step]]))


def ask(thread, **options):
    request = FlushRequest(**options)
    thread.queue.put(request)
    assert request.done.wait(60)


@pytest.fixture
def refusing(tmp_path, monkeypatch):
    """A worker that never gets a file; gives it, and the attempts that it has made."""
    monkeypatch.setattr(worker, "RETRY_SECONDS", 1000)
    attempts = []

    def refuse(operations):
        attempts.append(operations)
        raise PermissionError("not here")

    thread = Worker(tmp_path / "run", refuse)
    thread.start()
    yield thread, attempts
    ask(thread, is_last=True)
    thread.join(60)
    assert not thread.is_alive()


def test_after_a_failure_nothing_is_tried_for_a_while_unless_somebody_asks(refusing):
    thread, attempts = refusing
    for step in range(4 * GROUP_LENGTH):
        thread.queue.put(frame(step))
    ask(thread)
    assert len(attempts) == 2  # the first group, and whoever asked
    assert thread.dropped == 4 * GROUP_LENGTH
    ask(thread)
    assert len(attempts) == 3
    assert [*thread.notices] == [
        f"the run cannot be stored in {thread._folder}: PermissionError: not here. Training goes on without it"
    ]


def test_whatever_comes_out_of_the_queue_the_thread_lives(refusing):
    thread, _ = refusing
    thread.queue.put("nonsense")
    thread.queue.put(frame(1))
    ask(thread)
    assert thread.is_alive()


def test_a_disk_that_fails_is_told_of_also_after_something_was_left_out(tmp_path):
    class Disk:
        path, is_full = tmp_path / "rank0.db", False

        def write(self, operations):
            if self.is_full:
                raise OSError(28, "No space left on device")
            if any(operation == Meta({"odd": 1}) for operation in operations):
                raise ValueError("odd")

        def is_lost(self):
            return False

        def maintain(self):
            pass

        close = maintain

    thread = Worker(tmp_path / "run", lambda operations: disk)
    thread.backend = disk = Disk()
    thread.start()
    thread.queue.put(Meta({"odd": 1}))
    ask(thread)
    disk.is_full = True
    ask(thread)
    ask(thread, is_last=True)
    left_out, failure = thread.notices
    assert left_out == "something cannot be stored: ValueError: odd. It is left out"
    assert "cannot be stored in" in failure
    assert "No space left" in failure


def test_a_prologue_is_all_that_is_no_number_and_no_event():
    prologue = Prologue()
    layers = ModelLayers((Layer("a"), Layer("b")))
    others = ModelLayers((Layer("b"), Layer("a")))
    said = [
        Meta({"lr": 0.1, "name": "x"}), layers, others, layers, Meta({"lr": 0.2}), frame(1), Event(1, "spike"),
        Segment(3, 0.0), Looks("L", (Statistic("x"), Statistic("y"))), Looks("L", (Statistic("x", "log"),)),
    ]  # fmt: skip
    for operation in said:
        prologue.keep(operation)
    assert prologue.operations() == [
        Meta({"lr": 0.2, "name": "x"}), others, layers,
        Looks("L", (Statistic("x", "log"),)), Looks("L", (Statistic("y"),)),
    ]  # fmt: skip
