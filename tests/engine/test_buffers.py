"""Rows wait on their device, in order, and are given away once, with where they come from."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from monitorch.engine import buffers
from monitorch.engine.buffers import (
    BASELINE,
    METER,
    NOWHERE,
    SKETCHED,
    STEP,
    TAG,
    Buffers,
    DeviceBuffer,
    HostBuffer,
    Info,
)
from monitorch.engine.columns import (
    ACTIVE,
    BATCH,
    CHANNELS,
    DEAD,
    DOT,
    FOLLOWS,
    NONFINITE,
    NORMS,
    SIZE,
    SQUARES,
    UNIT,
    WEIGHT,
    WIDTH,
)
from monitorch.engine.kernels import reference
from monitorch.engine.meter import Meter, Request
from monitorch.errors import SkippedSample
from monitorch.numerical.waiting import HostCopy

CPU = torch.device("cpu")
KINDS = {"host": HostBuffer, "device": lambda when_full: DeviceBuffer(CPU, when_full)}


def plain(number=0):
    return Meter(number, "layer", Request())


def comparing(number=0, how="exact"):
    return Meter(number, "layer", Request(correlation=how))


def counting(number=0):
    """One that counts what is larger than 0.5."""
    return Meter(number, "layer", Request(rates=(0.5, False)))


class Read:
    """Everything that a buffer has given away, on the CPU."""

    def __init__(self, chunks):
        HostCopy(pending for chunk in chunks for pending in chunk.pending()).deliver()
        self.infos = np.concatenate([np.zeros((0, len(Info._fields)), int), *(chunk.infos for chunk in chunks)])
        self.rows = np.concatenate([np.zeros((0, WIDTH)), *(chunk.rows for chunk in chunks)])

    def of(self, meter):
        return self.rows[self.infos[:, METER] == meter.number]

    def tags(self, meter):
        return self.infos[self.infos[:, METER] == meter.number, TAG].tolist()

    def norms(self, meter):
        rows = self.of(meter)
        return np.sqrt(rows[:, SQUARES]) * rows[:, UNIT]


class Filled:
    """A buffer, and what it has given away early because it was full."""

    def __init__(self, kind):
        self.early = []
        self.buffer = KINDS[kind](self.early.append)

    def read(self):
        early, self.early[:] = list(self.early), []
        return Read([*early, *self.buffer.take()])


@pytest.fixture(params=KINDS)
def filled(request):
    return Filled(request.param)


@pytest.fixture(params=KINDS)
def small(request, monkeypatch):
    """A buffer with room for five rows."""
    monkeypatch.setattr(buffers, "CAPACITY", 5)
    return Filled(request.param)


def test_outputs(filled):
    meter, x = counting(), torch.randn(4, 3, 5)
    x[:, 1] = 0.25
    filled.buffer.output(meter, Info(0, step=7, tag=3), x)
    read = filled.read()
    [row], array = read.rows, x.double().numpy()
    assert read.infos.tolist() == [list(Info(0, 7, 3))]
    assert row[NORMS] == pytest.approx(np.linalg.norm(array.reshape(4, -1), axis=1).sum(), rel=1e-6)
    assert row[[BATCH, CHANNELS, SIZE]].tolist() == [4, 3, 60]
    assert row[ACTIVE] == (abs(array) > 0.5).sum()
    assert row[DEAD] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients_are_compared_with_those_before_and_replace_them(filled, dtype):
    meters = [comparing(0), comparing(1)]
    series = [[torch.randn(shape).to(dtype) for shape in ((3, 4), (5,))] for _ in range(3)]
    for step, tensors in enumerate(series):
        pairs = zip(meters, tensors, strict=True)
        filled.buffer.gradients([(meter, Info(meter.number, step), x, meter.follows(x, 0)) for meter, x in pairs])
    read = filled.read()
    for index, meter in enumerate(meters):
        arrays, rows = [tensors[index].double().numpy() for tensors in series], read.of(meter)
        assert read.norms(meter) == pytest.approx([np.linalg.norm(array) for array in arrays], rel=1e-6)
        assert rows[:, FOLLOWS].tolist() == [0, 1, 1]
        dots = [(first * second).sum() for first, second in pairwise(arrays)]
        units = rows[1:, UNIT] * rows[:-1, UNIT]
        assert rows[1:, DOT] * units == pytest.approx(np.array(dots), rel=1e-5)
        assert torch.equal(meter.comparison.previous, series[-1][index])


def test_rates_of_gradients(filled):
    meter, x = counting(), torch.randn(4, 6)
    x[2] = 0.1
    filled.buffer.geometry(meter, Info(0, 0), x, False)
    array = x.double().numpy()
    assert filled.read().rows[0, [ACTIVE, DEAD, CHANNELS]].tolist() == [(abs(array) > 0.5).sum(), 1, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("how", ["exact", "sketch"])
def test_updates_are_measured_from_what_was_kept_and_compared_with_the_one_before(filled, how, dtype):
    start, meter = torch.randn(70, 70, dtype=dtype), Meter(0, "layer", Request(correlation=how, updates=how))
    meter.measure_updates()
    ways = [torch.randn(70, 70, dtype=dtype)]
    ways.append(ways[0] + torch.randn(70, 70, dtype=dtype))
    for step, way in enumerate(ways):
        before, start = start, start + way
        meter.before_step(before)
        if how == "exact":
            meter.before = before.clone()
        else:
            filled.buffer.keep_sketches([(meter, NOWHERE, before, False)])
        filled.buffer.updates([(meter, Info(0, step), start, meter.follows(start, 0))])
        assert how == "sketch" or torch.equal(meter.before, before)
    assert meter.comparison.sketched is (how == "sketch")
    read = filled.read()
    arrays = [way.double().numpy() for way in ways]
    lengths = [np.linalg.norm(array) for array in arrays]
    assert read.norms(meter) == pytest.approx(lengths, rel=5 * 0.011 if how == "sketch" else 1e-5)
    units = read.rows[:, UNIT].prod()
    cosine = read.rows[1, DOT] * units / np.prod(read.norms(meter))
    truth = (arrays[0] * arrays[1]).sum() / np.prod(lengths)
    assert cosine == pytest.approx(truth, abs=5 * 0.022 if how == "sketch" else 1e-5)


WEIGHTS = {
    "float32": torch.randn(70, 70),
    "float16, whose square is none": torch.full((3, 4), 300.0, dtype=torch.float16),
    "bfloat16": torch.randn(9).bfloat16(),
    "float64": torch.randn(5, 5, dtype=torch.float64),
    "complex": torch.randn(4, 4, dtype=torch.complex64),
    "not contiguous": torch.randn(20, 30)[::2, ::3],
    "transposed": torch.randn(20, 30).T,
    "a scalar": torch.tensor(3.0),
    "empty": torch.zeros(0, 3),
    "zero": torch.zeros(5),
    "tiny": torch.full((5,), 1e-30),
    "huge": torch.full((5,), 1e30),
    "not finite": torch.tensor([1.0, torch.nan]),
}


def test_weights_are_the_squares_of_parameters_before_a_step(filled):
    meters = [Meter(number, name, Request(columns=frozenset({WEIGHT}))) for number, name in enumerate(WEIGHTS)]
    quiet = Meter(len(meters), "layer", Request())
    everything = [*zip(meters, WEIGHTS.values(), strict=True), (quiet, torch.ones(3))]
    filled.buffer.weigh([(meter, NOWHERE, before, False) for meter, before in everything[:-1]])
    for meter, before in everything:
        meter.measure_updates()
        meter.before = before.clone()
    filled.buffer.updates([(meter, Info(meter.number, 0), before + 1, False) for meter, before in everything])
    read = filled.read()
    for meter, before in everything[:-1]:
        array = before.to(torch.complex128 if before.is_complex() else torch.float64).numpy()
        expected = pytest.approx([np.square(np.abs(array)).sum()], rel=1e-6, nan_ok=True)
        assert read.of(meter)[:, WEIGHT].tolist() == expected, meter.name
    assert read.of(quiet)[:, WEIGHT].tolist() == [0.0]


class Together:
    """Stands for a launch: measures many tensors, row after row."""

    def __call__(self, measured, *others):
        *_, block, first = others
        for row, x in enumerate(measured, start=first):
            block[row] = reference.geometry(x, None, None)


@pytest.mark.parametrize("group", [SKETCHED, (False, None)], ids=["sketches", "copies"])
def test_weights_are_written_beside_the_rows_of_one_launch(group, monkeypatch):
    monkeypatch.setattr(buffers, "_group", lambda *_: group)
    monkeypatch.setattr(buffers.fused_many, "ManySketches", Together)
    monkeypatch.setattr(buffers.fused_many, "ManyUpdates", Together)
    filled = Filled("device")
    filled.buffer.geometry(plain(9), Info(9, 0), torch.ones(2), False)  # rows of others come first
    requests = [Request(columns=frozenset({WEIGHT})), Request(), Request(columns=frozenset({WEIGHT}))]
    meters = [Meter(number, "layer", request) for number, request in enumerate(requests)]
    for step in range(2):
        befores = [torch.randn(3 + number) for number in range(3)]
        weighed = [(meter, NOWHERE, x, False) for meter, x in zip(meters, befores, strict=True) if meter.weighs]
        filled.buffer.weigh(weighed)
        for meter in meters:
            meter.comparison.previous = torch.zeros(1)
        pairs = zip(meters, befores, strict=True)
        filled.buffer.updates([(meter, Info(meter.number, step), x + 1, False) for meter, x in pairs])
        read = filled.read()
        found = [read.of(meter)[0, WEIGHT] for meter in meters]
        squares = [np.square(x.double().numpy()).sum() for x in befores]
        assert found == pytest.approx([squares[0], 0.0, squares[2]], rel=1e-6)
        assert [read.of(meter)[0, SIZE] for meter in meters] == [3, 4, 5]


def test_a_parameter_that_cannot_be_weighed_does_not_stop_the_others(cracked):
    buffer, told = HostBuffer(None), []
    whole, broken = (Meter(number, "layer", Request(columns=frozenset({WEIGHT}))) for number in range(2))
    broken.fail = lambda error, data: told.append(str(error))
    buffer.weigh([(broken, NOWHERE, cracked(2, 3), False), (whole, NOWHERE, torch.ones(2, 3), False)])
    assert (whole.weight, broken.weight, told) == (6.0, None, ["it fell apart"])


def test_a_gradient_that_cannot_be_measured_does_not_stop_the_others(filled, monkeypatch):
    whole, broken, told, geometry = plain(0), plain(1), [], filled.buffer.geometry
    broken.fail = lambda error, data: told.append(str(error))

    def measure(meter, *rest):
        if meter is broken:
            raise RuntimeError("it fell apart")
        geometry(meter, *rest)

    monkeypatch.setattr(filled.buffer, "geometry", measure)
    filled.buffer.gradients([(meter, Info(meter.number, 0), torch.ones(2, 3), False) for meter in (broken, whole)])
    assert (filled.read().norms(whole).tolist(), told) == ([pytest.approx(6**0.5)], ["it fell apart"])


def test_a_signal_between_the_two_parts_of_a_row_does_not_take_it_apart():
    """Its handler may read all rows: infos and numbers of later ones must still belong together."""
    buffer, meters = HostBuffer(None), [plain(0), plain(1)]
    first = buffer.geometry, (meters[0], Info(0, 0), torch.tensor([1.0]), False)
    second = buffer.geometry, (meters[1], Info(1, 0), torch.tensor([2.0]), False)
    taken, note = [], buffer.note

    def interrupted(*data):
        note(*data)
        taken.extend(buffer.take())

    first[0](*first[1])
    buffer.note = interrupted
    second[0](*second[1])
    buffer.note = note
    first[0](*first[1])
    read = Read([*taken, *buffer.take()])
    assert (read.norms(meters[0]).tolist(), read.norms(meters[1]).tolist()) == ([1.0, 1.0], [2.0])
    assert len(taken[0].infos) == len(taken[0].rows) == 1


def test_rows_are_given_away_once(filled):
    filled.buffer.output(plain(), Info(0, 0), torch.ones(1, 2))
    assert len(filled.read().rows) == 1
    assert filled.buffer.take() == []


def test_each_row_says_which_meter_it_is_of_in_the_order_of_measuring(filled):
    first, second = plain(0), plain(1)
    for number in range(1, 7):
        meter = second if number % 3 == 0 else first
        filled.buffer.geometry(meter, Info(meter.number, 0, number), torch.tensor([float(number)]), False)
    read = filled.read()
    assert (read.norms(first).tolist(), read.tags(first)) == ([1, 2, 4, 5], [1, 2, 4, 5])
    assert (read.norms(second).tolist(), read.tags(second)) == ([3, 6], [3, 6])


@pytest.mark.parametrize("count", [4, 5, 6, 10, 23])
def test_a_full_buffer_gives_rows_away_early_and_loses_nothing(small, count):
    meter = plain()
    for number in range(count):
        small.buffer.geometry(meter, Info(0, number, number % 4), torch.tensor([float(number)]), False)
        assert len(small.buffer) <= 5
    read = small.read()
    assert read.norms(meter).tolist() == list(range(count))
    assert read.tags(meter) == [number % 4 for number in range(count)]
    assert len(small.buffer) == 0


def test_which_channels_are_active_stays_with_its_row_when_the_buffer_is_full(small):
    meter = counting()
    for number in range(12):
        alive = torch.arange(12) == number
        small.buffer.output(meter, Info(0, number), torch.ones(1, 12), alive if number % 2 else None)
    chunks = [*small.early, *small.buffer.take()]
    found = {int(chunk.infos[row, STEP]): flags for chunk in chunks for row, flags in chunk.alive.items()}
    assert {step: flags.nonzero().item() for step, flags in found.items()} == {step: step for step in range(1, 12, 2)}


def test_a_row_that_is_used_again_holds_nothing_of_the_last_time(small):
    output, gradient = counting(0), plain(1)
    for _ in range(2):
        small.buffer.output(output, Info(0, 0), torch.ones(1, 2))
    small.read()
    small.buffer.geometry(gradient, Info(1, 0), torch.ones(3), False)
    assert small.read().of(gradient)[0, [NORMS, BATCH, ACTIVE, SIZE]].tolist() == [0, 0, 0, 3]


def test_many_gradients_that_do_not_fit_any_more_are_written_when_there_is_room(small):
    meters = [plain(number) for number in range(4)]
    for step in range(3):
        small.buffer.gradients(
            [(meter, Info(meter.number, step), torch.tensor([10.0 * step + meter.number]), False) for meter in meters]
        )
    read = small.read()
    assert [read.norms(meter).tolist() for meter in meters] == [[n, 10 + n, 20 + n] for n in range(4)]


# corrections by factors that stay on their device


def measure(buffer, meter, *numbers):
    for number in numbers:
        x = torch.full((3,), number)
        meter.comparison.previous = torch.zeros(3)
        buffer.geometry(meter, Info(0, 0), x, True)


def corrected(filled):
    rows = filled.read().rows
    return (np.sqrt(rows[:, SQUARES] / 3) * rows[:, UNIT]).tolist(), rows[:, FOLLOWS].tolist()


def test_only_rows_inside_the_block_are_corrected(filled):
    meter = comparing()
    measure(filled.buffer, meter, 1.0)
    with filled.buffer.corrected(torch.tensor(0.5), torch.tensor(0.0)):
        measure(filled.buffer, meter, 2.0, 4.0)
    measure(filled.buffer, meter, 3.0)
    lengths, follows = corrected(filled)
    assert lengths == pytest.approx([1, 1, 2, 3])
    assert follows == [1, 0, 0, 1]


def test_a_factor_of_zero_leaves_no_unit_in_the_rows(filled):
    meter = comparing()
    measure(filled.buffer, meter, 1.0)
    with filled.buffer.corrected(torch.tensor(0.0)):
        measure(filled.buffer, meter, 2.0)
    assert filled.read().rows[:, UNIT].astype(bool).tolist() == [True, False]  # the engine leaves out those without


@pytest.mark.parametrize("unit", [0.5, 0.0])
def test_tensors_that_are_only_measured_are_corrected_too(filled, unit):
    entries = [(plain(), Info(0, 0), torch.full((3,), number), False) for number in (1.0, 2.0)]
    with filled.buffer.corrected(torch.tensor(unit)):
        filled.buffer.lengths(entries)
    filled.buffer.lengths(entries)
    assert corrected(filled)[0] == pytest.approx([unit, 2 * unit, 1, 2])


@pytest.mark.parametrize("works", [None, 1.0, 0.0])
@pytest.mark.parametrize("squares", [12.0, 0.0, math.inf, math.nan])
def test_a_sum_of_squares_is_a_row(filled, squares, works):
    given = torch.tensor(squares, dtype=torch.float64), 4, None if works is None else torch.tensor(works)
    filled.buffer.add_sum(Info(3, 7), *given)
    filled.buffer.add_sum(Info(3, 8), 5.0, 2)
    read = filled.read()
    assert read.infos[:, :2].tolist() == [[3, 7], [3, 8]]
    assert read.rows[:, SQUARES].tolist() == pytest.approx([squares, 5.0], nan_ok=True)
    assert read.rows[:, UNIT].tolist() == [1.0 if works is None else works, 1.0]
    assert read.rows[:, SIZE].tolist() == [4, 2]
    assert np.isnan(read.rows[:, NONFINITE]).all()  # nobody has counted
    assert not read.rows[:, [DOT, FOLLOWS, NORMS, WEIGHT]].any()


def test_a_block_in_which_nothing_is_written_changes_nothing(filled):
    measure(filled.buffer, comparing(), 1.0)
    with filled.buffer.corrected(torch.tensor(0.5)):
        pass
    assert corrected(filled)[0] == pytest.approx([1])


@pytest.mark.parametrize("capacity", [1, 2, 3, 5])
def test_rows_that_leave_the_buffer_inside_the_block_are_corrected_once(monkeypatch, capacity, small):
    monkeypatch.setattr(buffers, "CAPACITY", capacity)
    meter = comparing()
    measure(small.buffer, meter, 1.0, 1.0)
    with small.buffer.corrected(torch.tensor(0.5)):
        measure(small.buffer, meter, *[2.0] * 5)
    measure(small.buffer, meter, 1.0)
    assert corrected(small)[0] == pytest.approx([1] * 8)


def test_an_error_inside_the_block_ends_the_correction(filled):
    with pytest.raises(ZeroDivisionError), filled.buffer.corrected(torch.tensor(0.5)):
        raise ZeroDivisionError
    measure(filled.buffer, comparing(), 2.0)
    assert corrected(filled)[0] == pytest.approx([2])


# rows that CUDA graphs write


class Captured(Filled):
    """A buffer while a graph is being captured; each call of ``run`` is a run of that graph."""

    def __init__(self, monkeypatch):
        super().__init__("device")
        self.meter, self.monkeypatch = plain(), monkeypatch
        self.meter.in_graph = True
        self.is_capturing = True
        monkeypatch.setattr(buffers, "is_capturing", lambda device: self.is_capturing)

    def capture(self, x, info):
        self.is_capturing = True
        self.buffer.geometry(self.meter, info, x, False)
        self.is_capturing = False

    def run(self, *xs):
        for index, x in enumerate(xs):
            self.meter.reader(x, self.buffer.captured, index, False)


@pytest.fixture
def captured(monkeypatch):
    return Captured(monkeypatch)


def test_rows_of_a_graph_are_collected_once_per_run_with_the_step_of_that_run(captured):
    captured.capture(torch.ones(4), Info(0, 0, tag=BASELINE | 2, generation=3))
    captured.buffer.collect(step=5, tag=0, gaps=1)
    captured.run(torch.full((4,), 2.0))
    captured.buffer.collect(step=6, tag=BASELINE, gaps=2)
    captured.buffer.collect(step=7, tag=0, gaps=2)  # the graph has not run
    read = captured.read()
    assert read.infos.tolist() == [
        list(Info(0, step, tag, generation=3, gaps=gaps))
        for step, tag, gaps in [(5, 2, 1), (6, BASELINE | 2, 2), (7, 2, 2)]
    ]
    assert read.norms(captured.meter).tolist() == [2, 4, 0]
    assert read.rows[:, UNIT].tolist() == [1, 1, 0]


def test_forgotten_graphs_write_where_nobody_reads(captured):
    captured.capture(torch.ones(4), Info(0, 0))
    old = captured.buffer.captured
    captured.buffer.forget_graphs()
    captured.meter.reader(torch.ones(4), old, 0, False)
    captured.capture(torch.zeros(4), Info(0, 0))
    captured.buffer.collect(step=1, tag=0, gaps=0)
    assert captured.read().norms(captured.meter).tolist() == [0]


def test_graphs_with_more_rows_than_there_is_room_for_leave_some_out(captured, monkeypatch):
    monkeypatch.setattr(buffers, "CAPTURED", 2)
    for _ in range(2):
        captured.capture(torch.ones(4), Info(0, 0))
    with pytest.raises(SkippedSample, match="more than 2 measurements"):
        captured.capture(torch.ones(4), Info(0, 0))


def test_there_is_one_buffer_for_each_device():
    whole, meter = Buffers(pytest.fail), plain()
    assert isinstance(whole[CPU], HostBuffer)
    assert whole[CPU] is whole[torch.device("cpu")]
    assert isinstance(whole[torch.device("meta")], DeviceBuffer)
    whole[CPU].output(meter, Info(0, 0), torch.ones(1, 4))
    assert Read(whole.take()).norms(meter).tolist() == [2.0]
    assert whole.take() == []
