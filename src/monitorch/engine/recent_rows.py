"""The rows of the last observed steps, for whoever wants to know what happened just before."""

from collections import deque

import numpy as np

from .buffers import STEP, Info, Infos
from .columns import WIDTH
from .rows import Numbers


class RecentRows:
    """Keeps the rows of the last steps that have any.

    Args:
        steps: of how many steps.

    >>> recent = RecentRows(steps=2)
    >>> for step in (3, 7, 9):
    ...     recent.keep(np.array([Info(meter=0, step=step)]), np.zeros((1, WIDTH)))
    >>> infos, rows = recent.read()
    >>> infos[:, STEP].tolist()
    [7, 9]
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._parts: deque[tuple[set[int], Infos, Numbers]] = deque()

    def keep(self, infos: Infos, rows: Numbers) -> None:
        """Add rows, which are newer than those before, and forget what is too old."""
        if not len(infos):
            return
        newest = np.unique(infos[:, STEP])[-self.steps :]
        is_recent = infos[:, STEP] >= newest[0]
        self._parts.append((set(newest.tolist()), infos[is_recent], rows[is_recent]))
        while sum(step > max(self._parts[0][0]) for step in self._known()) >= self.steps:
            self._parts.popleft()

    def _known(self) -> set[int]:
        return set().union(*(steps for steps, _, _ in self._parts))

    def read(self) -> tuple[Infos, Numbers]:
        """Where each row comes from, see ``Info``, and the rows, in the order in which they were measured."""
        if not self._parts:
            return np.zeros((0, len(Info._fields)), np.int64), np.zeros((0, WIDTH))
        infos, rows = (np.concatenate(arrays) for arrays in list(zip(*self._parts, strict=True))[1:])
        is_recent = infos[:, STEP] >= np.unique(infos[:, STEP])[-self.steps :][0]
        return infos[is_recent], rows[is_recent]
