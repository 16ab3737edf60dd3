"""Rows may be put right as they are written, by factors that stay on their device."""

import numpy as np
import pytest
import torch

from monitorch.engine.buffers import DeviceBuffer, HostBuffer, Note
from monitorch.engine.columns import FOLLOWS, SQUARES, UNIT
from monitorch.numerical import device_page, host_page
from monitorch.numerical.waiting import HostCopy

PAGES = {"host": HostBuffer, "device": lambda: DeviceBuffer(torch.device("cpu"))}


class Kept:
    """A site that keeps what it is handed."""

    eps, channel_dim, rates, sketched, in_graph = 0.0, None, False, False, False
    before = reader = None

    def __init__(self):
        self.previous, self.rows = torch.zeros(3), np.zeros((0, 12))

    def guarded(self, action, *data):
        return action(*data)

    def deliver(self, rows, tags):
        self.rows = np.concatenate([self.rows, rows])


@pytest.fixture(params=PAGES.values(), ids=PAGES)
def page(request):
    return request.param()


@pytest.fixture
def site():
    return Kept()


def measure(page, site, *numbers):
    for number in numbers:
        page.geometry(Note(site, 0, 0), torch.full((3,), number), True)


def read(page, site):
    HostCopy(page.parcels()).deliver()
    return (np.sqrt(site.rows[:, SQUARES] / 3) * site.rows[:, UNIT]).tolist(), site.rows[:, FOLLOWS].tolist()


def test_only_rows_inside_the_block_are_corrected(page, site):
    measure(page, site, 1.0)
    with page.corrected(torch.tensor(0.5), torch.tensor(0.0)):
        measure(page, site, 2.0, 4.0)
    measure(page, site, 3.0)
    lengths, follows = read(page, site)
    assert lengths == pytest.approx([1, 1, 2, 3])
    assert follows == [1, 0, 0, 1]


def test_a_factor_of_zero_leaves_rows_out(page, site):
    measure(page, site, 1.0)
    with page.corrected(torch.tensor(0.0)):
        measure(page, site, 2.0)
    assert read(page, site)[0] == pytest.approx([1])


def test_a_block_in_which_nothing_is_written_changes_nothing(page, site):
    measure(page, site, 1.0)
    with page.corrected(torch.tensor(0.5)):
        pass
    assert read(page, site)[0] == pytest.approx([1])


def test_rows_that_leave_the_page_inside_the_block_are_corrected_once(monkeypatch, site):
    for module in (device_page, host_page):
        monkeypatch.setattr(module, "CAPACITY", 3)
    for make in PAGES.values():
        page, site = make(), Kept()
        measure(page, site, 1.0, 1.0)
        with page.corrected(torch.tensor(0.5)):
            measure(page, site, *[2.0] * 5)
        measure(page, site, 1.0)
        assert read(page, site)[0] == pytest.approx([1] * 8)


def test_an_error_inside_the_block_ends_the_correction(page, site):
    with pytest.raises(ZeroDivisionError), page.corrected(torch.tensor(0.5)):
        raise ZeroDivisionError
    measure(page, site, 2.0)
    assert read(page, site)[0] == pytest.approx([2])
