"""The stream of events: who is told, when, in which thread, and what stops training."""

import gc
import logging
import math
import pickle
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

import monitorch
from monitorch import PyTorchInspector
from monitorch.engine import meeting
from monitorch.errors import MonitorchWarning, OptionError, TrainingStopped
from monitorch.inspector.events import KEPT, Events
from monitorch.lens import LossMetrics, ParameterNorm
from monitorch.store import Event, open_run
from monitorch.visualizer import DummyVisualizer, StoreVisualizer

STOPPED_AT = 3


class Seen(DummyVisualizer):
    """Keeps events, and the thread that each came from."""

    def __init__(self):
        super().__init__()
        self.events, self.threads = [], []

    def show_event(self, event):
        self.events.append(event)
        self.threads.append(threading.get_ident())


def in_thread(function, *args, **kwargs):
    thread = threading.Thread(target=function, args=args, kwargs=kwargs)
    thread.start()
    thread.join()


def new_training(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def one_step(model, optimizer, step):
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 12).reshape(4, 3) * (step + 1)).pow(2).mean().backward()
    optimizer.step()


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(one, other):
    return all(map(torch.equal, one, other))


def weights_after(steps):
    """The weights of a model that nobody watches."""
    model, optimizer = new_training()
    for step in range(steps):
        one_step(model, optimizer, step)
    return weights(model)


def add_in_forward(model, events, step, severity="error", **details):
    """Add an event in the middle of this pass of the model, from another thread."""
    passes = []

    def hook(*_):
        passes.append(None)
        if len(passes) == step:
            in_thread(events.add, step, "burst", severity, **details)

    return model[1].register_forward_hook(hook)


# --- what an event is ---


def test_an_event_has_step_kind_severity_layer_text_and_numbers():
    events = Events()
    events.add(7, "dead units", "warning", layer="fc", text="half of them", numbers={"share": 0.5, "units": 8})
    (event,) = events.kept()
    assert isinstance(event, Event)
    assert event[:3] == (7, "dead units", "warning")
    assert (event.layer, event.text, dict(event.numbers)) == ("fc", "half of them", {"share": 0.5, "units": 8})
    assert event.line == "step 7: dead units: fc: half of them (share 0.5, units 8)"
    assert event.time > 0


def test_an_event_of_the_whole_run_needs_no_more_than_step_and_kind():
    events = Events()
    events.add(7, "begun")
    (event,) = events.kept()
    assert (event.severity, event.layer, event.text, event.numbers, event.body) == ("info", None, "", {}, {})
    assert event.line == "step 7: begun"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"severity": "fatal"}, "severity='fatal' is unknown; choose from 'info', 'warning', 'error'"),
        ({"severity": None}, "severity=None is unknown; choose from 'info'"),
        ({"numbers": {"loss": "high"}}, "loss='high' is not one"),
        ({"numbers": {"loss": torch.ones(2)}}, r"loss=tensor\(\[1., 1.\]\) is not one"),
    ],
)
def test_a_wrong_event_is_refused_with_what_is_right(wrong, message):
    events = Events()
    with pytest.raises(OptionError, match=message):
        events.add(1, "kind", **wrong)
    assert events.kept() == []


def test_the_newest_events_are_kept():
    inspector = PyTorchInspector([], visualizer="dummy")
    for step in range(KEPT + 3):
        inspector.state.events.add(step, "kind")
    assert [event.step for event in inspector.events()] == list(range(3, KEPT + 3))


# --- who is told ---


@pytest.mark.parametrize(
    ("severity", "level"), [("info", logging.INFO), ("warning", logging.WARNING), ("error", logging.ERROR)]
)
def test_each_event_is_one_line_in_the_log(caplog, severity, level):
    caplog.set_level(logging.INFO, logger="monitorch")
    Events().add(7, "100 % dead", severity, layer="fc", numbers={"share": math.nan})
    assert caplog.record_tuples == [("monitorch", level, "monitorch: step 7: 100 % dead: fc: share nan")]


def test_every_part_of_a_visualizer_that_can_show_events_gets_them_at_once():
    seen = Seen(), Seen()
    inspector = PyTorchInspector([], visualizer=[seen[0], DummyVisualizer(), seen[1]])
    inspector.state.events.add(1, "first")
    assert [[event.kind for event in one.events] for one in seen] == [["first"], ["first"]]
    inspector.visualizer = seen[1]
    inspector.state.events.add(2, "second")
    assert [[event.kind for event in one.events] for one in seen] == [["first"], ["first", "second"]]


def test_a_visualizer_that_fails_holds_nobody_up(caplog):
    class Broken(Seen):
        def show_event(self, event):
            super().show_event(event)
            raise OSError("no space left")

    seen, broken = Seen(), Broken()
    inspector = PyTorchInspector([], visualizer=[broken, seen])
    with pytest.warns(MonitorchWarning, match="showing an event in Broken failed: OSError: no space left"):
        inspector.state.events.add(1, "first", "warning")
    inspector.state.events.add(2, "second", "warning")
    assert [event.step for event in seen.events] == [event.step for event in broken.events] == [1, 2]
    assert len(caplog.records) == 2


def test_a_log_filter_that_fails_does_not_reach_training():
    def refuse(_):
        raise ValueError("no")

    logger = logging.getLogger("monitorch")
    logger.addFilter(refuse)
    try:
        seen = Seen()
        inspector = PyTorchInspector([], visualizer=seen)
        with pytest.warns(MonitorchWarning, match="logging an event failed: ValueError: no"):
            inspector.state.events.add(1, "first", "error")
    finally:
        logger.removeFilter(refuse)
    assert len(seen.events) == len(inspector.events()) == 1


def test_an_event_that_is_added_while_another_is_shown_comes_after_it():
    class Answers(Seen):
        def show_event(self, event):
            if event.kind == "question":
                inspector.state.events.add(event.step, "answer")
            super().show_event(event)

    answers = Answers()
    inspector = PyTorchInspector([], visualizer=answers)
    inspector.state.events.add(1, "question")
    assert [event.kind for event in answers.events] == ["question", "answer"]


def test_events_of_many_threads_all_come_once_and_in_the_order_of_each():
    threads, each = 6, 100

    class OneAtATime(Seen):
        def show_event(self, event):
            assert busy.acquire(blocking=False)
            super().show_event(event)
            busy.release()

    busy, seen, called = threading.Lock(), OneAtATime(), []
    inspector = PyTorchInspector([], visualizer=seen, on_event=called.append, on_error="raise")
    ready = threading.Barrier(threads)

    def add(number):
        ready.wait()
        for step in range(each):
            inspector.state.events.add(step, f"thread {number}")

    workers = [threading.Thread(target=add, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    inspector.tick()
    assert len(seen.events) == threads * each
    assert seen.events == called == inspector.events()
    for number in range(threads):
        assert [e.step for e in called if e.kind == f"thread {number}"] == list(range(each))


# --- the user's function ---


def test_the_function_is_called_by_the_training_thread_after_the_step():
    model, optimizer = new_training()
    calls = []

    def on_event(event):
        calls.append((event.step, inspector.state.step, inspector.state.is_between_steps, threading.get_ident()))

    inspector = PyTorchInspector([ParameterNorm()], module=model, optimizer=optimizer, visualizer="dummy")
    inspector.on_event = on_event
    handle = add_in_forward(model, inspector.state.events, 2)
    for step in range(3):
        one_step(model, optimizer, step)
    handle.remove()
    assert calls == [(2, 2, True, threading.get_ident())]


def test_the_function_is_called_after_a_quiet_step_too():
    model, optimizer = new_training()
    calls = []
    options = {"optimizer": optimizer, "every": lambda step: step == 1, "visualizer": "dummy"}
    inspector = PyTorchInspector([ParameterNorm()], module=model, on_event=calls.append, **options)
    for step in range(20):
        one_step(model, optimizer, step)
        if step == 10:
            assert inspector.state.is_quiet
            in_thread(inspector.state.events.add, 10, "late")
        assert len(calls) == (step > 10)


def test_events_of_a_tick_that_another_thread_shows_are_told_by_the_training_thread(tmp_path):
    model, optimizer = new_training()
    calls, store = [], StoreVisualizer(tmp_path, "run")

    def on_event(event):
        calls.append((event.kind, event.step, threading.get_ident()))

    options = {"optimizer": optimizer, "visualizer": store, "on_event": on_event}
    inspector = PyTorchInspector([LossMetrics()], module=model, **options)
    one_step(model, optimizer, 0)
    inspector.push_loss(math.nan, train=True)
    inspector.tick()
    assert [event.kind for event in inspector.events()] == ["not finite"]  # waits for the tick
    one_step(model, optimizer, 1)
    assert calls == [("not finite", 1, threading.get_ident())]
    store.close()
    with open_run(tmp_path / "run") as run:
        assert [(event.kind, event.step) for event in run.events()] == [("not finite", 1)]


@pytest.mark.parametrize("end", ["step", "tick", "detach"])
def test_no_event_is_lost_and_each_comes_once(end):
    model, optimizer = new_training()
    calls = []
    options = {"optimizer": optimizer, "visualizer": "dummy", "on_event": calls.append}
    inspector = PyTorchInspector([ParameterNorm()], module=model, **options)
    one_step(model, optimizer, 0)
    for step in range(3):
        in_thread(inspector.state.events.add, step, "kind")
    assert calls == []
    if end == "step":
        one_step(model, optimizer, 1)
    else:
        getattr(inspector, end)()
    assert [event.step for event in calls] == [0, 1, 2]
    assert calls == inspector.events()


@pytest.mark.parametrize("on_error", ["warn", "raise"])
def test_an_error_in_the_function_is_warned_about_once_and_training_goes_on(on_error):
    model, optimizer = new_training()
    calls = []

    def on_event(event):
        calls.append(event.step)
        raise RuntimeError("my own mistake")

    options = {"optimizer": optimizer, "visualizer": "dummy", "on_error": on_error, "on_event": on_event}
    inspector = PyTorchInspector([ParameterNorm()], module=model, **options)

    def train():
        for step in range(4):
            inspector.state.events.add(step, "kind")
            one_step(model, optimizer, step)

    with pytest.warns(MonitorchWarning, match="on_event failed: RuntimeError: my own mistake") as caught:
        train()
    assert [one.filename for one in caught] == [__file__]
    assert calls == [0, 1, 2, 3]
    assert same(weights(model), weights_after(4))


def test_the_function_is_not_told_of_what_it_adds_itself(tmp_path):
    model, optimizer = new_training()
    told = []

    def on_event(event):
        told.append(event.kind)
        watched.dump(event.line)  # adds an event
        in_thread(watched.inspector.state.events.add, 1, "of another thread") if len(told) == 1 else None

    with monitorch.watch(model, optimizer, folder=tmp_path, run="run", on_event=on_event) as watched:
        watched.inspector.state.events.add(0, "first")
        for step in range(3):
            one_step(model, optimizer, step)
    assert told == ["first", "of another thread"]
    kinds = [event.kind for event in watched.events()]
    assert sorted(kinds) == ["first", "flight record", "flight record", "of another thread"]


def test_a_function_that_holds_the_inspector_keeps_nothing_alive():
    model, optimizer = new_training()

    class Program:
        def __init__(self):
            options = {"optimizer": optimizer, "visualizer": Seen(), "on_event": self.on_event}
            self.inspector = PyTorchInspector([ParameterNorm()], module=model, **options)
            self.inspector.visualizer.program = self

        def on_event(self, event):
            """Hold the inspector."""

    program = weakref.ref(Program())
    gc.collect()
    assert program() is None


AT_THE_END = """
import sys, threading, monitorch, torch
from torch import nn
from monitorch.lens import ParameterNorm
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
on_event = lambda event: print(event.kind, threading.current_thread() is threading.main_thread())
if sys.argv[1] == "watch":
    watched = monitorch.watch(model, optimizer, folder=sys.argv[2], run="run", on_event=on_event)
    inspector = watched.inspector
else:
    inspector = monitorch.PyTorchInspector([ParameterNorm()], module=model, optimizer=optimizer, on_event=on_event,
                                           visualizer=monitorch.visualizer.StoreVisualizer(sys.argv[2], "run"))
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
inspector.state.events.add(1, "last", text="before the end")
sys.exit(0) if sys.argv[3] == "exits" else 1 / 0
"""


@pytest.mark.parametrize("how", ["exits", "raises"])
@pytest.mark.parametrize("what", ["watch", pytest.param("inspector", marks=pytest.mark.slow)])
def test_the_last_event_is_told_and_stored_when_the_process_ends(run_program, tmp_path, what, how):
    done = run_program(AT_THE_END, what, tmp_path, how)
    assert done.returncode == (how == "raises"), done.stderr
    kinds = ["last", "flight record"] if (what, how) == ("watch", "raises") else ["last"]
    assert done.stdout.splitlines()[-len(kinds) :] == [f"{kind} True" for kind in kinds]
    with open_run(tmp_path / "run") as run:
        assert [event.kind for event in run.events()] == kinds
        assert run.events()[0].text == "before the end"


# --- stopping ---


@pytest.mark.parametrize(
    ("stop_on", "severity", "stops"),
    [
        (None, "error", False),
        ("error", "info", False),
        ("error", "warning", False),
        ("error", "error", True),
        ("warning", "info", False),
        ("warning", "warning", True),
        ("warning", "error", True),
    ],
)
def test_training_stops_between_two_steps_after_all_were_told(stop_on, severity, stops):
    model, optimizer = new_training()
    seen, calls = Seen(), []
    options = {"optimizer": optimizer, "visualizer": seen, "on_event": calls.append, "stop_on": stop_on}
    inspector = PyTorchInspector([ParameterNorm()], module=model, **options)
    add_in_forward(model, inspector.state.events, STOPPED_AT, severity, layer="1", text="too large", numbers={"x": 2})
    stopped, steps = None, 0
    try:
        for steps in range(1, 6):
            one_step(model, optimizer, steps - 1)
    except TrainingStopped as error:
        stopped = error
    assert (stopped is not None) == stops
    assert len(seen.events) == len(calls) == 1
    if stopped is None:
        assert same(weights(model), weights_after(5))
    else:
        wanted = f"stopped between two steps: {severity} at step {STOPPED_AT}: burst: layer 1: too large (x 2)"
        assert wanted in str(stopped)
        assert stopped.event == calls[0]
        assert steps == inspector.state.step == STOPPED_AT
        assert same(weights(model), weights_after(STOPPED_AT))


def test_whoever_catches_it_may_go_on():
    model, optimizer = new_training()
    options = {"optimizer": optimizer, "visualizer": "dummy", "stop_on": "error", "on_error": "raise"}
    inspector = PyTorchInspector([ParameterNorm()], module=model, **options)
    add_in_forward(model, inspector.state.events, 6)  # stops after the step
    inspector.state.events.add(0, "burst", "error")  # stops before the step
    stopped_at = []
    while inspector.state.step < 8:
        try:
            one_step(model, optimizer, inspector.state.step)
        except TrainingStopped as stopped:
            stopped_at.append((stopped.event.step, inspector.state.step))
    assert stopped_at == [(0, 0), (6, 6)]
    assert same(weights(model), weights_after(8))


def test_only_the_first_event_of_several_stops():
    inspector = PyTorchInspector([], visualizer="dummy", stop_on="error")
    for step in (4, 5):
        inspector.state.events.add(step, "bad", "error")
    with pytest.raises(TrainingStopped, match="error at step 4: bad"):
        inspector.tick_epoch()
    inspector.tick_epoch()


def test_training_never_stops_inside_a_step():
    model, optimizer = new_training()
    options = {"optimizer": optimizer, "visualizer": "dummy", "stop_on": "error"}
    inspector = PyTorchInspector([ParameterNorm()], module=model, **options)
    one_step(model, optimizer, 0)
    for _ in range(3):  # gradients are accumulated
        model(torch.ones(2, 3)).sum().backward()
        inspector.state.events.add(1, "bad", "error")
        inspector.tick()
    before = weights(model)
    with pytest.raises(TrainingStopped):
        optimizer.step()
    assert not same(weights(model), before)
    assert inspector.state.step == 2


def step_by_hand(model, inspector):
    model(torch.ones(1, 3)).sum().backward()
    inspector.step()


def passes_only(model, inspector):
    model(torch.ones(1, 3)).sum().backward()


def passes_of_a_compiled_model(model, inspector):
    torch.compile(model, backend="eager")(torch.ones(1, 3)).sum().backward()


def ticks_only(model, inspector):
    inspector.tick_epoch()


@pytest.mark.parametrize("go_on", [step_by_hand, passes_only, passes_of_a_compiled_model, ticks_only])
def test_training_without_an_optimizer_stops_too(go_on):
    model, _ = new_training()
    inspector = PyTorchInspector([ParameterNorm()], module=model, visualizer="dummy", stop_on="error")
    for _ in range(3):
        go_on(model, inspector)
    inspector.state.events.add(3, "bad", "error")
    with pytest.raises(TrainingStopped, match="error at step 3: bad"):
        go_on(model, inspector)
    go_on(model, inspector)


def test_optimizers_that_step_inside_backward_all_step_before_training_stops():
    model, _ = new_training()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(lambda found: optimizers[found].step())
    calls = []
    options = {"optimizer": list(optimizers.values()), "visualizer": "dummy", "on_event": calls.append}
    inspector = PyTorchInspector([ParameterNorm()], module=model, stop_on="error", **options)
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()
    add_in_forward(model, inspector.state.events, 1)
    before = weights(model)
    model(torch.ones(2, 3)).sum().backward()
    assert calls == []
    assert not any(map(torch.equal, before, weights(model)))
    with pytest.raises(TrainingStopped):
        model(torch.ones(2, 3))
    assert len(calls) == 1


def test_a_step_that_the_scaler_skips_does_not_keep_training_from_stopping():
    model, optimizer = new_training()
    scaler = torch.amp.GradScaler("cpu")
    options = {"optimizer": optimizer, "grad_scaler": scaler, "visualizer": "dummy", "stop_on": "error"}
    inspector = PyTorchInspector([ParameterNorm()], module=model, **options)

    def step(factor=1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 3)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    step()
    add_in_forward(model, inspector.state.events, 1)
    step(math.inf)
    before = weights(model)
    with pytest.raises(TrainingStopped):
        step()
    assert same(weights(model), before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stop_on": "info"}, "stop_on='info' is unknown; choose from None, 'warning', 'error'"),
        ({"stop_on": "errors"}, "stop_on='errors' is unknown"),
        ({"stop_on": True}, "stop_on=True is unknown"),
        ({"on_event": "print"}, "on_event='print' must be a function that takes an event"),
    ],
)
@pytest.mark.parametrize("make", [PyTorchInspector, monitorch.watch])
def test_wrong_options_are_refused(make, wrong, message):
    model, _ = new_training()
    first = [] if make is PyTorchInspector else model
    with pytest.raises(OptionError, match=message):
        make(first, visualizer="dummy", **wrong)


def test_the_exception_can_be_sent_to_another_process():
    event = Event(3, "bad", "error")
    found = pickle.loads(pickle.dumps(TrainingStopped("why", event)))
    assert (str(found), found.event) == ("why", event)


# --- several processes ---


def stops_on_all(rank, _):
    """Rank 1 alone finds something, in step 4; all know it three ticks after that of step 6."""
    model, optimizer = new_training()
    calls = []
    options = {"optimizer": optimizer, "visualizer": Seen(), "on_event": calls.append, "stop_on": "error"}
    inspector = PyTorchInspector([ParameterNorm()], module=model, **options)
    said = ""
    for step in range(20):
        if step == 3:
            inspector.state.events.add(4, "everywhere", layer="0")
        if step == 3 and rank == 1:
            inspector.state.events.add(4, "here", "error", layer="2", numbers={"x": 1.5})
        try:
            one_step(model, optimizer, step)
            if step % 3 == 2:
                inspector.tick()
        except TrainingStopped as stopped:
            said = str(stopped)
            break
    return {"steps": step + 1, "said": said, "events": [event.line for event in calls]}


def stays_alone(rank, _):
    """Only one process watches: if it stopped, the others would wait for it forever."""
    model, optimizer = new_training()
    if rank:
        return {}
    meeting.PATIENCE = 0.1
    options = {"optimizer": optimizer, "visualizer": "dummy", "stop_on": "error"}
    inspector = PyTorchInspector([ParameterNorm()], module=model, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(6):
            inspector.state.events.add(step, "bad", "error")
            one_step(model, optimizer, step)
            inspector.tick()
    return {"steps": inspector.state.step, "said": [str(one.message) for one in caught]}


def refuses_to_stop_apart(rank, _):
    model, _ = new_training()
    try:
        PyTorchInspector([], module=model, visualizer="dummy", per_rank=True, stop_on="error")
    except OptionError as error:
        return str(error)
    return ""


@pytest.mark.xdist_group("processes")
def test_all_processes_stop_at_the_same_step(run_ranks):
    first, second = run_ranks(stops_on_all)
    assert first["steps"] == second["steps"] == 15
    assert "error at step 4: here: layer 2: x 1.5" in first["said"]
    assert "error at step 4: here: layer 2: x 1.5" in second["said"]
    assert first["events"] == ["step 4: everywhere: layer 0", "step 4: here: layer 2: x 1.5, rank 1"]
    assert second["events"] == ["step 4: everywhere: layer 0", "step 4: here: layer 2: x 1.5"]


@pytest.mark.xdist_group("processes")
def test_a_process_that_watches_alone_goes_on_and_says_why(run_ranks):
    alone, _ = run_ranks(stays_alone)
    assert alone["steps"] == 6
    assert sum("training is not stopped: with several processes" in text for text in alone["said"]) == 1


@pytest.mark.xdist_group("processes")
def test_processes_that_show_their_own_numbers_cannot_stop_together(run_ranks):
    for said in run_ranks(refuses_to_stop_apart):
        assert "stop_on='error' and per_rank=True: with several processes" in said
