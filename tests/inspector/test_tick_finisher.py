"""Ticks that are finished by another thread: in order, with a limit for those who wait."""

import pickle
import threading
import time

import pytest

from monitorch.errors import MonitorchWarning, warn
from monitorch.inspector import tick_finisher
from monitorch.inspector.tick_finisher import TickFinisher


@pytest.fixture
def finisher():
    return TickFinisher(float)


def test_ticks_run_in_their_order_in_another_thread(finisher):
    ran = []
    for number in range(5):
        finisher.start(lambda number=number: ran.append((number, threading.get_ident(), finisher.is_this_thread)))
    assert finisher.wait()
    assert [number for number, _, _ in ran] == list(range(5))
    assert {(thread != threading.get_ident(), is_own) for _, thread, is_own in ran} == {(True, True)}
    assert finisher.is_done
    assert not finisher.is_this_thread


def test_one_may_wait_for_all_but_the_last_ticks_and_not_for_ever(finisher):
    may_end = [threading.Event() for _ in range(3)]
    for event in may_end:
        finisher.start(event.wait)
    assert finisher.wait(3)
    assert not finisher.wait(2, patience=0.01)
    may_end[0].set()
    assert finisher.wait(2, patience=60)
    assert not finisher.is_done
    for event in may_end:
        event.set()
    assert finisher.wait(patience=60)


def test_warnings_and_the_first_error_come_to_whoever_waits(finisher):
    def fail(text):
        warn(f"warned of {text}")
        raise OSError(text)

    for text in ("one", "two"):
        finisher.start(lambda text=text: fail(text))
    with pytest.warns(MonitorchWarning, match="warned of") as found, pytest.raises(OSError, match="one"):
        finisher.wait()
    assert [str(one.message) for one in found] == ["warned of one", "warned of two"]
    assert finisher.wait()


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_tick_that_would_end_its_thread_only_ends_itself(finisher, end):
    ran = []

    def leave():
        raise end(3)

    finisher.start(leave)
    with pytest.raises(RuntimeError, match=rf"a tick was ended by {end.__name__}\(3\)"):
        finisher.wait(patience=60)
    finisher.start(lambda: ran.append("next"))
    assert finisher.wait(patience=60)
    assert ran == ["next"]


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_interrupt_while_the_thread_begins_keeps_nobody_waiting(finisher, has_begun, monkeypatch):
    start, ran = threading.Thread.start, []

    def interrupted(thread):
        monkeypatch.undo()
        if has_begun:
            start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finisher.start(lambda: ran.append("interrupted"))
    assert finisher.wait(patience=60)
    assert finisher.is_done
    finisher.start(lambda: ran.append("next"))
    assert finisher.wait(patience=60)
    assert ran == ["interrupted", "next"]


def test_threads_that_begin_at_the_same_time_take_no_tick_twice(finisher):
    ran, began, may_end = [], threading.Event(), threading.Event()
    finisher.start(lambda: began.set() or may_end.wait())
    assert began.wait(60)
    for number in range(3):
        finisher.start(lambda number=number: ran.append(number))
        finisher._work()  # as a thread that comes too late
    may_end.set()
    assert finisher.wait(patience=60)
    assert ran == [0, 1, 2]


@pytest.fixture
def rests_for_ever(monkeypatch):
    monkeypatch.setattr(tick_finisher, "PART", 0.0)
    monkeypatch.setattr(tick_finisher, "REST", 1e9)


def rest_often(finisher, ran, began, parts=20):
    for part in range(parts):
        ran.append(part)
        began.set()
        sum(range(1000))
        finisher.rest()


@pytest.mark.usefixtures("rests_for_ever")
def test_a_tick_that_rests_goes_on_when_somebody_waits(finisher):
    ran, began = [], threading.Event()
    finisher.start(lambda: rest_often(finisher, ran, began))
    assert began.wait(60)
    assert not finisher.is_done
    assert finisher.wait(patience=60)
    assert ran == list(range(20))


@pytest.mark.usefixtures("rests_for_ever")
def test_a_tick_that_rests_goes_on_when_the_next_one_is_there(finisher):
    ran, began, has_ended, may_end = [], threading.Event(), threading.Event(), threading.Event()
    finisher.start(lambda: rest_often(finisher, ran, began) or has_ended.set() or may_end.wait(60))
    assert began.wait(60)
    finisher.start(list)
    assert has_ended.wait(60)
    may_end.set()
    assert finisher.wait(patience=60)


@pytest.mark.usefixtures("rests_for_ever")
def test_only_ticks_rest(finisher):
    rest_often(finisher, [], threading.Event())
    finisher.start(lambda: None)
    assert finisher.wait(patience=60)
    rest_often(finisher, [], threading.Event())


def test_a_tick_rests_longer_than_it_works(finisher, monkeypatch):
    asked, worked = [], []
    monkeypatch.setattr(finisher._changed, "wait_for", lambda until, seconds: asked.append(seconds))

    def tick():
        for _ in range(50):
            begin = time.thread_time()
            while time.thread_time() - begin < 0.0004:  # less than what is worth a rest
                pass
            finisher.rest()
        worked.append(time.thread_time() - finisher._rested_at)

    tick_thread = threading.Thread(target=finisher._work)
    finisher._ticks.append(tick)
    tick_thread.start()
    tick_thread.join(60)
    assert 5 <= len(asked) <= 25
    assert all(seconds >= tick_finisher.REST * tick_finisher.PART for seconds in asked)
    assert worked[0] < 2 * tick_finisher.PART


def test_a_copy_has_nothing_to_run():
    finisher = TickFinisher(print)
    finisher.start(list)
    assert pickle.loads(pickle.dumps(finisher)).is_done


def test_ticks_end_before_the_program_does_but_it_does_not_wait_for_ever(run_program):
    code = """
import atexit, threading, sys
from monitorch.inspector import tick_finisher
finisher, ends = tick_finisher.TickFinisher(float), threading.Event()
finisher.start(lambda: ends.wait(60) and print("shown", flush=True))
if "hangs" in sys.argv:
    ends.set()
    finisher.wait()
    tick_finisher.AT_EXIT = 0.01
    finisher.start(threading.Event().wait)
atexit.register(ends.set)  # what is registered last is called first: now Python exits, and the finisher will wait
"""
    for arguments in ([], ["hangs"]):
        done = run_program(code, *arguments)
        assert (done.returncode, done.stdout) == (0, "shown\n"), done.stderr
