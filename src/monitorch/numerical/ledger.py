"""Rows of raw sums in the order they were measured; each stays on its device until it is read.

A page belongs to one device. Its methods measure a tensor with a suitable kernel and write one row, without waiting.
Reading copies all rows of a device to the CPU with one copy and delivers them to their sites.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from .device_page import DevicePage
from .host_page import HostPage
from .joint_rows import JointRows
from .notes import Note, cut, hand_out
from .sync import several_processes
from .transfer import Parcel, Transfer


class Ledger:
    """One page per device.

    Args:
        joins: with several processes, keep rows until those of all processes are combined.
        before_reading: called before rows are read, to :meth:`collect` what is still missing.
    """

    def __init__(self, *, joins: bool = True, before_reading: Callable[[], None] | None = None) -> None:
        self._before_reading = before_reading
        self._pages: dict[torch.device, HostPage | DevicePage] = {}
        self.joint, self.joins = JointRows(), joins

    def page(self, device: torch.device) -> HostPage | DevicePage:
        """The page that measures tensors of a device."""
        page = self._pages.get(device)
        if page is None:
            page = self._pages[device] = self._new_page(device)
        return page

    def collect(self, step: int, tag: int, gaps: int, unit: Tensor | None = None) -> None:
        """Copy what CUDA graphs have written, in this unit; see :meth:`DevicePage.collect`."""
        for page in self._pages.values():
            with nullcontext() if unit is None else page.corrected(unit):
                page.collect(step, tag, gaps)

    def forget_graphs(self) -> None:
        """Make room for new graphs, after all graphs were dropped."""
        if self._before_reading is not None:
            self._before_reading()
        for page in self._pages.values():
            page.forget_graphs()

    def parcels(self) -> list[Parcel]:
        """All rows, to be copied to the CPU and delivered to their sites."""
        if self._before_reading is not None:
            self._before_reading()
        return [parcel for page in self._pages.values() for parcel in page.parcels()]

    def deliver(self) -> None:
        """Deliver all rows to their sites now, with one copy per device; with several processes they keep waiting."""
        Transfer(self.parcels()).deliver()
        if self.joint.waits and not self._waits_for_others():
            self.joint.merge_ranks({0: self.joint.payload()})  # the other processes have left

    def _new_page(self, device: torch.device) -> HostPage | DevicePage:
        return HostPage(self._receive) if device.type == "cpu" else DevicePage(device, self._receive)

    def _receive(self, notes: Sequence[Note], rows: Tensor) -> None:
        cut(notes, rows)
        (self.joint.keep if self._waits_for_others() else hand_out)(notes, rows)

    def _waits_for_others(self) -> bool:
        return self.joins and several_processes()
