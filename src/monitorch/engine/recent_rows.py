"""Keeps the rows of the last observed steps, for the flight record."""

from collections import deque

import numpy as np

from .buffers import STEP, Info, Infos
from .columns import WIDTH
from .rows import Numbers


class RecentRows:
    """Keeps the rows of the last steps that have any.

    Args:
        steps: how many steps to keep.

    >>> recent = RecentRows(steps=2)
    >>> for step in (3, 7, 9):
    ...     recent.keep(np.array([Info(meter=0, step=step)]), np.zeros((1, WIDTH)))
    >>> infos, rows = recent.read()
    >>> infos[:, STEP].tolist()
    [7, 9]
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._parts: deque[tuple[Infos, Numbers]] = deque()
        self._steps_of_parts: deque[list[int]] = deque()

    def keep(self, infos: Infos, rows: Numbers) -> None:
        """Add rows, which are newer than nearly all of those before.

        The newest part is kept whole, however long: its first step may turn out to matter. So older parts are dropped
        only when they are too old for that step.
        """
        if not len(infos):
            return
        if self._parts:
            self._parts[-1] = _last_steps(*self._parts[-1], self.steps)
            self._steps_of_parts.append(np.unique(self._parts[-1][0][:, STEP]).tolist())
            while self._are_enough_without_the_first():
                self._parts.popleft()
                self._steps_of_parts.popleft()
        self._parts.append((infos, rows))

    def _are_enough_without_the_first(self) -> bool:
        first, *others = self._steps_of_parts
        return len({step for own in others for step in own if step > first[-1]}) >= self.steps

    def read(self, until: int | None = None) -> tuple[Infos, Numbers]:
        """Where each row comes from, see ``Info``, and the rows, in the order in which they were measured.

        Args:
            until: the last step that is wanted.
        """
        if not self._parts:
            return np.zeros((0, len(Info._fields)), np.int64), np.zeros((0, WIDTH))
        infos, rows = (np.concatenate(arrays) for arrays in zip(*list(self._parts), strict=True))
        order = np.argsort(infos[:, STEP], kind="stable")  # norms that stay on a device come later than other rows
        infos, rows = infos[order], rows[order]
        if until is not None:
            is_wanted = infos[:, STEP] <= until
            infos, rows = infos[is_wanted], rows[is_wanted]
        return _last_steps(infos, rows, self.steps)


def _last_steps(infos: Infos, rows: Numbers, count: int) -> tuple[Infos, Numbers]:
    """Copies of the rows of the last ``count`` steps."""
    is_recent = infos[:, STEP] >= np.unique(infos[:, STEP])[-count:].min(initial=np.iinfo(np.int64).max)
    return infos[is_recent], rows[is_recent]
