"""The record storage against a plain list of numbers, and its smaller promises."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parameter import is_lazy

from monitorch.observe import Module, RecordTensor
from monitorch.observe.interpolation import interp_linear, interp_previous

X = torch.tensor


def new_record(dt=1.0, duration=3.0, value=None, **options):
    owner = Module()
    return RecordTensor.create(owner, "speed", dt, duration, value, **options), owner


def filled(samples, dt=1.0, duration=3.0, **options):
    record, owner = new_record(dt, duration, **options)
    for sample in samples:
        record.push(sample if isinstance(sample, torch.Tensor) else X([float(sample)]))
    return record, owner


class ListModel:
    """What a record is: a list of numbers, newest first, as long as there are slots."""

    def __init__(self, dt, duration, inclusive, fill):
        self.dt, self.duration, self.inclusive, self.fill = dt, duration, inclusive, fill
        self.values = None

    def slots(self):
        # quarters have no rounding errors, so that the plain formula holds
        return max(math.ceil(self.duration / self.dt) + self.inclusive, 1)

    def fit(self):
        if self.values is not None:
            self.values = (self.values + [self.fill] * self.slots())[: self.slots()]

    def push(self, value):
        self.values = [value, *(self.values or [])]
        self.fit()

    def neighbours(self, time):
        back = int(time // self.dt)
        return back, time - back * self.dt

    def view(self, time):
        back, rest = self.neighbours(time)
        if not rest:
            return self.values[back]
        newer, older = self.values[back], self.values[back + 1]
        return older + (newer - older) * (self.dt - rest) / self.dt

    def insert(self, value, time):
        back, rest = self.neighbours(time)
        if rest and not self.dt - rest > self.dt / 2:  # nearer to the older one, which also has the middle
            back += 1
        self.values[back] = value


quarters = st.integers(1, 12).map(lambda n: n / 4)
numbers = st.integers(-8, 8).map(float)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), numbers, st.booleans()),
        st.tuples(st.just("dt"), quarters, st.none()),
        st.tuples(st.just("duration"), st.integers(0, 12).map(lambda n: n / 4), st.none()),
        st.tuples(st.just("inclusive"), st.booleans(), st.none()),
        st.tuples(st.just("view"), st.floats(0, 1), st.none()),
        st.tuples(st.just("insert"), st.floats(0, 1), st.tuples(numbers, st.booleans())),
        st.tuples(st.just("align"), st.integers(0, 9), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(dt=quarters, duration=quarters, inclusive=st.booleans(), fill=numbers, steps=steps)
def test_record_behaves_like_a_list(dt, duration, inclusive, fill, steps):
    model = ListModel(dt, duration, inclusive, fill)
    record, owner = new_record(dt, duration, inclusive=inclusive, fill=fill)
    for action, value, extra in steps:
        at = value
        if action in ("view", "insert"):
            if model.values is None:
                continue
            # a time in sixteenths: exact, and on as well as between samples
            at = math.floor(value * model.dt * (model.slots() - 1) * 16) / 16
        if action == "push":
            record.push(X([value]), inplace=extra)
            model.push(value)
        elif action == "view":
            assert record.select(at, interp_linear).tolist() == pytest.approx([model.view(at)], abs=1e-5)
        elif action == "insert":
            record.insert(X([extra[0]]), at, offset=1, inplace=extra[1])
            model.insert(extra[0], at)
        elif action == "align":
            if model.values is not None:
                record.align(value % record.recordsz)
                assert record.pointer == value % record.recordsz
        else:
            setattr(record, action, value)
            setattr(model, action, value)
            model.fit()
        assert record.recordsz == model.slots()
        assert record.valid
        if model.values is None:
            assert record.ignored
        else:
            assert record.readrange(record.recordsz).flatten().tolist() == model.values[::-1]
            assert [record.read(1 + back).item() for back in range(record.recordsz)] == model.values
    assert owner.speed is record


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.integers(2, 5), pushes=st.integers(1, 9))
def test_each_element_may_have_its_own_time(data, size, pushes):
    models = [ListModel(0.5, size / 2, False, 0.0) for _ in range(2)]
    record, _owner = new_record(0.5, size / 2)
    for _ in range(pushes):
        values = [data.draw(numbers) for _ in models]
        record.push(X(values))
        for model, value in zip(models, values, strict=True):
            model.push(value)
    draw_time = st.integers(0, 4 * (size - 1)).map(lambda n: n / 8)
    times = [[data.draw(draw_time) for _ in range(3)] for _ in models]
    found = record.select(X(times), interp_linear)
    expected = [[model.view(time) for time in row] for model, row in zip(models, times, strict=True)]
    torch.testing.assert_close(found, X(expected), rtol=0, atol=1e-5)
    assert torch.equal(found[:, 0], record.select(X(times)[:, 0], interp_linear))
    new = [data.draw(numbers) for _ in models]
    record.insert(X(new), X(times)[:, 1], offset=1)
    for model, value, row in zip(models, new, times, strict=True):
        model.insert(value, row[1])
    assert record.readrange(size).flip(-1).tolist() == [model.values for model in models]


@pytest.mark.parametrize(
    ("settings_", "expected"),
    [((1, 3), 3), ((1, 3, True), 4), ((1, 0), 1), ((0.3, 1), 4), ((0.1, 0.3), 3), ((0.3, 2.1), 7), ((0.3, 2.7), 9)],
)
def test_number_of_slots(settings_, expected):
    dt, duration, *inclusive = settings_
    record, owner = new_record(dt, duration, inclusive=bool(inclusive))
    assert record.recordsz == expected
    record.push(X([1.0]))
    assert len(owner._speed_data) == expected


def test_growing_fills_in_the_fill_as_oldest():
    record, _owner = filled([1, 2, 3], fill=math.inf)
    record.duration = 5.0
    assert record.readrange(5)[0].tolist() == [math.inf, math.inf, 1, 2, 3]
    record.duration = 2.0
    assert record.readrange(2)[0].tolist() == [2, 3]


def test_fresh_record_takes_any_times():
    record, _owner = new_record()
    record.dt, record.duration, record.inclusive = 0.5, 0.0, True
    assert record.recordsz == 1 + 0 * record.pointer
    assert record.shape is None
    assert record.peek() is None


def test_pointer_moves_ahead_and_back():
    record, _owner = filled([1, 2, 3, 4], duration=4.0)
    for move, by, expected in ((record.incr, 3, 3), (record.decr, 2, 1), (record.decr, 3, 2), (record.incr, 1, 3)):
        move(by)
        assert (record.pointer, record.latest.item()) == (expected, expected or 4)


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("elementwise", [False, True])
def test_ranges(forward, elementwise):
    record, _owner = filled([X([n, 10.0 * n]) for n in range(1, 6)], duration=4.0)
    offset = 3 if forward else 2
    wanted = [3, 4]
    offset = X([offset, offset]) if elementwise else offset
    assert record.readrange(2, offset, forward).tolist() == [wanted, [10 * n for n in wanted]]
    record.writerange(X([[7.0, 8.0], [9.0, 6.0]]), offset, forward, inplace=elementwise)
    assert record.readrange(4).tolist() == [[2, 7, 8, 5], [20, 9, 6, 50]]


def test_range_of_all_slots_is_everything():
    record, _owner = filled([1, 2, 3])
    assert record.readrange(3).tolist() == [[1, 2, 3]]
    assert record.readrange(3, 3, forward=True).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("inplace", [False, True])
def test_writing_by_copy_or_in_place(inplace):
    record, _owner = filled([1, 2, 3])
    before = record.value
    record.write(X([9.0]), offset=1, inplace=inplace)
    assert record.latest.tolist() == [9]
    assert (record.value is before) == inplace
    assert (before.max() == 9) == inplace


def test_gradients_flow_through_copies():
    record, _owner = new_record()
    for n in (1.0, 2.0):
        record.push(X([n], requires_grad=True))
    last = X([5.0], requires_grad=True)
    record.push(last)
    record.select(0.5, interp_linear).backward()
    assert last.grad.tolist() == [0.5]


def test_storage_follows_the_samples():
    record, _owner = new_record()
    record.push(X([1], dtype=torch.int64))
    assert record.value.dtype == torch.int64
    record.push(X([2**24 + 1], dtype=torch.int64))
    assert record.latest.item() == 2**24 + 1
    record.push(X([1e300], dtype=torch.float64))
    assert record.latest.item() == 1e300
    record.push(X([1.5], dtype=torch.float16))
    assert record.value.dtype == torch.float64
    record.push(X([1.5], device="meta"))
    assert record.value.device.type == "meta"
    record, _owner = filled([1, 2])
    record.push(X([1.5], device="meta"))
    assert (record.value.device.type, record.value.dtype) == ("meta", torch.float32)


def test_smaller_times_gather_and_larger_ones_are_refused():
    record, _owner = filled([X([1.0, 2.0]), X([3.0, 4.0])], duration=2.0)
    assert record.select(X([1.0])).tolist() == [1]
    for times, message in ((X([0.0, 0.0, 0.0]), "do not fit into samples"), (X(0.0), "cannot have shape")):
        with pytest.raises(ValueError, match=message):
            record.select(times)


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (lambda r: r.select(-0.1), ValueError, "between 0 and 2 before now"),
        (lambda r: r.select(2.1), ValueError, "between 0 and 2"),
        (lambda r: r.select(math.nan), ValueError, "between 0 and 2"),
        (lambda r: r.push(X([1.0, 2.0])), ValueError, r"shape \(1,\), not \(2,\)"),
        (lambda r: r.write(X(1.0)), ValueError, r"not \(\)"),
        (lambda r: r.insert(X([1.0, 2.0]), 0.0), ValueError, "not"),
        (lambda r: r.insert(X([1.0]), X([[0.0]])), ValueError, "not"),
        (lambda r: r.readrange(4), ValueError, "between 1 and 3, the number of slots"),
        (lambda r: setattr(r, "dt", 0), ValueError, "dt=0 must be a number greater than 0"),
        (lambda r: setattr(r, "duration", -1), ValueError, "0 or more"),
        (lambda r: (r.deinitialize(), r.align()), RuntimeError, "is empty: push a sample"),
        (lambda r: (r.deinitialize(), r.incr()), RuntimeError, "is empty: push a sample"),
        (lambda r: (r.deinitialize(), r.read()), RuntimeError, "is empty: push a sample"),
        (lambda r: RecordTensor(nn.Module(), "a", 1, 1, None), TypeError, "observe.Module"),
    ],
)
def test_wrong_arguments(action, error, message):
    record, owner = filled([1, 2, 3])
    with pytest.raises(error, match=message):
        action(record)
    assert record.ignored or record.readrange(3)[0].tolist() == [1, 2, 3]
    assert owner is record.owner


def test_interpolation_is_given_the_time_since_the_older_sample():
    record, _owner = filled([1, 2, 3], dt=2.0, duration=6.0)
    seen = []

    def interp(older, newer, sample_at, step_time, factor):
        seen.append((older.item(), newer.item(), sample_at.item(), step_time, factor))
        return interp_previous(older, newer, sample_at, step_time)

    record.select(0.5, interp, interp_kwargs={"factor": 3})
    assert seen == [(2, 3, 1.5, 2.0, 3)]


def test_value_is_a_sample_for_every_slot():
    start = X([1.0, 2.0])
    record, _owner = new_record(value=start)
    start.fill_(99)
    assert record.value.tolist() == [[1, 2]] * 3
    parameter = nn.Parameter(X([1.0]))
    record, owner = new_record(value=parameter)
    assert owner._speed_data is parameter
    assert parameter.tolist() == [[1]] * 3


def test_attributes_are_the_names_on_the_owner():
    record, owner = filled([1, 2])
    assert getattr(owner, record.attributes.data) is record.value
    assert getattr(owner, record.attributes.pointer) == 2
    assert [getattr(owner, getattr(record.attributes, name)) for name in ("dt", "duration", "inclusive")] == [1, 3, 0]
    assert all(hasattr(owner, name) for name in record.attributes)


@pytest.mark.parametrize("use_uninitialized", [True, False])
@pytest.mark.parametrize("kind", [nn.UninitializedParameter, nn.UninitializedBuffer])
def test_lazy_storage_is_filled_by_the_first_sample(kind, use_uninitialized):
    record, owner = new_record(value=kind(requires_grad=False, dtype=torch.float64))
    for _ in range(2):
        assert record.ignored
        record.push(X([1.0, 2.0], dtype=torch.float64))
        assert record.value.shape == (3, 2)
        assert isinstance(owner._speed_data, nn.Parameter) == (kind is nn.UninitializedParameter)
        assert not record.value.requires_grad
        record.deinitialize(use_uninitialized)
        assert is_lazy(owner._speed_data) == use_uninitialized
        assert isinstance(owner._speed_data, nn.Parameter) == (kind is nn.UninitializedParameter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_times_may_be_rounded_to_their_own_type(dtype):
    record, _owner = filled(range(200), dt=0.1, duration=20.0)
    for back in range(200):
        found = record.select(X([back * 0.1], dtype=dtype), interp_previous, tolerance=1e-7)
        assert found.item() == 199 - back


def test_times_may_be_off_by_the_tolerance_at_both_ends():
    record, _owner = filled([1, 2, 3])
    assert record.select(-1e-4, tolerance=1e-3).item() == 3
    assert record.select(2.0001, tolerance=1e-3).item() == 1


def test_complex_fill_beside_samples_of_double_precision():
    record, _owner = new_record(fill=1j)
    record.push(X([1e300], dtype=torch.float64))
    assert record.readrange(3).tolist() == [[1j, 1j, 1e300]]


def test_time_that_is_rounded_beyond_the_end_is_the_end():
    record, _owner = filled(range(325), dt=0.1, duration=32.5)
    last = X([32.4], dtype=torch.bfloat16)
    assert last.item() == 32.5
    assert record.select(last, interp_previous).item() == 0


def test_large_whole_numbers_survive_a_sample_of_another_type():
    record, _owner = new_record()
    record.push(X([2**40 + 1]))
    record.push(X([0.5]))
    assert record.readrange(2).tolist() == [[2**40 + 1, 0.5]]


@pytest.mark.parametrize(
    "write",
    [
        lambda record, sample: record.push(sample, inplace=True),
        lambda record, sample: record.write(sample, inplace=True),
        lambda record, sample: record.writerange(sample[:, None], inplace=True),
        lambda record, sample: record.insert(sample, 0.0, inplace=True),
    ],
    ids=["push", "write", "writerange", "insert"],
)
def test_what_is_written_in_place_has_no_graph(write):
    record, _owner = filled([1, 2, 3])
    write(record, X([9.0], requires_grad=True))
    assert not record.value.requires_grad
    assert record.value.max() == 9
