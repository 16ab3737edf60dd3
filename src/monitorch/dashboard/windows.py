"""Numbers in columns, and their format as bytes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from ..statistic import NONFINITE
from ..store import Run, Window

HIGHEST_RESOLUTION = 4000
PLANES = ("mean", "minimum", "maximum")


class WindowRequest(NamedTuple):
    """Which numbers to send; None for all layers, and for the first and last step."""

    series: tuple[tuple[str, str], ...]
    layers: tuple[str, ...] | None = None
    first: int | None = None
    last: int | None = None
    resolution: int = 500
    planes: tuple[str, ...] = PLANES


class WindowBlock(NamedTuple):
    """The numbers of one statistic."""

    lens: str
    statistic: str
    window: Window
    wanted: tuple[str, ...] = PLANES

    @property
    def is_raw(self) -> bool:
        """Whether each column is one tick, so that mean, minimum and maximum are the same."""
        return bool((self.window.axis.step == self.window.last_step).all())


def blocks(run: Run, request: WindowRequest) -> Iterator[WindowBlock]:
    """The numbers of each statistic; layers that a lens does not know are left out."""
    if not 1 <= request.resolution <= HIGHEST_RESOLUTION:
        raise OptionError(f"resolution={request.resolution} must be a number of columns from 1 to {HIGHEST_RESOLUTION}")
    for plane in request.planes:
        if plane not in PLANES:
            raise OptionError.unknown("plane", plane, PLANES)
    lenses = run.lenses
    for name, statistic in request.series:
        if name not in lenses:
            raise OptionError.unknown("lens", name, lenses)
        lens = lenses[name]
        layers = lens.layers if request.layers is None else [layer for layer in request.layers if layer in lens.layers]
        if not layers:
            continue
        window = run.window(name, statistic, request.first, request.last, request.resolution, layers)
        yield WindowBlock(name, statistic, window, request.planes)


def pack(found: Sequence[WindowBlock]) -> bytes:
    """A JSON header with its length before it, then all axes as float64, then all numbers as float32."""
    header = json.dumps({"blocks": [describe(block) for block in found]}).encode()
    header += b" " * (-(len(header) + 4) % 8)
    pieces = [len(header).to_bytes(4, "little"), header]
    pieces += [np.asarray(axis, "<f8").tobytes() for block in found for axis in axes(block.window)]
    for block in found:
        pieces += [np.asarray(plane, "<f4").tobytes() for plane in planes(block).values()]
    return b"".join(pieces)


def describe(block: WindowBlock) -> Mapping[str, Any]:
    """The description of the bytes of a block."""
    window = block.window
    names = {"lens": block.lens, "statistic": block.statistic, "layers": window.layers}
    return {**names, "columns": len(window.last_step), "raw": block.is_raw, "planes": list(planes(block))}


def axes(window: Window) -> tuple[NDArray[Any], ...]:
    """When columns begin, and where they end."""
    return (*window.axis, window.last_step)


def planes(block: WindowBlock) -> dict[str, NDArray[Any]]:
    """The arrays that are needed, by name."""
    window = block.window
    wanted = PLANES[:1] if block.is_raw else block.wanted
    found: dict[str, NDArray[Any]] = {name: getattr(window, name) for name in wanted}
    return found | {NONFINITE: window.nonfinite} if window.nonfinite.any() else found
