"""What is left of the last steps when something goes wrong."""

import math
import signal
import textwrap
import threading

import numpy as np
import pytest
import torch
from torch import nn

import monitorch
from monitorch import MonitorchWarning
from monitorch.engine import step_norms
from monitorch.engine.norm_ring import STEPS as STEPS_WITH_NORMS
from monitorch.inspector.cadence import GIFT
from monitorch.lens import NonFinite, OutputNorm
from monitorch.store import flight_records, open_run, read_flight_record
from monitorch.watching import flight_recorder
from monitorch.watching.flight_recorder import STEPS


class Training:
    """A model in training that knows what its rows and losses have to be."""

    def __init__(self, folder):
        torch.manual_seed(0)
        self.folder = folder
        self.model, self.loss_fn = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.losses, self.squares, self.norms, self.weights = [], [], [], []

    def watch(self, **options):
        arguments = {"loss_fn": self.loss_fn, "folder": self.folder, "run": "run", "every": 1, **options}
        return monitorch.watch(self.model, self.optimizer, **arguments)

    def run(self, steps, parts=1):
        for _ in range(steps):
            self.optimizer.zero_grad()
            losses = []
            for _ in range(parts):
                inputs = torch.randn(5, 3)
                output = self.model(inputs)
                loss = self.loss_fn(output, torch.ones(5, 1))
                loss.backward()
                losses.append(loss.item())
            self.squares.append(float((output.detach().double() ** 2).sum()))
            self.losses.append(np.mean(losses))
            self.norms.append([np.linalg.norm(own.grad.double().numpy()) for own in self.model.parameters()])
            self.weights.append([np.linalg.norm(own.detach().double().numpy()) for own in self.model.parameters()])
            self.optimizer.step()

    @property
    def records(self):
        return [read_flight_record(path) for path in flight_records(self.folder / "run")]


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


@pytest.fixture
def norms_stay(monkeypatch):
    """As on a GPU: norms of every step are kept where the parameters are."""
    monkeypatch.setattr(step_norms, "is_kept_on", lambda device: True)
    monkeypatch.setattr(step_norms, "SHARE", math.inf)


def numbers(record, layer, tensor, column="SQUARES"):
    """By step."""
    place = record.columns.index(column)
    chosen = zip(record.steps.tolist(), record.layers, record.tensors, record.rows[:, place].tolist(), strict=True)
    return {step: number for step, *of, number in chosen if of == [layer, tensor]}


@pytest.mark.parametrize("steps", [1, 4, STEPS, 25])
def test_rows_of_the_last_steps_and_all_losses_are_written_when_asked_for(training, steps):
    with training.watch(tick_every=7) as watched:
        training.run(steps)
        path = watched.dump("I want to know")
    (record,) = training.records
    assert path == training.folder / "run" / f"flight_{steps}.npz"
    assert (record.reason, record.step, record.error, record.rank) == ("I want to know", steps, "", 0)
    last = range(max(1, steps - STEPS + 1), steps + 1)
    assert numbers(record, "2", "output") == pytest.approx({step: training.squares[step - 1] for step in last})
    assert set(numbers(record, "0", "update weight")) == set(numbers(record, "0", "gradient bias")) == set(last)
    seen, losses = record.losses["train_loss"]
    assert seen.tolist() == list(range(1, steps + 1))
    assert losses == pytest.approx(training.losses)


def test_steps_that_were_not_observed_do_not_count_though_parameters_were_read_after_them(training):
    with training.watch(every=4, tick_every=1) as watched:
        training.run(40)
        watched.dump()
    (record,) = training.records
    assert set(numbers(record, "2", "output")) == {*range(4, 41, 4)}
    assert not any(tensor.startswith("parameter") for tensor in record.tensors)


def test_steps_that_are_only_checked_do_not_count_unless_something_was_wrong(training):
    lenses = [OutputNorm(include=[nn.Linear]), NonFinite(training.optimizer)]
    with training.watch(loss_fn=None, lenses=lenses, every=4, tick_every=5) as watched:
        training.run(41)
        watched.dump()
        with torch.no_grad():
            training.model[2].weight.fill_(torch.nan)
        training.run(1)
    asked, broken = training.records
    assert set(asked.steps.tolist()) == set(numbers(asked, "2", "output")) == {*range(4, 41, 4)}
    assert set(broken.steps.tolist()) == {*range(8, 41, 4), 42}
    assert np.isnan(numbers(broken, "2", "gradient weight")[42])


def test_an_error_leaves_the_steps_that_end_with_it(training):
    with training.watch(tick_every=100) as watched:
        training.run(30)
        with torch.no_grad():
            training.model[2].weight.fill_(torch.nan)
        training.run(60)
    records = training.records
    origin = watched.inspector.first_not_finite
    assert (origin.what, origin.layer) == ("parameter", "2")
    assert [record.step for record in records] == [origin.step]  # what follows is of the same kind
    assert origin.text in records[0].reason
    found = numbers(records[0], "0", "output")
    assert found.keys() == {*range(origin.step - STEPS + 1, origin.step + 1)}
    assert [event.text for event in watched.events() if event.kind == "flight record"] == [
        f"the last steps are in flight_{origin.step}.npz"
    ]


@pytest.mark.parametrize("options", [{"every": None}, {"every": None, "budget": 0.01}, {"every": 5}], ids=str)
def test_losses_are_those_of_all_steps_whichever_are_observed(training, options):
    with training.watch(**options) as watched:
        training.run(60)
        watched.dump()
    steps, losses = training.records[0].losses["train_loss"]
    assert steps.tolist() == list(range(1, 61))
    assert losses == pytest.approx(training.losses)


def test_the_loss_of_a_step_is_the_mean_of_its_parts_and_asking_changes_no_number(training):
    with training.watch(tick_every=5) as watched:
        training.run(2, parts=3)
        training.optimizer.zero_grad()
        losses = []
        for _ in range(3):
            loss = training.loss_fn(training.model(torch.randn(5, 3)), torch.ones(5, 1))
            loss.backward()
            losses.append(loss.item())
            watched.dump()
        training.optimizer.step()
        training.losses.append(np.mean(losses))
        training.run(2)
        shown = [r.value for r in watched.records() if (r.tag, r.statistic) == ("Loss", "train_loss mean")]
    assert shown == pytest.approx([np.mean(training.losses)])
    assert training.records[2].losses["train_loss"][1] == pytest.approx(training.losses[:3])
    assert training.records[0].losses["train_loss"][1][-1] == pytest.approx(losses[0])


def test_losses_that_are_pushed_are_there(training):
    with training.watch(loss_fn=None) as watched:
        for value in (3.0, 2.0):
            training.run(1)
            watched.push_loss(value)
        watched.dump()
    steps, losses = training.records[0].losses["train_loss"]
    assert (steps.tolist(), losses.tolist()) == ([1, 2], [3.0, 2.0])


@pytest.mark.usefixtures("norms_stay")
@pytest.mark.parametrize("steps", [1, 30, STEPS_WITH_NORMS + 20])
def test_norms_of_every_step_are_there_where_they_cost_nothing(training, steps):
    with training.watch(every=10, tick_every=7) as watched:
        training.run(steps)
        watched.dump()
    norms = training.records[0].norms
    last = slice(max(0, steps - STEPS_WITH_NORMS), steps)
    assert norms.steps.tolist() == list(range(1, steps + 1))[last]
    assert list(zip(norms.layers, norms.parameters, strict=True)) == [
        (layer, name) for layer in "02" for name in ("weight", "bias")
    ]
    assert norms.gradients == pytest.approx(np.array(training.norms)[last], rel=1e-6)
    assert norms.weights == pytest.approx(np.array(training.weights)[last], rel=1e-6)


def test_on_a_cpu_there_are_none(training):
    with training.watch(every=10) as watched:
        training.run(30)
        watched.dump()
    assert training.records[0].norms.gradients.size == 0


@pytest.mark.usefixtures("norms_stay")
@pytest.mark.parametrize("options", [{"every": 1000}, {"every": None, "budget": 1e-9}], ids=str)
def test_a_fault_closes_its_tick_and_leaves_the_norms_that_end_with_it(training, options):
    with training.watch(tick_every=10_000, **options) as watched:
        state = watched.inspector.state
        training.run(40)
        ticks, observed = watched._ticks, state.observed
        handle = training.model[2].weight.register_hook(lambda gradient: gradient * math.nan)
        training.run(1)
        handle.remove()
        assert watched._ticks == ticks + 1
        training.run(4)
        found = [event for event in watched.events() if event.kind == "not finite"]
        assert (state.observed > observed) is ("budget" in options)  # more steps are observed, within the allowance
        assert state.cadence.state_dict()["gifts"] == (GIFT if "budget" in options else 0)
    assert [(event.step, event.layer) for event in found] == [(41, "2")]
    (record,) = training.records
    assert record.norms.steps[-1] == record.step == 41
    is_finite = np.isfinite(record.norms.gradients)
    assert is_finite[:-1].all()
    assert is_finite[-1].tolist() == [True, True, False, True]
    assert np.isfinite(record.norms.weights).all()


def fail(training, error):
    with training.watch():
        training.run(12)
        training.model(torch.randn(5, 3))
        raise error


@pytest.mark.parametrize("error", [ValueError("the data has ended"), KeyboardInterrupt()], ids=repr)
def test_an_exception_writes_them_with_its_text(training, error):
    with pytest.raises(type(error)):
        fail(training, error)
    (record,) = training.records
    assert record.reason == f"the run was ended by {type(error).__name__}" + (f": {error}" if str(error) else "")
    assert "raise error" in record.error
    assert record.step == 12
    assert set(numbers(record, "2", "output")) == {*range(4, 14)}  # the last pass, too
    with open_run(training.folder / "run") as run:
        assert run.status == "crashed"


def test_a_run_that_ends_well_leaves_none(training):
    with training.watch():
        training.run(3)
    assert training.records == []


def test_numbers_that_cannot_be_read_any_more_do_not_keep_the_others_from_being_written(training, monkeypatch):
    with training.watch(tick_every=5) as watched:
        training.run(7)

        def settle(engine):
            raise RuntimeError("CUDA error: device-side assert triggered")

        with monkeypatch.context() as patch:
            patch.setattr(flight_recorder.Engine, "settle", settle)
            watched.dump("why")
    (record,) = training.records
    told = "why; numbers since the last tick could not be read: RuntimeError: CUDA error: device-side assert triggered"
    assert record.reason == told
    assert set(numbers(record, "2", "output")) == {1, 2, 3, 4, 5}


def test_a_full_disk_is_told_once_and_training_goes_on(training, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(flight_recorder, "write_flight_record", full)
    with training.watch() as watched:
        training.run(2)
        with pytest.warns(MonitorchWarning, match="No space left"):
            assert watched.dump() is None
        assert watched.dump() is None
        watched.inspector.state.events.add(2, "too hot", "error")
        training.run(2)
    assert training.records == []


def test_a_full_disk_is_told_in_the_same_words_if_an_event_needs_it(training, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(flight_recorder, "write_flight_record", full)
    with training.watch() as watched, pytest.warns(MonitorchWarning, match="^writing a flight record failed.*No space"):
        watched.inspector.state.events.add(0, "too hot", "error")


def test_without_a_stored_run_there_is_nowhere_to_write(training):
    before = signal.getsignal(signal.SIGTERM)
    with monitorch.watch(training.model, training.optimizer, visualizer="dummy") as watched:
        training.run(2)
        assert watched.dump() is None
        assert signal.getsignal(signal.SIGTERM) is before


def test_a_closed_watch_writes_nothing_and_says_so(training):
    with training.watch() as watched:
        training.run(2)
    with pytest.warns(MonitorchWarning, match="closed"):
        assert watched.dump() is None


@pytest.mark.parametrize(
    "before", [signal.SIG_DFL, signal.SIG_IGN, lambda number, frame: None], ids=["default", "ignored", "own"]
)
def test_the_handler_of_the_user_is_back_after_the_run(training, before):
    found = signal.signal(signal.SIGTERM, before)
    try:
        with training.watch():
            assert signal.getsignal(signal.SIGTERM) is not before
        assert signal.getsignal(signal.SIGTERM) == before
        with training.watch():
            signal.signal(signal.SIGTERM, found)  # somebody else's
        assert signal.getsignal(signal.SIGTERM) is found
    finally:
        signal.signal(signal.SIGTERM, found)


def test_a_handler_that_is_not_pythons_stays(training, monkeypatch):
    """It could be neither called nor put back."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("there must be no handler of ours"))
    with training.watch():
        training.run(2)


def test_a_forked_child_that_is_asked_to_end_writes_nothing(run_program, training):
    program = """
        import os, signal, sys, time
        from pathlib import Path
        from tests.watching.test_flight_recorder import Training

        training = Training(Path(sys.argv[1]))
        with training.watch():
            training.run(2)
            here, there = os.pipe()
            child = os.fork()
            while not child:
                os.write(there, b".")
                time.sleep(0.01)  # Python looks for signals in between
            os.read(here, 1)  # it runs: a signal that comes while a process is being forked is lost
            os.kill(child, signal.SIGTERM)
            assert os.waitpid(child, 0) == (child, signal.SIGTERM)
    """
    done = run_program(textwrap.dedent(program), training.folder)
    assert (done.returncode, training.records) == (0, []), done.stderr


def test_a_program_that_holds_a_lock_when_it_is_asked_to_end_ends_all_the_same(training, monkeypatch):
    monkeypatch.setattr(flight_recorder, "PATIENCE", 0.1)
    found = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with training.watch() as watched:
            training.run(2)
            with watched.visualizer._opening:  # as if the signal came while a run is being made
                monkeypatch.setattr(flight_recorder.FlightRecorder, "dump", lambda *_: watched.visualizer._open(0))
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, found)


def test_a_closed_watch_writes_nothing_when_the_program_is_asked_to_end(tmp_path):
    asked = []
    found = signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    try:
        first, second = Training(tmp_path / "first"), Training(tmp_path / "second")
        with first.watch() as watched, second.watch():
            first.run(2)
            second.run(2)
            watched.close()  # its handler is the one that the second calls
            signal.raise_signal(signal.SIGTERM)
        assert (first.records, len(second.records), asked) == ([], 1, [1])
    finally:
        signal.signal(signal.SIGTERM, found)


@pytest.mark.parametrize("backward", [False, True], ids=["before backward", "after the step"])
def test_an_exception_because_of_the_loss_leaves_one_event_that_says_where_it_began(training, backward):
    def train():
        with training.watch(tick_every=100) as watched:
            training.run(12)
            loss = training.loss_fn(training.model(torch.full((5, 3), torch.nan)), torch.ones(5, 1))
            if backward:
                loss.backward()
                training.optimizer.step()
            told.append(watched)
            raise FloatingPointError("the loss is NaN")

    told = []
    with pytest.raises(FloatingPointError):
        train()
    lines = [event.line for event in told[0].events() if event.kind == "not finite"]
    assert len(lines) == 1
    assert "step 13: not finite: layer 0: the input of layer '0'" in lines[0]
    assert training.records[0].reason == lines[0]
    assert max(training.records[0].steps) == 13
    (event,) = [event for event in told[0].events() if "13.npz" in event.text]
    assert event.text == "the last steps are in flight_13.npz"


def test_a_watch_in_another_thread_leaves_signals_alone(training):
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with training.watch() as watched:
            training.run(2)
            seen.append((signal.getsignal(signal.SIGTERM), watched.dump()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, training.folder / "run" / "flight_2.npz")]


HANDLERS = {
    "none": ("", -signal.SIGTERM, ""),
    "one that goes on": ("signal.signal(signal.SIGTERM, lambda *_: print('mine'))", 0, "mine\nended\n"),
    "one that exits": ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))", 3, ""),
    "ignored": ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", 0, "ended\n"),
}


@pytest.mark.parametrize(("handler", "code", "printed"), HANDLERS.values(), ids=HANDLERS)
def test_a_program_that_is_asked_to_end_leaves_them_and_ends_as_it_would_without(
    training, run_program, handler, code, printed
):
    program = f"""
        import os, signal, sys
        from pathlib import Path
        from tests.watching.test_flight_recorder import Training

        {handler}
        training = Training(Path(sys.argv[1]))
        with training.watch():
            training.run(12)
            os.kill(os.getpid(), signal.SIGTERM)
            training.run(1)
        print("ended")
    """
    done = run_program(textwrap.dedent(program), training.folder)
    said = "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("monitorch:"))
    assert (done.returncode, said) == (code, printed), done.stderr
    record = training.records[0]
    assert record.reason == flight_recorder.ASKED_TO_END
    assert (record.step, len(record.losses["train_loss"][0])) == (12, 12)
    with open_run(training.folder / "run") as run:  # all that was shown before is in the run as well
        assert run.last_step >= 10
