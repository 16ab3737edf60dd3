"""What is asked of a tensor, what it is compared with, and who gets its rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from monitorch.engine import allocation
from monitorch.engine.allocation import Allowance
from monitorch.engine.columns import Column
from monitorch.engine.kernels.reference import SKETCH as SKETCH_SIZE
from monitorch.engine.meter import (
    Comparison,
    Meter,
    Request,
    Subscriber,
    find_meter,
    is_measured,
    request_of,
    through_row,
)
from monitorch.errors import OptionError, SkippedSample
from monitorch.numerical.precision import full_dtype
from monitorch.preprocessor import GradientActivation, GradientGeometry, OutputNorm
from monitorch.preprocessor.accumulating import AccumulatingPreprocessor

CPU = torch.device("cpu")
PLAIN, EXACT, SKETCH = Request(), Request(correlation="exact"), Request(correlation="sketch")
AUTO = Request(correlation="auto")
RATES, OTHER_RATES = Request(rates=(0.1, False)), Request(rates=(0.2, False))
TRAINING = Request(passes=frozenset({3}))


class Asking(AccumulatingPreprocessor):
    """One that asks for anything."""

    def __init__(self, request=PLAIN):
        super().__init__(inplace=False)
        self._request = request

    def request(self):
        return self._request


class Reports:
    """A gatherer that keeps what it is told."""

    def __init__(self, name="layer"):
        self.name, self.reports = name, []

    def report(self, error, data):
        self.reports.append(str(error))


# requests


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (PLAIN, PLAIN, True),
        (PLAIN, EXACT, True),
        (PLAIN, SKETCH, True),
        (PLAIN, RATES, True),
        (EXACT, EXACT, True),
        (SKETCH, SKETCH, True),
        (EXACT, SKETCH, False),
        (AUTO, AUTO, True),
        (AUTO, EXACT, False),
        (AUTO, SKETCH, False),
        (AUTO, RATES, False),
        (PLAIN, AUTO, True),
        (replace(SKETCH, updates="sketch"), replace(PLAIN, updates="sketch"), True),
        (replace(SKETCH, updates="sketch"), PLAIN, False),
        (EXACT, RATES, True),
        (SKETCH, RATES, False),
        (RATES, RATES, True),
        (RATES, OTHER_RATES, False),
        (RATES, Request(rates=(0.1, True)), False),
        (RATES, Request(rates=(0.1, False), exact_death=True), False),
        (PLAIN, Request(rates=(0.1, False), exact_death=True), True),
        (PLAIN, TRAINING, True),
        (PLAIN, Request(output_index=0), False),
        (Request(output_index="logits"), Request(output_index="logits"), True),
    ],
)
def test_one_pass_serves_requests_that_do_not_contradict_each_other(first, second, joined):
    assert first.joins(second) is joined
    assert second.joins(first) is joined
    meters = [Meter(0, "layer", first)]
    assert find_meter(meters, second) is (meters[0] if joined else None)


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (PLAIN, EXACT, EXACT),
        (EXACT, RATES, Request(rates=(0.1, False), correlation="exact")),
        (
            Request(rates=(0.1, False), exact_death=True, passes=frozenset({1})),
            TRAINING,
            Request(rates=(0.1, False), exact_death=True, passes=frozenset({1, 3})),
        ),
        (TRAINING, PLAIN, PLAIN),
        (Request(output_index=2), Request(output_index=2, correlation="sketch"), Request(2, correlation="sketch")),
    ],
)
def test_what_both_ask_for(first, second, both):
    assert first | second == second | first == both


def test_the_output_index_of_a_gatherer_counts():
    assert request_of(Asking(Request(output_index=0))).output_index == 0
    assert request_of(Asking(Request(output_index=0)), 1).output_index == 1
    assert request_of(Asking(EXACT), "logits") == Request("logits", correlation="exact")


@pytest.mark.parametrize(
    ("last", "dim"), [(True, -1), (False, 1), (lambda name: name == "layer", -1), (lambda name: name != "layer", 1)]
)
def test_where_channels_are(last, dim):
    meter = Meter(0, "layer", Request(rates=(0.5, last)))
    assert (meter.channel_dim, meter.eps, meter.rates) == (dim, 0.5, True)
    assert Meter(0, "layer", PLAIN).channel_dim is None


def test_in_a_graph_where_channels_are_is_guessed():
    def last(name):
        pytest.fail("a layout that is found out in eager mode is not known in a graph")

    last.guess = lambda name: True
    meter = Meter(0, "layer", Request(rates=(0.5, last)))
    meter.in_graph = True
    assert meter.channel_dim == -1


# comparisons

SMALL, LARGE = torch.ones(2, 3), torch.ones(65, 64)
TURNED = LARGE.T.contiguous().T
"""The same numbers in another order in memory."""


def follow(comparison, *tensors, gap=0):
    """Whether each tensor follows the one before; what is kept is then that tensor."""
    found = []
    for tensor in tensors:
        fits = comparison.knows(tensor) or comparison.make_room(tensor, in_graph=False)
        found.append(comparison.follows(gap) and fits)
        if comparison.previous is not None and not comparison.sketched:
            comparison.previous.copy_(tensor)
    return found


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([SMALL, SMALL, SMALL], [False, True, True]),
        ([SMALL, LARGE, LARGE, SMALL], [False, False, True, False]),
        ([SMALL, SMALL.half(), SMALL.bfloat16(), SMALL], [False, True, True, True]),
        ([SMALL, SMALL.double(), SMALL.double(), SMALL], [False, False, True, False]),
        ([SMALL, SMALL.to(torch.complex128)], [False, False]),
        ([torch.ones(()), torch.ones(1)], [False, False]),
        ([torch.ones(0), torch.ones(0)], [False, True]),
        ([SMALL, SMALL.to("meta"), SMALL], [False, False, False]),
    ],
    ids=["same", "other shape", "other dtype", "in another unit", "complex", "scalar", "empty", "other device"],
)
@pytest.mark.parametrize("how", ["exact", "sketch"])
def test_a_tensor_follows_one_of_the_same_shape(how, tensors, expected):
    assert follow(Comparison(how), *tensors) == expected
    meter = Meter(0, "layer", Request(correlation=how))
    assert [meter.follows(tensor, 0) for tensor in tensors] == expected


@pytest.mark.parametrize(
    ("how", "expected"), [("exact", [False, True, True, True]), ("sketch", [False, False, True, False])]
)
def test_a_sketch_does_not_follow_one_of_another_order_in_memory(how, expected):
    assert follow(Comparison(how), LARGE, TURNED, TURNED, LARGE) == expected


def test_nothing_is_kept_where_nothing_is_compared():
    comparison = Comparison(None)
    assert follow(comparison, SMALL, SMALL, SMALL) == [False] * 3
    assert comparison.previous is None


@pytest.mark.parametrize("how", ["exact", "sketch"])
def test_a_gap_or_an_interruption_ends_the_series(how):
    comparison = Comparison(how)
    assert [follow(comparison, SMALL, gap=gap) for gap in (0, 0, 1, 1, 3)] == [
        [False],
        [True],
        [False],
        [True],
        [False],
    ]
    comparison.interrupt()
    assert follow(comparison, SMALL, SMALL, gap=3) == [False, True]


def test_an_interruption_of_the_meter_is_one_of_its_comparison():
    meter = Meter(0, "layer", EXACT)
    assert [meter.follows(SMALL, 0) for _ in range(2)] == [False, True]
    meter.interrupt()
    assert [meter.follows(SMALL, 0) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("how", "tensor", "size"),
    [("exact", LARGE, 65 * 64 * 4), ("sketch", LARGE, 2 * SKETCH_SIZE * 4), ("sketch", SMALL, 6 * 4)],
)
def test_what_is_kept_is_a_copy_or_a_sketch_if_that_is_smaller(how, tensor, size):
    comparison = Comparison(how)
    follow(comparison, tensor)
    assert comparison.previous.nbytes == size
    assert comparison.sketched is (size == 2 * SKETCH_SIZE * 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_kept_of_an_update_is_a_difference(dtype):
    comparison, parameter = Comparison("exact"), torch.ones(3, dtype=dtype, requires_grad=True)
    comparison.updates = "exact"
    follow(comparison, parameter.detach())
    assert comparison.previous.dtype == full_dtype(dtype)
    assert not comparison.previous.requires_grad


def test_what_was_kept_in_another_layout_is_kept_with_its_numbers():
    comparison, tensor = Comparison("exact"), torch.randn(3, 4)
    follow(comparison, tensor)
    later = torch.empty(4, 3, dtype=torch.bfloat16).T
    assert comparison.knows(later) or comparison.make_room(later, in_graph=False)
    assert comparison.follows(0)
    assert (comparison.previous.dtype, comparison.previous.stride()) == (torch.bfloat16, (1, 3))
    torch.testing.assert_close(comparison.previous, tensor.bfloat16())


def test_memory_that_is_replaced_is_another_generation():
    comparison = Comparison("exact")
    generations = []
    for tensor in (SMALL, SMALL, LARGE, LARGE, SMALL):
        follow(comparison, tensor)
        generations.append(comparison.generation)
    assert generations == [1, 1, 2, 2, 3]


def test_comparing_may_begin_later():
    meter = Meter(0, "layer", PLAIN)
    assert [meter.follows(SMALL, 0) for _ in range(2)] == [False, False]
    meter.widen(EXACT)
    assert meter.compares
    assert [meter.follows(SMALL, 0) for _ in range(2)] == [False, True]


# the state of a comparison, saved and loaded


def saved(comparison, *, with_tensor=True):
    return comparison.state_dict(with_tensor=with_tensor)


def loaded(state, how):
    comparison = Comparison(how)
    comparison.load_state_dict(state, CPU)
    return comparison


@pytest.mark.parametrize("tensor", [SMALL, LARGE, TURNED, torch.ones(2, SKETCH_SIZE)], ids=lambda x: str(x.stride()))
@pytest.mark.parametrize("how", ["exact", "sketch"])
def test_a_loaded_comparison_goes_on_where_it_was_saved(how, tensor):
    before = Comparison(how)
    follow(before, tensor, tensor, gap=2)
    before.previous.copy_(torch.randn(before.previous.shape))
    state, kept = saved(before), before.previous.clone()
    before.previous.zero_()  # the run goes on
    after = loaded(state, how)
    assert torch.equal(after.previous, kept)
    assert after.sketched is before.sketched
    assert after.knows(tensor)
    assert after.follows(2)
    assert torch.equal(after.previous, kept)
    assert after.previous is not state["previous"]


@pytest.mark.parametrize(
    ("next_one", "gap", "expected"), [(SMALL, 0, True), (SMALL, 1, False), (LARGE, 0, False), (SMALL.half(), 0, True)]
)
def test_a_loaded_comparison_knows_gaps_and_layouts(next_one, gap, expected):
    before = Comparison("exact")
    follow(before, SMALL)
    assert follow(loaded(saved(before), "exact"), next_one, gap=gap) == [expected]


def test_an_interruption_is_saved():
    before = Comparison("exact")
    follow(before, SMALL)
    before.interrupt()
    assert follow(loaded(saved(before), "exact"), SMALL, SMALL) == [False, True]


@pytest.mark.parametrize(("how", "follows"), [("exact", False), ("sketch", True)])
def test_without_its_tensor_nothing_is_compared_but_a_sketch_is_small_enough(how, follows):
    before = Comparison(how)
    follow(before, LARGE)
    state = saved(before, with_tensor=False)
    assert (state["previous"] is None) is not follows
    assert follow(loaded(state, how), LARGE, LARGE) == [follows, True]


@pytest.mark.parametrize("hows", [("exact", "sketch"), ("sketch", "exact")])
def test_a_run_that_goes_on_with_another_kind_of_comparison_starts_from_the_beginning(hows):
    before = Comparison(hows[0])
    follow(before, LARGE)
    after = loaded(saved(before), hows[1])
    assert follow(after, LARGE, LARGE) == [False, True]
    assert after.sketched is (hows[1] == "sketch")
    assert after.previous.shape == ((2, SKETCH_SIZE) if after.sketched else LARGE.shape)


@pytest.fixture
def room_for_one_large(monkeypatch):
    """Room for copies of one tensor like LARGE, and for nothing more."""
    monkeypatch.setattr(allocation, "MOST_COPIES", LARGE.nbytes)


@pytest.mark.usefixtures("room_for_one_large")
def test_who_comes_too_late_for_a_copy_keeps_a_sketch_and_everybody_stays_with_that():
    allowance = Allowance()
    first, second, small = (Comparison("auto", allowance) for _ in range(3))
    for comparison in (first, second, small):
        follow(comparison, SMALL if comparison is small else LARGE)
    assert [comparison.sketched for comparison in (first, second, small)] == [False, True, False]
    assert small.previous.shape == SMALL.shape  # a sketch would be larger
    follow(first, torch.ones(200, 200))
    follow(second, torch.ones(100, 100))
    follow(small, LARGE)
    assert [comparison.sketched for comparison in (first, second, small)] == [False, True, True]


@pytest.mark.usefixtures("room_for_one_large")
@pytest.mark.parametrize(
    ("updates", "how", "sketched"), [(None, "auto", False), ("auto", None, False), ("auto", "auto", True)]
)
def test_all_copies_of_a_tensor_count(updates, how, sketched):
    comparison = Comparison(how)
    comparison.updates = updates
    follow(comparison, LARGE)
    assert comparison.sketched is sketched


@pytest.mark.usefixtures("room_for_one_large")
def test_copies_that_were_asked_for_count_as_well():
    allowance = Allowance()
    for how, expected in (("exact", False), ("exact", False), ("auto", True)):
        comparison = Comparison(how, allowance)
        follow(comparison, LARGE)
        assert comparison.sketched is expected
    assert allowance.taken[LARGE.device] == 2 * LARGE.nbytes


@pytest.mark.usefixtures("room_for_one_large")
def test_a_choice_is_saved():
    allowance = Allowance()
    before = [Comparison("auto", allowance) for _ in range(2)]
    for comparison in before:
        follow(comparison, LARGE)
    after = [Comparison("auto") for _ in range(2)]  # each with room for a copy
    for old, new in zip(before, after, strict=True):
        assert new.load_state_dict(saved(old), LARGE.device)
        assert follow(new, LARGE) == [True]
    assert [comparison.sketched for comparison in after] == [False, True]


def test_preprocessors_learn_when_sketches_are_compared(measured):
    asking, meters = Asking(SKETCH), []
    meter = measured.engine.subscribe(meters, "layer", Reports(), asking, "gradient").meter
    meter.follows(SMALL, 0)
    assert not asking.is_estimated
    meter.follows(LARGE, 0)
    late = Asking(SKETCH)
    measured.engine.subscribe(meters, "layer", Reports(), late, "gradient")
    assert asking.is_estimated
    assert late.is_estimated


def test_a_comparison_that_has_seen_nothing_is_saved():
    assert follow(loaded(saved(Comparison("exact")), "exact"), SMALL, SMALL) == [False, True]


# meters


def test_after_an_error_nothing_is_called_any_more_and_after_a_skipped_sample_it_is(measured):
    gatherer, calls, meters = Reports(), [], []

    def act(error):
        calls.append(error)
        if error is not None:
            raise error

    meter = measured.engine.subscribe(meters, "layer", gatherer, Asking(), "output").meter
    for error in (None, SkippedSample("too short"), None, ValueError("broken"), None):
        meter.guarded(act, error)
    assert gatherer.reports == ["too short", "broken"]
    assert len(calls) == 4


def test_a_reader_serves_tensors_of_one_layout_only():
    meter = Meter(0, "layer", PLAIN)
    assert not meter.reads(LARGE)
    meter.reader = lambda x: x
    assert [meter.reads(x) for x in (LARGE, LARGE, TURNED, TURNED, TURNED.half())] == [True, True, False, True, False]
    meter.widen(RATES)
    assert not meter.reads(TURNED.half())


@pytest.mark.parametrize(("last", "expected"), [(False, [True, False, True]), (True, [False, True])])
def test_which_channels_are_active(last, expected):
    x = torch.zeros(4, 3, 2)
    x[1, 0, 1], x[2, 2, 1], x[3, 1, 0] = 0.6, -0.7, 0.5
    assert Meter(0, "layer", Request(rates=(0.5, last))).alive(x).tolist() == expected
    assert Meter(0, "layer", PLAIN).alive(x) is None


# subscriptions


def test_requests_that_fit_share_a_meter_which_closes_with_its_last_subscription(measured):
    subscribe, meters = measured.engine.subscribe, []
    first = subscribe(meters, "layer", Reports(), Asking(), "output")
    second = subscribe(
        meters, "layer", Reports(), Asking(Request(correlation="exact", passes=frozenset({3}))), "output"
    )
    assert len(meters) == 1
    assert (first.meter.request.correlation, first.meter.request.passes) == ("exact", frozenset(range(4)))
    subscribe(meters, "layer", Reports(), Asking(), "output", output_index=1)
    assert [meter.request.output_index for meter in meters] == [None, 1]
    first.remove()
    first.remove()
    assert second.meter in meters
    second.remove()
    assert [meter.request.output_index for meter in meters] == [1]


def test_a_subscriber_chooses_the_rows_of_its_meters_and_passes():
    everything, training = Subscriber(Asking()), Subscriber(Asking(TRAINING))
    for subscriber in (everything, training):
        subscriber.add(5, "late", Reports())
        subscriber.add(1, "early", Reports())
    meters, kinds = np.array([0, 1, 1, 2, 5, 5, 90]), np.array([3, 0, 3, 3, 3, 2, 3])
    places = {"late": 0, "early": 1}  # in the order of their coming
    for subscriber, expected in ((everything, [1, 2, 4, 5]), (training, [2, 4])):
        chosen, found = subscriber.choose(meters, kinds)
        assert chosen.tolist() == expected
        assert found.tolist() == [places["early" if meters[row] == 1 else "late"] for row in expected]
    everything.remove(1)
    assert everything.choose(meters, kinds)[0].tolist() == [4, 5]


def test_a_subscriber_without_meters_chooses_nothing():
    chosen, places = Subscriber(Asking()).choose(np.array([0, 3]), np.array([3, 3]))
    assert (chosen.tolist(), places.tolist()) == ([], [])
    assert Subscriber(Asking()).choose(np.zeros(0, np.int64), np.zeros(0, np.int64))[0].tolist() == []


# who is measured for


class Changed(GradientGeometry):
    def process_tensor(self, name, tensor):
        super().process_tensor(name, 2 * tensor)


class ChangedAbove(Changed):
    pass


class Mixin:
    def process_tensor(self, name, tensor):
        raise NotImplementedError


class ChangedBeside(Mixin, GradientGeometry):
    pass


class OnlyDerives(GradientGeometry):
    def derive(self, rows):
        return np.zeros(len(rows))


class ChangesSomethingElse(GradientGeometry):
    def reset(self):
        super().reset()


class KnowsWhatItDoes(GradientGeometry):
    def request(self):
        return Request()

    def process_tensor(self, name, tensor):
        raise NotImplementedError


class ForgetsTheRequest(KnowsWhatItDoes):
    def process_tensor(self, name, tensor):
        raise NotImplementedError


class MakesTheRowItself(GradientGeometry):
    @through_row
    def process_tensor(self, name, tensor):
        self.measure(name, tensor)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (GradientGeometry, True),
        (Changed, False),
        (ChangedAbove, False),
        (ChangedBeside, False),
        (OnlyDerives, True),
        (ChangesSomethingElse, True),
        (KnowsWhatItDoes, True),
        (ForgetsTheRequest, False),
        (MakesTheRowItself, True),
    ],
)
def test_whoever_replaces_what_takes_tensors_is_not_measured_for(kind, expected):
    assert is_measured(kind(True, False, True)) is expected


def test_preprocessors_of_rows_are_measured_for_and_others_are_not(keeper):
    assert is_measured(OutputNorm(False, True, False, None))
    assert is_measured(GradientActivation(True, True))
    assert not is_measured(keeper)
    assert not is_measured(None)


def test_columns_that_come_otherwise_are_not_asked_for_by_name():
    with pytest.raises(OptionError, match=r"choose from LARGEST, WEIGHT; ACTIVE is in rows of: .*Request\(rates=...\)"):
        Request(columns=frozenset({Column.ACTIVE}))
    assert Column.LARGEST in Request().lacks
    assert (
        Request(rates=(0.0, False), correlation="exact", columns=frozenset({Column.LARGEST, Column.WEIGHT})).lacks
        == frozenset()
    )
