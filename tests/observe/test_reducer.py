"""What all reducers promise, and what they refuse."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn

from monitorch import MonitorchWarning
from monitorch.observe import (
    CAReducer,
    CumulativeTraceReducer,
    EMAReducer,
    EventReducer,
    FoldReducer,
    NearestTraceReducer,
    PassthroughReducer,
    RecordReducer,
    RecordTensor,
    Reducer,
    ScaledCumulativeTraceReducer,
)

SAMPLES = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.3, 0.7], [1.0, 0.0], [0.2, 2.0]])


def feed(reducer, samples=SAMPLES):
    for sample in samples:
        reducer(sample)
    return reducer


def test_copy_and_write_give_the_same_numbers(build_reducer):
    copying, writing = feed(build_reducer(duration=3.0)), feed(build_reducer(duration=3.0, inplace=True))
    assert torch.equal(copying.dump(), writing.dump())
    assert not copying.latest.requires_grad


def test_what_is_read_belongs_to_the_reader(build_reducer):
    for inplace in (False, True):
        reducer = feed(build_reducer(duration=3.0, inplace=inplace))
        read = [reducer.latest, reducer.view(1.0), reducer.dump()]
        kept = [tensor.clone() for tensor in read]
        reducer(SAMPLES[0])
        assert all(torch.equal(*pair) for pair in zip(read, kept, strict=True))
        expected = reducer.dump()
        for tensor in (reducer.latest, reducer.view(1.0), reducer.dump()):
            tensor.fill_(99)
        assert torch.equal(reducer.dump(), expected)


def test_samples_are_not_aliased(build_reducer):
    reducer, sample = build_reducer(), SAMPLES[0].clone()
    reducer(sample)
    expected = reducer.latest
    sample.fill_(99)
    assert torch.equal(reducer.latest, expected)


def test_other_shapes_are_left_out(build_reducer):
    reducer = feed(build_reducer())
    expected, count = reducer.latest, reducer.count
    with pytest.warns(MonitorchWarning, match="leaves out a sample"):
        assert reducer(torch.ones(1)) is None
    assert reducer(torch.ones(2, 2)) is None
    assert (reducer.skipped, reducer.count) == (2, count)
    assert torch.equal(reducer.latest, expected)
    reducer.clear()
    assert reducer(torch.ones(3)).shape == (3,)
    assert reducer.skipped == 0
    reducer(torch.ones(2))  # has been told
    assert reducer.skipped == 1


def test_clear_keeps_the_shape_if_asked(build_reducer):
    reducer = feed(build_reducer(duration=2.0))
    expected = feed(build_reducer(duration=2.0), SAMPLES[:1]).dump()
    reducer.clear(keepshape=True)
    assert (reducer.latest, reducer.dump(), reducer.view(0.0), reducer.count) == (None, None, None, 0)
    assert reducer.data.shape == (2, 2)
    assert torch.equal(feed(reducer, SAMPLES[:1]).dump(), expected)
    reducer.clear()
    assert reducer.data.shape == (0,)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_copies_are_independent(build_reducer, duplicate):
    reducer = feed(build_reducer(duration=3.0))
    copied, expected = duplicate(reducer), reducer.dump()
    assert torch.equal(copied.dump(), expected)
    feed(copied)
    assert torch.equal(reducer.dump(), expected)
    del reducer
    assert copied.count == 10


@pytest.mark.parametrize("assign", [False, True])
def test_checkpoint_goes_into_a_fresh_reducer(build_reducer, assign):
    reducer, file = feed(build_reducer(duration=3.0)), io.BytesIO()
    torch.save(reducer.state_dict(), file)
    file.seek(0)
    fresh = build_reducer(duration=3.0)
    fresh.load_state_dict(torch.load(file, weights_only=True), assign=assign)
    assert torch.equal(fresh.dump(), reducer.dump())
    for one in (fresh, reducer):
        feed(one)
    assert torch.equal(fresh.dump(), reducer.dump())


def test_checkpoint_of_another_duration_keeps_the_newest(build_reducer):
    reducer = feed(build_reducer(duration=4.0))
    for duration in (2.0, 6.0):
        fresh = build_reducer(duration=duration)
        fresh.load_state_dict(reducer.state_dict())
        kept = min(4, int(duration))
        assert torch.equal(fresh.dump()[:kept], reducer.dump()[:kept])
        assert fresh.dump().shape[0] == duration


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
def test_checkpoint_is_loaded_onto_the_device_of_the_reducer(build_reducer):
    fresh = build_reducer(duration=3.0).to("meta")
    fresh.load_state_dict(feed(build_reducer(duration=3.0)).state_dict())
    assert (fresh.data.device.type, fresh.data.shape) == ("meta", (3, 2))


def test_state_dictionary_does_not_move_on(build_reducer):
    reducer = feed(build_reducer(), SAMPLES[:1])
    saved = reducer.state_dict()
    feed(reducer)
    assert saved["_extra_state"]["_count"] == 1


@pytest.mark.parametrize("inplace", [False, True])
def test_inference_mode_then_training(build_reducer, inplace):
    reducer, expected = build_reducer(duration=3.0, inplace=inplace), feed(build_reducer(duration=3.0))
    with torch.inference_mode():
        feed(reducer, SAMPLES[:2].clone())
    feed(reducer, SAMPLES[2:])
    assert torch.equal(reducer.dump(), expected.dump())


def test_graphs_are_kept_if_asked(build_reducer):
    sample = torch.tensor([0.3, 1.0], requires_grad=True)
    assert not build_reducer()(sample * 2).requires_grad
    reducer = build_reducer(differentiable=True)
    for _ in range(2):
        reducer(sample * 1)
    assert reducer.latest.requires_grad == (
        type(reducer) not in (EventReducer, NearestTraceReducer, CumulativeTraceReducer)
    )


def test_gradient_through_an_average():
    reducer, sample = EMAReducer(1.0, 0.25, 3.0, differentiable=True), torch.tensor(2.0, requires_grad=True)
    reducer(torch.tensor(0.0))
    reducer(sample)
    reducer(torch.tensor(0.0))
    reducer.latest.backward()
    assert sample.grad.item() == 0.25 * 0.75


def test_data_can_be_replaced_by_data_of_its_shape():
    reducer = feed(PassthroughReducer(1.0, 2.0))
    reducer.data = torch.ones(2, 2, dtype=torch.float64)
    assert reducer.latest.tolist() == [1, 1]
    with pytest.raises(RuntimeError, match=r"\(2, 2\): it cannot be set to \(3, 2\)"):
        reducer.data = torch.ones(3, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PassthroughReducer(0), "step_time=0 must be a number greater than 0"),
        (lambda: PassthroughReducer("fast"), "step_time='fast' must be a number greater than 0"),
        (lambda: PassthroughReducer(None), "step_time=None must be a number greater than 0"),
        (lambda: PassthroughReducer(1, "long"), "duration='long' must be a number, 0 or more"),
        (lambda: PassthroughReducer(1, math.inf), "duration=inf must be a number, 0 or more"),
        (lambda: EMAReducer(1, "much"), "alpha='much' must be a number from 0 to 1"),
        (lambda: EMAReducer(1, math.nan), "alpha=nan must be a number from 0 to 1"),
        (lambda: EMAReducer(1, -0.1), "alpha=-0.1 must be a number from 0 to 1"),
        (lambda: PassthroughReducer(1, -1), "duration=-1 must be a number, 0 or more"),
        (lambda: EMAReducer(1, 1.5), "alpha=1.5 must be a number from 0 to 1"),
        (lambda: EventReducer(1, torch.isnan, "foo"), "initial='foo' is unknown; choose from 'inf', 'zero', 'nan'"),
        (lambda: CAReducer(1, inplace=True, differentiable=True), "needs inplace=False"),
        (lambda: NearestTraceReducer(1, 0, 1, 1), "time_constant=0"),
        (lambda: NearestTraceReducer(1, 1, 0, 1), "amplitude=0"),
        (lambda: CumulativeTraceReducer(1, 1, 1, 1, 0), "tolerance=0"),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make", [lambda: EventReducer(1, 0.5), lambda: ScaledCumulativeTraceReducer(1.0, 10.0, 2, 3, "above")]
)
def test_criterion_must_be_a_function(make):
    with pytest.raises(TypeError, match="criterion is a function that returns a bool tensor, not"):
        make()


def test_records_of_a_reducer_of_ones_own():
    class Two(RecordReducer):
        def __init__(self):
            super().__init__(0.5, 1.0, inclusive=True)
            RecordTensor.create(self, "first", 1.0, 1.0, None)
            self.second = RecordTensor(self, "second", 1.0, 1.0, None)
            self.add_record("first", "second")

        clear = view = dump = peek = push = None

    reducer = Two()
    assert (reducer.first.recordsz, reducer.second.recordsz) == (3, 3)
    reducer.duration = 2.0
    assert (reducer.first.recordsz, reducer.second.recordsz) == (5, 5)
    with pytest.raises(RuntimeError, match="has no attribute 'third'"):
        reducer.add_record("third")
    with pytest.raises(TypeError, match="not a RecordTensor"):
        reducer.add_record("inplace")


def test_bases_are_abstract():
    for kind in (Reducer, RecordReducer, FoldReducer):
        with pytest.raises(TypeError, match="abstract"):
            kind(1.0, 1.0)


def test_state_follows_the_module_it_is_in():
    model = nn.Sequential(feed(PassthroughReducer(1.0, 2.0)))
    model.double()
    assert model[0].latest.dtype == torch.float64
