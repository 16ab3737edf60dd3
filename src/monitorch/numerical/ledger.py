"""Rows of raw sums in the order they were measured; each stays on its device until somebody reads.

A page belongs to one device. Its verbs measure a tensor, with the kernel that suits it, and write one row; nothing
waits. Reading brings all rows of a device to the host with one copy and hands them to the sites they belong to.
"""

import torch

from .device_page import DevicePage
from .host_page import HostPage
from .transfer import Parcel, Transfer


class Ledger:
    """One page per device."""

    def __init__(self) -> None:
        self._pages: dict[torch.device, HostPage | DevicePage] = {}

    def page(self, device: torch.device) -> HostPage | DevicePage:
        """Where tensors of a device are measured."""
        page = self._pages.get(device)
        if page is None:
            page = self._pages[device] = HostPage() if device.type == "cpu" else DevicePage(device)
        return page

    def collect(self, step: int, tag: int, gaps: int) -> None:
        """Take over what CUDA graphs have written, see :meth:`DevicePage.collect`."""
        for page in self._pages.values():
            page.collect(step, tag, gaps)

    def parcels(self) -> list[Parcel]:
        """All rows, to be brought to the host and handed to their sites."""
        return [parcel for page in self._pages.values() for parcel in page.parcels()]

    def deliver(self) -> None:
        """Hand all rows to their sites now, with one copy per device."""
        Transfer(self.parcels()).deliver()
