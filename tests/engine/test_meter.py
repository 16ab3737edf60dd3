"""A site grants wishes, keeps what the next pass is compared with, and hands rows to its takers."""

import numpy as np
import pytest
import torch

from monitorch.engine.columns import UNIT, WIDTH
from monitorch.engine.meter import LEAD, Request, Site, asks, subscribe
from monitorch.errors import SkippedSample
from monitorch.preprocessor import GradientGeometry


class Taker:
    """A gatherer and a preprocessor in one, that keeps what it is told and given."""

    def __init__(self, ask):
        self._ask, self.name, self.reports, self.taken = ask, "layer", [], []

    def ask(self):
        return self._ask

    def report(self, error, data):
        self.reports.append(str(error))

    def guarded(self, action, *data):
        return action(*data)

    def take(self, name, rows, is_lead):
        self.taken.append((name, rows[:, UNIT].tolist(), is_lead.tolist()))


EXACT, SKETCH, PLAIN = Request(correlation="exact"), Request(correlation="sketch"), Request()
SMALL, LARGE = torch.ones(2, 3), torch.ones(65, 64)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([SMALL, SMALL, SMALL], [False, True, True]),
        ([SMALL, LARGE, LARGE], [False, False, True]),
        ([SMALL, SMALL.half(), SMALL.bfloat16(), SMALL], [False, True, True, True]),
        ([SMALL, SMALL.double(), SMALL.double(), SMALL], [False, False, True, False]),
        ([torch.ones(()), torch.ones(1)], [False, False]),
    ],
    ids=["same", "other shape", "other dtype", "in another unit", "scalar"],
)
@pytest.mark.parametrize("ask", [EXACT, SKETCH])
def test_a_tensor_follows_one_of_the_same_shape(ask, tensors, expected):
    site = Site("layer", ask)
    assert [site.follows(tensor, 0) for tensor in tensors] == expected


@pytest.mark.parametrize(
    ("ask", "expected"), [(EXACT, [False, True, True, True]), (SKETCH, [False, False, True, False])]
)
def test_a_sketch_does_not_follow_one_of_another_order_in_memory(ask, expected):
    site, other = Site("layer", ask), LARGE.T.contiguous().T
    assert [site.follows(tensor, 0) for tensor in (LARGE, other, other, LARGE)] == expected


def test_nothing_is_kept_where_nothing_is_compared():
    site = Site("layer", PLAIN)
    assert [site.follows(SMALL, 0) for _ in range(3)] == [False] * 3
    assert site.previous is None


def test_a_gap_or_an_interruption_ends_the_series():
    site = Site("layer", EXACT)
    assert [site.follows(SMALL, gap) for gap in (0, 0, 1, 1, 3)] == [False, True, False, True, False]
    site.interrupted = True
    assert [site.follows(SMALL, 3) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("ask", "tensor", "size"), [(EXACT, LARGE, 65 * 64 * 4), (SKETCH, LARGE, 2 * 4096 * 4), (SKETCH, SMALL, 6 * 4)]
)
def test_what_is_kept_is_a_copy_or_a_sketch_if_that_is_smaller(ask, tensor, size):
    site = Site("layer", ask)
    site.follows(tensor, 0)
    assert site.previous.nbytes == size
    assert site.sketched is (size == 2 * 4096 * 4)


def test_what_was_kept_in_another_layout_is_kept_with_its_numbers():
    site, tensor = Site("layer", EXACT), torch.randn(3, 4)
    site.follows(tensor, 0)
    site.previous.copy_(tensor)
    assert site.follows(torch.empty(4, 3, dtype=torch.bfloat16).T, 0)
    assert (site.previous.dtype, site.previous.stride()) == (torch.bfloat16, (1, 3))
    torch.testing.assert_close(site.previous, tensor.bfloat16())


@pytest.mark.parametrize(
    ("last", "dim"), [(True, -1), (False, 1), (lambda name: name == "layer", -1), (lambda name: name != "layer", 1)]
)
def test_where_channels_are_is_asked_once(last, dim):
    assert Site("layer", Request(rates=(0.5, last))).channel_dim == dim
    assert Site("layer", Request(rates=(0.5, last))).eps == 0.5
    assert Site("layer", PLAIN).channel_dim is None


def rows(*units):
    found = np.zeros((len(units), WIDTH))
    found[:, UNIT] = units
    return found


def test_takers_get_the_passes_they_asked_for_and_learn_which_rows_lead():
    some, everything = Taker(Request(passes=frozenset({3}))), Taker(PLAIN)
    site = Site("layer", PLAIN)
    site.takers += [(some, some), (everything, everything)]
    site.deliver(rows(1, 2, 3, 4), [3, 0, 3 | LEAD, 2])
    assert some.taken == [("layer", [1, 3], [False, True])]
    assert everything.taken == [("layer", [1, 2, 3, 4], [False, False, True, False])]


def test_lengths_are_multiplied_by_the_share_of_the_loss_once():
    takers = [Taker(PLAIN), Taker(PLAIN)]
    site = Site("layer", PLAIN, share=2.0)
    site.takers += [(taker, taker) for taker in takers]
    site.deliver(rows(1, 3), [0, 0])
    assert [taker.taken for taker in takers] == [[("layer", [2, 6], [False, False])]] * 2


def test_after_an_error_nothing_is_called_any_more_and_after_a_skipped_sample_it_is():
    taker, calls = Taker(PLAIN), []

    def act(error):
        calls.append(error)
        if error is not None:
            raise error

    site = Site("layer", PLAIN)
    site.takers.append((taker, taker))
    for error in (None, SkippedSample("too short"), None, ValueError("broken"), None):
        site.guarded(act, error)
    assert taker.reports == ["too short", "broken"]
    assert len(calls) == 4


def test_wishes_that_fit_are_joined_and_sites_close_with_the_last_taker():
    sites = []
    plain, exact = Taker(PLAIN), Taker(Request(correlation="exact", passes=frozenset({3})))
    first, second = (subscribe(sites, "layer", taker, taker) for taker in (plain, exact))
    assert len(sites) == 1
    assert (first.site.ask.correlation, first.site.ask.passes) == ("exact", frozenset(range(4)))
    subscribe(sites, "layer", plain, plain, output_index=1)
    assert [site.ask.output_index for site in sites] == [None, 1]
    first.remove()
    first.remove()
    assert second.site in sites
    second.remove()
    assert [site.ask.output_index for site in sites] == [1]


def test_a_class_that_inherits_its_wish_is_not_measured_for():
    class Changed(GradientGeometry):
        def process_tensor(self, name, tensor):
            super().process_tensor(name, 2 * tensor)

    assert asks(GradientGeometry(True, False, True))
    assert not asks(Changed(True, False, True))
