"""Where gatherers find the taps they share, and how rows reach all preprocessors at once."""

from threading import Event, RLock, Thread

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import MonitorchWarning
from monitorch.engine.buffers import BASELINE, NO_GRAPH, Chunk, Info
from monitorch.engine.columns import FOLLOWS, SIZE, SQUARES, UNIT, WIDTH, Column
from monitorch.engine.kernels import reference
from monitorch.engine.meter import Request
from monitorch.gatherer import FeedForwardGatherer, OptimizerStepParameterGatherer, ParameterGradientGatherer
from monitorch.preprocessor import GradientActivation, GradientGeometry, OutputNorm, ParameterDifferenceGeometry
from monitorch.preprocessor.accumulating import AccumulatingPreprocessor


@pytest.fixture
def optimizer(linear):
    return torch.optim.SGD(linear.parameters(), lr=1.0)


def everything(linear, optimizer, state):
    """A gatherer of each kind."""
    updates = ParameterDifferenceGeometry(False, False, True)
    return [
        FeedForwardGatherer(linear, [OutputNorm(False, True, False, None)], "lin", state),
        ParameterGradientGatherer("weight", linear, [GradientGeometry(False, False, True)], "lin", state, follow=True),
        OptimizerStepParameterGatherer(linear, optimizer, "weight", [updates], "lin", state),
    ]


def test_a_module_and_an_optimizer_have_one_tap_each(linear, optimizer, measured):
    engine = measured.engine
    assert engine.output(linear, "lin") is engine.output(linear, "again")
    assert engine.output(linear, "lin") is not engine.output(nn.Linear(1, 1), "other")
    assert engine.updates(optimizer) is engine.updates(optimizer)


def test_hooks_nobody_needs_are_gone_after_a_refresh(linear, optimizer, measured, count_hooks):
    gatherers = everything(linear, optimizer, measured)
    things = (linear, linear.weight, optimizer)
    before = count_hooks(*things)
    measured.engine.refresh()
    assert count_hooks(*things) == before > 0
    for gatherer in gatherers:
        gatherer.detach()
    measured.engine.refresh()
    assert count_hooks(*things) == 0


def test_closing_removes_all_hooks_though_gatherers_stay(linear, optimizer, measured, count_hooks):
    everything(linear, optimizer, measured)
    measured.engine.close()
    assert count_hooks(linear, linear.weight, optimizer) == 0


@pytest.mark.parametrize("correlation", [True, False])
def test_says_whether_consecutive_tensors_are_compared(correlation, linear, optimizer, measured):
    everything(linear, optimizer, measured)
    geometry = GradientGeometry(correlation, False, True)
    ParameterGradientGatherer("bias", linear, [geometry], "lin", measured, follow=True)
    assert measured.engine.compares is correlation


def test_an_error_that_meters_have_together_is_told_once_and_ends_all_of_them(linear, measured, monkeypatch):
    preprocessors = [GradientGeometry(False, False, True), GradientActivation(True, True)]
    for name, preprocessor in zip(("weight", "bias"), preprocessors, strict=True):
        ParameterGradientGatherer(name, linear, [preprocessor], name, measured, follow=True)
    engine = measured.engine
    entries = [(meter, Info(meter.number, 0), torch.ones(2), False) for meter in engine.gradients.meters]

    def fail(entries):
        raise MemoryError("the device is full")

    monkeypatch.setattr(engine.buffers[torch.device("cpu")], "gradients", fail)
    with pytest.warns(MonitorchWarning, match="MemoryError: the device is full") as told:
        engine.measure_together("gradients", entries)
    assert len(told) == 1
    assert all(meter.failed for meter in engine.gradients.meters)


def test_tensors_without_numbers_are_not_measured(measured):
    measured.engine.measure_together("gradients", [(None, Info(0, 0), torch.ones(2, device="meta"), False)])
    assert measured.engine.take() == []


def test_gatherers_without_an_engine_hook_by_themselves(linear, state, count_hooks):
    norms = OutputNorm(False, True, False, None)
    gatherer = FeedForwardGatherer(linear, [norms], "lin", state)
    linear(torch.ones(1, 3))
    assert norms.value["lin"].count == 1
    gatherer.detach()
    assert count_hooks(linear) == 0


def test_one_preprocessor_may_watch_a_layer_under_two_names(linear, measured):
    norms = OutputNorm(False, False, False, None)
    first, _ = (FeedForwardGatherer(linear, [norms], name, measured) for name in ("a", "b"))
    length = linear(torch.ones(2, 3))[0].norm().item()
    assert norms.value["a"] == norms.value["b"] == pytest.approx([length])
    first.detach()
    linear(torch.ones(2, 3))
    assert (len(norms.value["a"]), len(norms.value["b"])) == (1, 2)


# from rows to preprocessors


class Shows(AccumulatingPreprocessor):
    """Shows a column of its rows as it is."""

    def __init__(self, column=SQUARES, request=None):
        super().__init__(inplace=False)
        self.column, self.wanted = column, request or Request(correlation="exact")

    def request(self):
        return self.wanted

    def derive(self, rows):
        return rows[self.column]


class Reports:
    """A gatherer that keeps what it is told."""

    def __init__(self, name):
        self.name, self.reports = name, []

    def report(self, error, data):
        self.reports.append((str(error), data.shape))


@pytest.fixture
def subscribe(measured):
    """Let a preprocessor get the rows of some layers; returns their gatherers."""
    meters = {}

    def each(preprocessor, *names, share=1.0):
        gatherers = [Reports(name) for name in names]
        for gatherer in gatherers:
            own = meters.setdefault(gatherer.name, [])
            measured.engine.subscribe(own, gatherer.name, gatherer, preprocessor, "output", share=share)
        return gatherers

    return each


def chunk(*infos, **columns):
    """Rows of ones with some other columns, which come from these places."""
    rows = np.zeros((len(infos), WIDTH))
    rows[:, [UNIT, FOLLOWS, SIZE, SQUARES]] = 1
    for column, numbers in columns.items():
        rows[:, Column[column]] = numbers
    return Chunk(np.array(infos, np.int64).reshape(-1, len(Info._fields)), rows, {})


@pytest.mark.parametrize(
    ("lineages", "follows"),
    [
        ([(1, 0), (1, 0), (1, 0)], [0, 1, 1]),
        ([(1, 0), (1, 1), (1, 1)], [0, 0, 1]),
        ([(1, 0), (2, 0), (1, 0), (1, 0)], [0, 0, 0, 1]),
        ([(NO_GRAPH, 0), (NO_GRAPH, 0)], [1, 1]),
        ([], None),
    ],
    ids=["one generation", "a gap", "another shape in between", "not in a graph", "nothing"],
)
@pytest.mark.parametrize("apart", [False, True], ids=["one chunk", "a chunk each"])
def test_graphs_compare_within_one_generation_and_gap(lineages, follows, apart, measured, subscribe):
    shown = Shows(FOLLOWS)
    subscribe(shown, "layer")
    infos = [Info(0, step, 3, generation=lineage[0], gaps=lineage[1]) for step, lineage in enumerate(lineages)]
    measured.engine.fold_chunks([chunk(info) for info in infos] if apart else [chunk(*infos)])
    assert shown.value.get("layer") == follows


def test_each_meter_has_its_own_lineage(measured, subscribe):
    shown = Shows(FOLLOWS)
    subscribe(shown, "first", "second")
    infos = [Info(meter, step, 3, generation=1 + meter) for step in range(2) for meter in range(2)]
    measured.engine.fold_chunks([chunk(*infos)])
    assert shown.value == {"first": [0, 1], "second": [0, 1]}


def test_a_graph_that_has_not_run_gives_no_row_and_breaks_no_lineage(measured, subscribe):
    shown = Shows(FOLLOWS)
    subscribe(shown, "layer")
    measured.engine.meters[0].lineage = (1, 0)
    infos = [Info(0, 0, 3, generation=generation) for generation in (1, 2, 1)]
    measured.engine.fold_chunks([chunk(*infos, UNIT=[1, 0, 1])])
    assert shown.value["layer"] == [1, 1]


def test_each_gets_the_rows_of_its_passes_and_shows_none_that_are_only_compared_with(measured, subscribe):
    training, everywhere = Shows(request=Request(passes=frozenset({3}))), Shows()
    subscribe(training, "layer")
    subscribe(everywhere, "layer")
    infos = [Info(0, step, tag) for step, tag in enumerate([3, 0, 3 | BASELINE, 2])]
    measured.engine.fold_chunks([chunk(*infos, SQUARES=[1, 2, 3, 4])])
    assert (training.value["layer"], everywhere.value["layer"]) == ([1], [1, 2, 4])


def test_lengths_are_multiplied_by_the_share_of_the_loss_once(measured, subscribe):
    both = [Shows(UNIT), Shows(UNIT)]
    for shown in both:
        subscribe(shown, "layer", share=2.0)
        subscribe(shown, "other")
    measured.engine.fold_chunks([chunk(Info(0, 0), Info(1, 0), Info(0, 1), UNIT=[1, 3, 5])])
    assert [shown.value for shown in both] == [{"layer": [2, 10], "other": [3]}] * 2


def test_rows_kept_for_other_processes_are_folded_when_those_have_left(measured, subscribe):
    shown = Shows()
    subscribe(shown, "layer")
    row = reference.geometry(torch.ones(4), None, None).numpy()[None]
    measured.engine.ranks.keep(np.array([Info(0, 0)]), row, {})
    assert shown.value == {"layer": [4.0]}


def test_rows_with_elements_that_are_not_finite_give_no_finite_sample(measured, subscribe):
    shown = Shows()
    subscribe(shown, "layer")
    measured.engine.fold_chunks(
        [chunk(Info(0, 0), Info(0, 1), Info(0, 2), SQUARES=[1, 2, np.inf], NONFINITE=[0, 3, 1])]
    )
    assert shown.value["layer"] == pytest.approx([1, np.nan, np.inf], nan_ok=True)


# errors of preprocessors


class Fragile(Shows):
    """Fails on negative numbers; a row has two statistics, which must not come apart."""

    statistics = ("number", "twice")

    def derive(self, rows):
        if (rows[SQUARES] < 0).any():
            raise ValueError("a negative square")
        return rows[SQUARES], 2 * rows[SQUARES]


class Lopsided(Fragile):
    """Finds out late that something is wrong: the second statistic has too few samples."""

    def derive(self, rows):
        return rows[SQUARES], 2 * rows[SQUARES][rows[SQUARES] >= 0]


class Taking(Shows):
    """Written for the rows of one layer."""

    statistics = ("number", "twice")

    def take(self, name, rows, is_baseline):
        if (rows[:, SQUARES] < 0).any():
            raise ValueError("a negative square")
        for square in rows[:, SQUARES]:
            self._record(name, square, 2 * square)


@pytest.mark.parametrize("kind", [Fragile, Lopsided, Taking])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_layer_that_fails_does_not_silence_the_others(kind, place, measured, subscribe):
    fragile, healthy = kind(), Shows()
    gatherers = subscribe(fragile, "a", "b", "c")
    subscribe(healthy, "a", "b", "c")
    squares = np.arange(1.0, 7)
    squares[[place, place + 3]] *= -1
    infos = [Info(meter, step) for step in range(2) for meter in range(3)]
    measured.engine.fold_chunks([chunk(*infos, SQUARES=squares)])
    names = [name for index, name in enumerate("abc") if index != place]
    expected = {name: ([n, n + 3], [2 * n, 2 * n + 6]) for n, name in enumerate("abc", 1) if name in names}
    assert fragile.value == expected
    assert [len(gatherer.reports) for gatherer in gatherers] == [index == place for index in range(3)]
    assert gatherers[place].reports[0][1] == (2, WIDTH)
    assert len(healthy.value) == 3


def test_a_layer_that_fails_again_is_told_once_and_recorded_no_more_than_its_rows(linear, measured):
    class Broken(OutputNorm):
        def derive(self, rows):
            if "bad" in [rows.names[place] for place in rows.places]:
                raise ValueError("not this one")
            return super().derive(rows)

    norms, other = Broken(False, False, False, None), nn.Linear(3, 2)
    for layer, name in ((linear, "bad"), (other, "good")):
        FeedForwardGatherer(layer, [norms], name, measured)
    for step in range(3):
        linear(torch.ones(1, 3))
        other(torch.ones(1, 3))
        if step == 0:
            with pytest.warns(
                MonitorchWarning, match="Broken stops watching layer 'bad': ValueError: not this one"
            ) as told:
                measured.engine.settle()
            assert len(told) == 1
    assert list(norms.value) == ["good"]  # a second warning would be an error here
    assert len(norms.value["good"]) == 3


@pytest.mark.parametrize("samples", [(), (1,), (1, 2, 3)])
def test_samples_of_other_statistics_than_the_named_ones_are_refused(samples, measured, subscribe):
    class Wrong(Fragile):
        def derive(self, rows):
            return tuple(number * rows[SQUARES] for number in samples)

    wrong = Wrong()
    gatherers = subscribe(wrong, "a", "b")
    measured.engine.fold_chunks([chunk(Info(0, 0), Info(1, 0))])
    assert not wrong.value
    text = f"derive() has returned samples of {len(samples)} statistics, not 2"
    assert [gatherer.reports for gatherer in gatherers] == [[(text, (1, WIDTH))]] * 2


# threads


class WatchedLock:
    """A lock that says when somebody has to wait for it."""

    def __init__(self, when_waiting):
        self._lock, self._when_waiting = RLock(), when_waiting

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            self._when_waiting()
            self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


@pytest.mark.parametrize("reading", ["value", "mean"])
def test_whoever_reads_waits_for_rows_that_another_thread_folds(reading, measured, subscribe, monkeypatch):
    is_folding, may_go_on, reader_moved = Event(), Event(), Event()

    class Slow(Shows):
        def derive(self, rows):
            is_folding.set()
            assert may_go_on.wait(60)
            return super().derive(rows)

    slow, found = Slow(), []
    slow.inplace = True
    slow.reset()
    subscribe(slow, "layer")
    may_go_on.set()
    measured.engine.fold_chunks([chunk(Info(0, 0), SQUARES=[1])])
    accumulator = slow.value["layer"]
    may_go_on.clear()
    is_folding.clear()
    monkeypatch.setattr(measured.engine, "_lock", WatchedLock(reader_moved.set))

    def read():
        found.append((slow.value["layer"] if reading == "value" else accumulator).mean)
        reader_moved.set()  # if it had not to wait

    folding = Thread(target=measured.engine.fold_chunks, args=([chunk(Info(0, 1), SQUARES=[5])],))
    reader = Thread(target=read)
    folding.start()
    assert is_folding.wait(60)
    reader.start()
    assert reader_moved.wait(60)
    may_go_on.set()
    for thread in (folding, reader):
        thread.join(60)
    assert found == [3.0]


def test_rows_are_folded_once_however_many_threads_read(measured, linear):
    norms = OutputNorm(False, False, False, None)
    FeedForwardGatherer(linear, [norms], "lin", measured)
    for _ in range(20):
        linear(torch.ones(1, 3))
    readers = [Thread(target=lambda: norms.value) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert len(norms.value["lin"]) == 20
