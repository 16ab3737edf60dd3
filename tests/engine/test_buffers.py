"""Rows wait on their device, in order, and reach the sites they belong to."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from monitorch.engine.buffers import DeviceBuffer, HostBuffer, Ledger, Note
from monitorch.engine.columns import (
    ACTIVE,
    BATCH,
    CHANNELS,
    DEAD,
    DOT,
    FOLLOWS,
    NORMS,
    SIZE,
    SQUARES,
    UNIT,
)
from monitorch.engine.kernels import reference
from monitorch.numerical import device_page
from monitorch.numerical.waiting import HostCopy

CPU = torch.device("cpu")


class Place:
    """A site that keeps its rows and their tags."""

    eps, channel_dim, rates, sketched, in_graph = 0.5, 1, False, False, False
    previous = before = reader = None
    key = ()

    def __init__(self, **kept):
        self.rows, self.tags = np.zeros((0, 12)), []
        self.__dict__.update(kept)

    def knows(self, x):
        return False

    def guarded(self, action, *data):
        return action(*data)

    def deliver(self, rows, tags):
        self.rows, self.tags = np.concatenate([self.rows, rows]), [*self.tags, *tags]

    def note(self, tag=0):
        return Note(self, tag, 0)

    def lengths(self):
        return np.sqrt(self.rows[:, SQUARES]) * self.rows[:, UNIT]


def read(page):
    HostCopy(page.parcels()).deliver()


@pytest.fixture(params=[HostBuffer, lambda: DeviceBuffer(CPU)], ids=["host", "device"])
def page(request):
    return request.param()


@pytest.fixture
def small_page(monkeypatch):
    """A page of a device that has room for five rows."""
    monkeypatch.setattr(device_page, "CAPACITY", 5)
    return DeviceBuffer(CPU)


def test_outputs(page):
    site, x = Place(), torch.randn(4, 3, 5)
    x[:, 1] = 0.25
    page.output(site.note(tag=3), x)
    read(page)
    [row], array = site.rows, x.double().numpy()
    assert site.tags == [3]
    assert row[NORMS] == pytest.approx(np.linalg.norm(array.reshape(4, -1), axis=1).sum(), rel=1e-6)
    assert row[[BATCH, CHANNELS, SIZE]].tolist() == [4, 3, 60]
    assert row[ACTIVE] == (abs(array) > 0.5).sum()
    assert row[DEAD] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients_are_compared_with_those_before_and_replace_them(page, dtype):
    sites = [Place(previous=torch.zeros(shape, dtype=dtype)) for shape in ((3, 4), (5,))]
    series = [[torch.randn_like(site.previous) for site in sites] for _ in range(3)]
    for number, tensors in enumerate(series):
        page.gradients([site.note() for site in sites], tensors, [number > 0] * 2)
    read(page)
    for index, site in enumerate(sites):
        arrays = [tensors[index].double().numpy() for tensors in series]
        assert site.lengths() == pytest.approx([np.linalg.norm(array) for array in arrays], rel=1e-6)
        assert site.rows[:, FOLLOWS].tolist() == [0, 1, 1]
        dots = [(first * second).sum() for first, second in pairwise(arrays)]
        units = site.rows[1:, UNIT] * site.rows[:-1, UNIT]
        assert site.rows[1:, DOT] * units == pytest.approx(np.array(dots), rel=1e-5)
        assert torch.equal(site.previous, series[-1][index])


def test_rates_of_gradients(page):
    site, x = Place(rates=True), torch.randn(4, 6)
    x[2] = 0.1
    page.geometry(site.note(), x, False)
    read(page)
    array = x.double().numpy()
    assert site.rows[0, [ACTIVE, DEAD, CHANNELS]].tolist() == [(abs(array) > 0.5).sum(), 1, 4]


@pytest.mark.parametrize("sketched", [False, True])
def test_updates_are_measured_from_the_copy_and_compared_with_the_one_before(page, sketched):
    start = torch.randn(70, 70)
    kept = torch.zeros(2, 4096) if sketched else torch.zeros(70, 70)
    site = Place(before=start.clone(), previous=kept, sketched=sketched)
    ways = [torch.randn(70, 70)]
    ways.append(ways[0] + torch.randn(70, 70))
    for number, way in enumerate(ways):
        before, start = start, start + way
        site.before.copy_(before)
        page.updates([site.note()], [start], [number > 0])
    read(page)
    arrays = [way.double().numpy() for way in ways]
    assert site.lengths() == pytest.approx([np.linalg.norm(array) for array in arrays], rel=1e-5)
    cosine = site.rows[1, DOT] / np.sqrt(site.rows[0, SQUARES] * site.rows[1, SQUARES])
    truth = (arrays[0] * arrays[1]).sum() / np.prod([np.linalg.norm(array) for array in arrays])
    assert cosine == pytest.approx(truth, abs=5 * 0.022 if sketched else 1e-5)
    assert torch.equal(site.before, before)


def test_rows_are_given_away_once(page):
    site = Place()
    page.output(site.note(), torch.ones(1, 2))
    read(page)
    read(page)
    assert page.parcels() == []
    assert len(site.rows) == 1


def test_each_site_gets_its_own_rows_in_order(page):
    first, second = Place(), Place()
    for number in range(1, 7):
        site = second if number % 3 == 0 else first
        page.geometry(site.note(tag=number), torch.tensor([float(number)]), False)
    read(page)
    assert (first.lengths().tolist(), first.tags) == ([1, 2, 4, 5], [1, 2, 4, 5])
    assert (second.lengths().tolist(), second.tags) == ([3, 6], [3, 6])


@pytest.mark.parametrize("count", [4, 5, 6, 10, 23])
def test_a_full_page_moves_on_and_loses_nothing(small_page, count):
    site = Place()
    for number in range(count):
        small_page.geometry(site.note(tag=number % 4), torch.tensor([float(number)]), False)
    assert len(small_page.notes) <= 5
    read(small_page)
    assert site.lengths().tolist() == list(range(count))
    assert site.tags == [number % 4 for number in range(count)]
    assert not small_page.block.any()


def test_a_row_that_is_used_again_holds_nothing_of_the_last_time(small_page):
    output, gradient = Place(), Place()
    for _ in range(2):
        small_page.output(output.note(), torch.ones(1, 2))
    read(small_page)
    small_page.geometry(gradient.note(), torch.ones(3), False)
    read(small_page)
    assert gradient.rows[0, [NORMS, BATCH, ACTIVE, SIZE]].tolist() == [0, 0, 0, 3]


def test_many_gradients_that_do_not_fit_any_more_follow_on_the_next_page(small_page):
    sites = [Place() for _ in range(4)]
    for number in range(3):
        tensors = [torch.tensor([10.0 * number + index]) for index in range(4)]
        small_page.gradients([site.note() for site in sites], tensors, [False] * 4)
    read(small_page)
    assert [site.lengths().tolist() for site in sites] == [[index, 10 + index, 20 + index] for index in range(4)]


def test_a_ledger_has_one_page_for_each_device():
    ledger, site = Ledger(), Place()
    assert isinstance(ledger.page(CPU), HostBuffer)
    assert ledger.page(CPU) is ledger.page(torch.device("cpu"))
    assert isinstance(ledger.page(torch.device("meta")), DeviceBuffer)
    ledger.page(CPU).output(site.note(), torch.ones(1, 4))
    ledger.deliver()
    assert site.lengths().tolist() == [2.0]


def test_rows_kept_for_others_are_handed_out_when_those_have_left():
    ledger, site = Ledger(), Place()
    ledger.joint.enrol(site, "output", "layer")
    ledger.joint.keep([site.note()], reference.geometry(torch.ones(4), None, None)[None])
    ledger.deliver()
    assert site.lengths().tolist() == [2.0]
