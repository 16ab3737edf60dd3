"""What lenses show comes back from the store, number by number."""

import math
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector, lens
from monitorch.errors import MonitorchWarning, OptionError, StoreError
from monitorch.statistic import Statistic
from monitorch.store import WHOLE_RUN, Event, Layer, list_runs, open_run
from monitorch.visualizer import Record, StoreVisualizer, TagAttributes, TagType
from monitorch.visualizer.frame import Moment, TagFrame
from monitorch.visualizer.record_sink import RecordSink

NORM = TagAttributes(logy=True, big_plot=False, annotate=True, type=TagType.NUMERICAL, ylim=(1.0, -1.0))
SHARES = TagAttributes(logy=False, big_plot=True, annotate=False, type=TagType.RELATIONS)


class Both(RecordSink):
    """Keeps all records, and passes everything on."""

    def __init__(self, target):
        self.target, self.kept = target, []

    def register_tags(self, main_tag, tag_attr):
        super().register_tags(main_tag, tag_attr)
        self.target.register_tags(main_tag, tag_attr)

    def introduce_layers(self, layers):
        self.target.introduce_layers(layers)

    def write(self, records):
        self.kept += records
        self.target.write(records)

    def flush(self):
        self.target.flush()


def place_of(record, tags):
    """Where the store keeps a record: lens, statistic, layer."""
    if tags[record.tag].type is TagType.RELATIONS:
        return record.lens, f"{record.tag}/share", record.statistic
    if tags[record.tag].big_plot:
        return WHOLE_RUN, f"{record.tag}/{record.statistic}", WHOLE_RUN
    return record.lens, f"{record.tag}/{record.statistic}", record.layer


def every_lens(optimizer, loss_fn):
    special = {
        "AbstractLens": None,
        "Attribute": lambda: lens.Attribute("0.weight"),
        "BatchNormStatistics": None,
        "LossMetrics": lambda: lens.LossMetrics(loss_fn=loss_fn, metrics="score"),
        "ParameterUpdateGeometry": lambda: lens.ParameterUpdateGeometry(optimizer),
        "ParameterFacts": lambda: lens.ParameterFacts(optimizer),
        "Routing": lambda: lens.Routing("2", top_k=1),
        "SignalToNoise": lambda: lens.SignalToNoise(optimizer),
        "UpdateRatio": lambda: lens.UpdateRatio(optimizer),
        "TargetStatistics": lambda: lens.TargetStatistics(loss_fn),
    }
    makers = (special.get(name, getattr(lens, name)) for name in lens.__all__)
    return [make() for make in makers if make is not None]


@pytest.fixture
def trained(tmp_path):
    """A run with all lenses, five epochs, and the records that they made."""
    model, loss_fn = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    both = Both(StoreVisualizer(tmp_path, "all", config={"lr": 0.1}))
    inspector = PyTorchInspector(
        every_lens(optimizer, loss_fn), module=model, visualizer=both, optimizer=optimizer, on_error="raise"
    )
    for epoch in inspector.range(5):
        for batch in torch.randn(3, 6, 4) * (math.nan if epoch == 3 else 1):
            optimizer.zero_grad()
            loss_fn(model(batch), torch.ones(6, 2)).backward()
            optimizer.step()
        inspector.push_metric("score", float(epoch))
    both.target.close()
    with open_run(tmp_path / "all") as run:
        yield run, both


def test_every_number_of_every_lens_comes_back_as_float32(trained):
    run, both = trained
    # there is no attention, no running statistic, no micro-batch, and no Adam
    silent = {"AbstractLens", "Attention", "BatchNormStatistics", "SignalToNoise"}
    named = {"Distribution": "Distribution of outputs"}
    assert {record.lens for record in both.kept} >= {named.get(name, name) for name in {*lens.__all__} - silent}
    expected = {}
    for record in both.kept:
        expected.setdefault(place_of(record, both.tags), []).append(record)
    for place, records in expected.items():
        axis, values = run.series(*place)
        assert np.array_equal(values, np.float32([record.value for record in records]), equal_nan=True)
        assert axis.step.tolist() == [record.step for record in records]
        assert axis.epoch.tolist() == [record.epoch for record in records]
        assert axis.time.tolist() == [record.time for record in records]
    assert any(math.isnan(record.value) for record in both.kept)


def test_nothing_else_is_in_the_store_than_numbers_and_counts_of_what_is_not_finite(trained):
    run, both = trained
    expected = {place_of(record, both.tags)[:2] for record in both.kept}
    found = {(name, statistic.name) for name, one in run.lenses.items() for statistic in one.statistics}
    assert expected <= found
    assert all(statistic.endswith(("/nonfinite", " nonfinite")) for _, statistic in found - expected)


def test_counts_of_nonfinite_samples_come_back(trained):
    run, both = trained
    records = [record for record in both.kept if (record.tag, record.layer) == ("Output Norm", "1")]
    counts = {record.epoch: record.nonfinite for record in records}
    assert max(counts.values()) > 0
    axis, values = run.series("OutputNorm", "Output Norm/nonfinite", "1")
    assert dict(zip(axis.epoch.tolist(), values.tolist(), strict=True)) == counts


def test_each_logged_name_has_a_count_of_its_own(tmp_path):
    model = nn.Linear(2, 1)
    store = StoreVisualizer(tmp_path, "a")
    inspector = PyTorchInspector([lens.LossMetrics(metrics=["one", "two"])], module=model, visualizer=store)
    for epoch in range(3):
        for sample in range(9):
            inspector.push_metric("one", math.nan if sample < 3 else 1.0)
            inspector.push_metric("two", math.inf if sample < epoch else 1.0)
        inspector.tick_epoch()
    store.close()
    with open_run(tmp_path / "a") as run:
        assert run.series(WHOLE_RUN, "Metrics/one nonfinite", WHOLE_RUN).values.tolist() == [3, 3, 3]
        assert run.series(WHOLE_RUN, "Metrics/two nonfinite", WHOLE_RUN).values.tolist() == [0, 1, 2]
        for name, total in (("one", 9), ("two", 3)):
            window = run.window(WHOLE_RUN, f"Metrics/{name} mean", resolution=1)
            assert window.nonfinite.tolist() == [[total]]
        told = {event.statistic: event.step for event in run.events()}
    assert set(told) == {"Metrics/one", "Metrics/two"}


@pytest.mark.parametrize("broken", ["mean", "max", "min"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1e39])
def test_number_that_cannot_be_stored_as_it_is_counts_as_one_sample(tmp_path, value, broken):
    with StoreVisualizer(tmp_path, "a") as store:
        lines = {**dict.fromkeys(("mean", "max", "min"), 1.0), broken: value}
        store.write([*(record(1, line, statistic=name) for name, line in lines.items()), record(1, 0.5, "head")])
        store.write([record(2, value, nonfinite=7), record(2, value, statistic="max", nonfinite=7)])
    with open_run(tmp_path / "a") as run:
        assert run.series("L", "Norm/nonfinite", "fc").values.tolist() == [1, 7]
        assert run.series("L", "Norm/nonfinite", "head").values.tolist() == [0]
        (event,) = run.events()
        assert (event.kind, event.layer, event.statistic, event.step) == ("not finite", "fc", "Norm", 1)


def test_model_as_a_whole_is_one_lens_with_one_layer(trained):
    run, _ = trained
    whole = run.lenses[WHOLE_RUN]
    assert whole.layers == (WHOLE_RUN,)
    names = {statistic.name for statistic in whole.statistics}
    assert {"Loss/train_loss mean", "Metrics/score mean", "Logged/learning rate mean"} <= names
    assert run.series(WHOLE_RUN, "Metrics/score mean", WHOLE_RUN).values.tolist() == [0, 1, 2, 3, 4]
    assert run.series(WHOLE_RUN, "Logged/learning rate mean", WHOLE_RUN).values == pytest.approx([0.1] * 5)


def test_run_knows_its_layers_in_the_order_of_the_model_and_its_facts(trained):
    run, _ = trained
    names = [layer.name for layer in run.layers]
    assert names[:3] == ["0", "1", "2"]
    assert sorted(names[3:]) == ["0.bias", "0.weight", "2.bias", "2.weight", "input", "output", "target"]
    assert (run.name, run.status, run.last_step) == ("all", "finished", 15)
    assert run.meta["config"] == {"lr": 0.1}
    assert {"torch", "numpy", "python", "monitorch"} <= set(run.meta["versions"])


# --- names, files, resuming ---


def record(step, value=1.0, layer="fc", tag="Norm", statistic="mean", lens="L", nonfinite=0):
    return Record(step, step, float(step), 0, lens, layer, tag, statistic, value, nonfinite)


def test_by_name_a_run_lands_in_the_default_folder_under_its_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(2, 1)
    for _ in range(2):
        inspector = PyTorchInspector([lens.ParameterNorm()], module=model, visualizer="store")
        assert inspector.visualizer.path is None
        inspector.tick_epoch()
        inspector.visualizer.close()
        inspector.visualizer.close()
    names = {info.name for info in list_runs()}
    assert len(names) == 2
    assert all(name.startswith("20") for name in names)


def test_nothing_is_made_before_the_first_number(tmp_path):
    with StoreVisualizer(tmp_path / "runs", "a") as store:
        store.register_tags("Norm", NORM)
        store.introduce_layers(["fc"])
        store.flush()
    assert not (tmp_path / "runs").exists()


def test_four_methods_for_lenses_of_ones_own_end_in_the_store_too(tmp_path):
    with StoreVisualizer(tmp_path, "a") as store:
        store.register_tags("Norm", NORM)
        store.register_tags("Parts", SHARES)
        store.count_nonfinite(3, "Norm", {"fc": 2})
        store.plot_numerical_values(3, "Norm", {"fc": {"mean": 2.0}}, {"fc": {("min", "max"): (1.0, math.inf)}})
        store.plot_probabilities(3, "Rate", {"Rate": {"worst": 0.5}})
        store.plot_relations(3, "Parts", {"Parts": {"fc": 0.25, "head": 0.75}})
    with open_run(tmp_path / "a") as run:
        newest = run.newest()
        assert newest["Norm"].statistics == ("Norm/mean", "Norm/min", "Norm/max", "Norm/nonfinite")
        assert newest["Norm"].values.tolist() == [[2.0], [1.0], [math.inf], [2.0]]
        assert (newest["Parts"].layers, newest["Parts"].values.tolist()) == (("fc", "head"), [[0.25, 0.75]])
        assert run.series(WHOLE_RUN, "Rate/worst", WHOLE_RUN).values.tolist() == [0.5]
        looks = {name: (known.statistics[0].scale, known.statistics[0].limits) for name, known in run.lenses.items()}
        assert (looks["Norm"], looks["Parts"]) == (("log", (-1.0, 1.0)), ("linear", (0.0, 1.0)))
        roles = [(known.role, known.band, known.side) for known in run.lenses["Norm"].statistics]
        assert roles == [("line", "", ""), ("edge", "min-max", "low"), ("edge", "min-max", "high"), ("count", "", "")]
        assert [known.role for known in run.lenses["Parts"].statistics] == ["share"]


def test_next_tick_completes_the_one_before(tmp_path):
    with StoreVisualizer(tmp_path, "a") as store:
        store.write([record(1, 1.0), record(1, 2.0, "head"), record(2, 3.0)])
        store.write([record(3, 4.0, "late")])
    with open_run(tmp_path / "a") as run:
        assert run.series("L", "Norm/mean", "fc").values.tolist() == [1.0, 3.0]
        assert run.series("L", "Norm/mean", "late").axis.step.tolist() == [3]
        assert run.frame_at(1)["L"].layers == ("fc", "head", "late")


@pytest.mark.parametrize(
    ("resume_step", "steps", "values"),
    [(None, [1, 2, 3, 4, 5], [1, 2, 3, 10, 20]), (2, [1, 2, 3, 4], [1, 2, 10, 20])],
    ids=["after the newest", "from a checkpoint"],
)
def test_resumed_run_goes_on_counting(tmp_path, resume_step, steps, values):
    with StoreVisualizer(tmp_path, "a") as store:
        store.write([record(step, float(step)) for step in (1, 2, 3)])
    with StoreVisualizer(tmp_path, "a", resume=True, resume_step=resume_step) as store:
        store.write([record(step, 10.0 * step) for step in (1, 2)])
    with open_run(tmp_path / "a") as run:
        axis, found = run.series("L", "Norm/mean", "fc")
        assert (axis.step.tolist(), found.tolist()) == (steps, values)


def test_run_that_is_there_is_an_error_before_training_begins(tmp_path):
    with StoreVisualizer(tmp_path, "a") as store:
        store.write([record(1)])
    with pytest.raises(StoreError, match=r"there is a run in .*a already: choose another name, or resume=True"):
        StoreVisualizer(tmp_path, "a")


def test_run_that_another_process_made_first_does_not_end_the_training(tmp_path):
    first, second = StoreVisualizer(tmp_path, "a"), StoreVisualizer(tmp_path, "a")
    first.write([record(1, 1.0)])
    with pytest.warns(MonitorchWarning, match="there is a run in .*stored as 'a_2'"):
        second.write([record(1, 2.0)])
    first.close()
    second.close()
    for name, value in (("a", 1.0), ("a_2", 2.0)):
        with open_run(tmp_path / name) as run:
            assert run.series("L", "Norm/mean", "fc").values.tolist() == [value]


def test_opening_tells_whether_it_works(tmp_path):
    with StoreVisualizer(tmp_path, "a") as store:
        assert (store.path, store.name) == (None, "a")
        assert store.open()
        assert store.open()
        assert (store.path, store.name) == (tmp_path / "a", "a")
        assert [(info.name, info.status) for info in list_runs(tmp_path)] == [("a", "running")]
    (tmp_path / "file").touch()
    with StoreVisualizer(tmp_path / "file", "b") as store:
        with pytest.warns(MonitorchWarning, match="cannot be stored") as told:
            assert not store.open()
        assert (len(told), store.open(), store.path, store.name) == (1, False, None, "b")
        store.write([record(1)])


def test_closed_visualizer_opens_nothing(tmp_path):
    store = StoreVisualizer(tmp_path, "a")
    store.close()
    assert not store.open()
    assert list(tmp_path.iterdir()) == []


def test_name_that_is_taken_gets_a_number_where_that_is_wanted(tmp_path):
    (tmp_path / "a").mkdir()
    for _ in range(2):
        with StoreVisualizer(tmp_path, "a", numbered=True) as store:
            store.write([record(1)])
    assert sorted(info.name for info in list_runs(tmp_path)) == ["a_2", "a_3"]


def test_run_that_is_open_already_goes_on_from_a_checkpoint(tmp_path):
    with StoreVisualizer(tmp_path, "a") as store:
        store.write([record(step, float(step)) for step in (1, 2, 3)])
    with StoreVisualizer(tmp_path, "a", resume=True) as store:
        assert store.open()
        store.continue_from(2)
        store.write([record(step, 10.0 * step) for step in (3, 4)])
    with open_run(tmp_path / "a") as run:
        axis, found = run.series("L", "Norm/mean", "fc")
        assert (axis.step.tolist(), found.tolist()) == ([1, 2, 3, 4], [1.0, 2.0, 30.0, 40.0])


def test_run_that_cannot_be_resumed_does_not_go_on_in_another_old_one(tmp_path):
    for name in ("a", "a_2"):
        with StoreVisualizer(tmp_path, name) as store:
            store.write([record(1, 1.0)])
    first = StoreVisualizer(tmp_path, "a", resume=True)
    assert first.open()
    second = StoreVisualizer(tmp_path, "a", resume=True, resume_step=1)
    with pytest.warns(MonitorchWarning, match="is being written by the process .*This run is stored as 'a_3'"):
        assert second.open()
    for store in (first, second):
        store.close()
    assert sorted(info.name for info in list_runs(tmp_path)) == ["a", "a_2", "a_3"]


def test_layers_can_be_described(tmp_path):
    with StoreVisualizer(tmp_path, "a") as store:
        store.describe_layers([Layer("stem", "Linear", 12), Layer("fc", "Linear", 6)])
        store.write([record(1), record(1, layer="stem")])
    with open_run(tmp_path / "a") as run:
        assert run.layers == (Layer("stem", "Linear", 12), Layer("fc", "Linear", 6))


def test_error_in_the_block_makes_it_a_crashed_run(tmp_path):
    def train():
        with StoreVisualizer(tmp_path, "a") as store:
            store.write([record(1)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    with open_run(tmp_path / "a") as run:
        assert (run.status, run.last_step, run.error.type) == ("crashed", 1, "ZeroDivisionError")


def test_error_that_ended_the_training_is_kept(tmp_path):
    store = StoreVisualizer(tmp_path, "a")
    store.write([record(1)])
    store.close("crashed", error=RuntimeError("CUDA out of memory"))
    with open_run(tmp_path / "a") as run:
        assert (run.status, run.error.line) == ("crashed", "RuntimeError: CUDA out of memory")


def test_closed_visualizer_takes_no_numbers_and_says_so_once(tmp_path):
    store = StoreVisualizer(tmp_path, "a")
    store.close()
    with pytest.warns(MonitorchWarning, match="closed and takes no more numbers") as caught:
        _ = [store.write([record(step)]) for step in (1, 2)]
    assert len(caught) == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("value", [None, "text", [1.0]])
def test_lens_that_shows_no_number_does_not_end_the_training(tmp_path, value):
    with StoreVisualizer(tmp_path, "a") as store:
        with pytest.warns(MonitorchWarning, match="cannot be stored: TypeError") as caught:
            _ = [store.plot_numerical_values(step, "Norm", {"fc": {"mean": value}}) for step in (1, 2)]
        assert len(caught) == 1
        store.write([record(3, 3.0)])
    with open_run(tmp_path / "a") as run:
        assert run.series("L", "Norm/mean", "fc").values.tolist() == [3.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a/b"}, "a run cannot be called 'a/b': its name is that of a folder, without slashes"),
        ({"name": ".."}, "a run cannot be called '..': its name is that of a folder"),
        ({"name": "lr=0.1," * 40}, "the name of a folder has at most 240 bytes"),
        ({"resume": True}, "resume=True needs the name of the run"),
        ({"name": "a", "resume_step": 3}, "resume_step=3 needs resume=True"),
        ({"max_size": 10}, "max_size=10 must be a number of bytes, at least 1048576"),
        ({"config": {"model": object}}, "meta must be JSON data"),
    ],
)
def test_wrong_options_are_refused_at_once(tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        StoreVisualizer(tmp_path, **options)


# --- arrays straight into the store ---


def many_frames(step):
    """Frames of all kinds: with bands, non-finite numbers, curves, rates that only some layers have, shares."""
    generator = np.random.default_rng(step)
    numbers = generator.normal(size=(3, 4))
    numbers[0, 1], numbers[:, 2] = 1e39, math.nan
    counts = np.broadcast_to(np.array([0, 0, 5, step]), (3, 4))
    layers = ("stem", "fc", "head", "late") if step > 1 else ("stem", "fc", "head")
    numbers, counts = numbers[:, : len(layers)], counts[:, : len(layers)]
    norm = [Statistic.of("Norm", "mean", scale="log"), Statistic.of("Norm", "max", scale="log")]
    norm += [Statistic.of("Norm", "max", role="edge", band="min-max", side="high", scale="log")]
    yield TagFrame("Norm", TagType.NUMERICAL, layers, tuple(norm), numbers, counts, banded=True)
    rates = tuple(Statistic.of("Rates", name, limits=(0.0, 1.0)) for name in ("activation_rate", "rows_used"))
    there = np.array([[True, True], [False, True]])
    yield TagFrame("Rates", TagType.PROBABILITY, ("fc", "table"), rates, generator.random((2, 2)), None, there)
    share = (Statistic.of("Parts", "share", role="share", limits=(0.0, 1.0)),)
    yield TagFrame("Parts", TagType.RELATIONS, ("fc", "head"), share, np.array([[0.25, 0.75]]))
    losses = tuple(Statistic.of("Loss", "mean", curve) for curve in ("train_loss", "val_loss"))
    values, counts = np.array([[1.0], [math.nan]]), np.array([[0], [3]])
    yield TagFrame("Loss", TagType.NUMERICAL, ("Loss",), losses, values, counts, banded=True)


def content_of(folder):
    with open_run(folder) as run:
        frames = [run.frame_at(step) for step in range(1, 5)]
        stored = [
            (lens, one.step, one.statistics, one.layers, one.values.view(np.uint32).tolist())
            for frame in frames
            for lens, one in frame.items()
        ]
        events = [(one.step, one.layer, one.statistic, one.body) for one in run.events()]
        return {name: one.statistics for name, one in run.lenses.items()}, stored, events


def test_arrays_are_stored_as_their_records_are(tmp_path):
    attributes = {"Norm": TagAttributes(True, False, True, TagType.NUMERICAL)}
    attributes["Rates"] = TagAttributes(False, False, True, TagType.PROBABILITY)
    attributes |= {"Parts": SHARES, "Loss": TagAttributes(False, True, True, TagType.NUMERICAL)}
    with StoreVisualizer(tmp_path, "arrays") as arrays, StoreVisualizer(tmp_path, "records") as records:
        for step in range(1, 5):
            moment, frames = Moment(step, step, float(step), 0, "Lens"), list(many_frames(step))
            for store in (arrays, records):
                for tag, look in attributes.items():
                    store.register_tags(tag, look)
            arrays.write_frames(moment, frames)
            records.write([record for frame in frames for record in frame.records(moment)])
    lenses, stored, events = content_of(tmp_path / "arrays")
    assert (lenses, stored, events) == content_of(tmp_path / "records")
    assert {known.role for known in lenses["Lens"]} == {"line", "edge", "share", "count"}
    assert [event[1:3] for event in events] == [
        ("fc", "Norm"),
        ("head", "Norm"),
        (WHOLE_RUN, "Loss/val_loss"),
        ("late", "Norm"),
    ]


def test_arrays_come_from_any_thread(tmp_path):
    def tick(step):
        store.write_frames(Moment(step, step, float(step), 0, "Lens"), list(many_frames(step)))
        store.flush()

    store = StoreVisualizer(tmp_path, "a")
    for step in (1, 2, 3):
        thread = threading.Thread(target=tick, args=[step])
        thread.start()
        thread.join()
    store.close()
    with open_run(tmp_path / "a") as run:
        assert run.series("Lens", "Norm/mean", "stem").axis.step.tolist() == [1, 2, 3]


def test_warning_in_another_thread_is_harmless(tmp_path):
    broken = TagFrame("Norm", TagType.NUMERICAL, ("fc",), (Statistic.of("Norm", "mean"),), np.zeros((2, 2)))
    store = StoreVisualizer(tmp_path, "a")
    failures = []

    def tick(frame, step):
        try:
            store.write_frames(Moment(step, step, 0.0, 0, "Lens"), [frame])
            store.flush()
        except BaseException as error:
            failures.append(error)

    def tick_apart():
        thread = threading.Thread(target=tick, args=[broken, 1])
        thread.start()
        thread.join()

    with pytest.warns(MonitorchWarning, match="Lens cannot be stored"):
        tick_apart()
    tick(next(many_frames(2)), 2)
    store.close()
    assert failures == []
    with open_run(tmp_path / "a") as run:
        assert run.series("Lens", "Norm/mean", "stem").axis.step.tolist() == [2]


def calls_for(store, layers):
    """How many Python functions a tick takes, once the names are known."""
    statistics = tuple(Statistic.of("Norm", name) for name in ("mean", "min", "max"))
    calls = []
    for step in (1, 2):
        frame = TagFrame("Norm", TagType.NUMERICAL, layers, statistics, np.full((3, len(layers)), 1.0 + step))
        calls.clear()
        sys.setprofile(lambda _, event, __: calls.append(event))
        try:
            store.write_frames(Moment(step, step, 0.0, 0, "Lens"), [frame])
            store.flush()
        finally:
            sys.setprofile(None)
    return calls.count("call")


def test_work_of_a_tick_does_not_grow_with_the_layers(tmp_path):
    counts = []
    for number in (10, 1000):
        with StoreVisualizer(tmp_path, str(number)) as store:
            counts.append(calls_for(store, tuple(f"layer{i}" for i in range(number))))
    assert counts[1] <= counts[0] + 5  # the queue of the writer may have to wait for its thread


def test_statistics_that_turn_out_to_be_estimates_say_so_in_the_store(tmp_path):
    with StoreVisualizer(tmp_path, "a") as store:
        for step, error in enumerate((None, 0.02, 0.02), 1):
            store.write([record(step)._replace(error=error)])
    with open_run(tmp_path / "a") as run:
        stored = {known.name: known.error for known in run.lenses["L"].statistics}
        axis, _ = run.series("L", "Norm/mean", "fc")
    assert stored["Norm/mean"] == 0.02
    assert axis.step.tolist() == [1, 2, 3]


# --- events ---


def test_histograms_come_back_each_kind_in_a_group_of_its_own(tmp_path):
    model, batches = nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.randn(3, 50, 4)
    with StoreVisualizer(tmp_path, "a") as store:
        lenses = [lens.Distribution(what) for what in ("output", "gradient", "parameter")]
        inspector = PyTorchInspector(lenses, module=model, visualizer=store, on_error="raise")
        wanted = []
        for batch in batches:
            model.zero_grad()
            output = model(batch)
            output.sum().backward()
            inspector.tick_epoch()
            seen = {"1": output, "0.weight": model[0].weight.grad}
            wanted.append({name: tensor.detach().double().numpy() for name, tensor in seen.items()})
    with open_run(tmp_path / "a") as run:
        groups = {name: (one.layers, one.histograms) for name, one in run.lenses.items() if "Distribution" in name}
        parameters = ("0.weight", "0.bias")
        assert groups == {
            "Distribution of outputs": (("0", "1"), ("Output Distribution",)),
            "Distribution of gradients": (parameters, ("Gradient Distribution",)),
            "Distribution of parameters": (parameters, ("Parameter Distribution",)),
        }
        for step, numbers in enumerate(wanted, start=1):
            for what, layer in (("output", "1"), ("gradient", "0.weight")):
                place = f"Distribution of {what}s", f"{what.title()} Distribution", step, [layer]
                found = run.histograms(*place)
                assert (found.step, found.layers) == (step, (layer,))
                np.testing.assert_array_equal(found.counts[0], np.histogram(numbers[layer], found.edges)[0])


@pytest.mark.parametrize(
    ("ticks", "unit"),
    [("eee", "epoch"), ("t", "tick"), ("ttt", "tick"), ("eet", "tick"), ("tee", "tick"), ("", None)],
)
def test_a_run_knows_whether_its_ticks_are_epochs(tmp_path, ticks, unit):
    model = nn.Linear(2, 1)
    with StoreVisualizer(tmp_path, "a") as store:
        store.open()
        inspector = PyTorchInspector([lens.ParameterNorm()], module=model, visualizer=store)
        for kind in ticks:
            model(torch.ones(3, 2)).sum().backward()
            (inspector.tick_epoch if kind == "e" else inspector.tick)()
    with open_run(tmp_path / "a") as run:
        assert run.meta.get("tick_unit") == unit


def test_an_event_is_stored_before_and_between_numbers(tmp_path):
    with StoreVisualizer(tmp_path, "a") as store:
        store.show_event(Event(1, "early", "warning", 2, 3.5, "fc", "Norm", {"text": "why", "numbers": {"x": 1.5}}))
        store.write([record(2)])
        store.show_event(Event(3, "late"))
    with open_run(tmp_path / "a") as run:
        early, late = run.events()
        assert early._replace(id=0) == Event(
            1, "early", "warning", 2, 3.5, "fc", "Norm", {"text": "why", "numbers": {"x": 1.5}}
        )
        assert (early.text, early.numbers, late.step) == ("why", {"x": 1.5}, 3)


def test_a_run_may_have_events_and_no_numbers(tmp_path):
    with StoreVisualizer(tmp_path, "a") as store:
        store.show_event(Event(1, "alone"))
    with open_run(tmp_path / "a") as run:
        assert [event.kind for event in run.events()] == ["alone"]


def test_events_of_a_run_that_goes_on_count_from_its_last_step(tmp_path):
    with StoreVisualizer(tmp_path, "a") as store:
        store.write([record(7)])
    with StoreVisualizer(tmp_path, "a", resume=True) as store:
        store.show_event(Event(2, "second part"))
        store.write([record(2, math.nan)])
    with open_run(tmp_path / "a") as run:
        assert [(event.kind, event.step) for event in run.events()] == [("second part", 9), ("not finite", 9)]


def test_an_event_after_the_end_is_left_out(tmp_path):
    store = StoreVisualizer(tmp_path, "a")
    store.close()
    store.show_event(Event(1, "too late"))
    assert list_runs(tmp_path) == []


def test_threads_that_come_with_the_first_events_and_numbers_make_one_run(tmp_path):
    store, ready = StoreVisualizer(tmp_path, "a"), threading.Barrier(5)

    def add(step):
        ready.wait()
        store.show_event(Event(step, "kind"))

    workers = [threading.Thread(target=add, args=(step,)) for step in range(4)]
    for worker in workers:
        worker.start()
    ready.wait()
    store.write([record(1)])
    for worker in workers:
        worker.join()
    store.close()
    assert [info.name for info in list_runs(tmp_path)] == ["a"]
    with open_run(tmp_path / "a") as run:
        assert sorted(event.step for event in run.events()) == [0, 1, 2, 3]
        assert run.last_step == 1


def test_what_a_store_finds_is_told_to_everybody(tmp_path):
    told = []
    with StoreVisualizer(tmp_path, "a") as store:
        inspector = PyTorchInspector([lens.LossMetrics()], visualizer=store, on_event=told.append)
        inspector.push_loss(math.nan, train=True)
        inspector.tick()
        store.sync()
        assert [(event.kind, event.layer) for event in inspector.events()] == [("not finite", WHOLE_RUN)]
        assert inspector.events()[0].text == "Loss/train_loss was NaN or infinite for the first time"
        inspector.tick()
    assert told == inspector.events()
    with open_run(tmp_path / "a") as run:
        assert [event._replace(id=0) for event in run.events()] == told
