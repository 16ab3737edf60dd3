"""One pass over a CUDA tensor in one Triton kernel, its row of sums written on the device."""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..allocation import lasting
from ..columns import WIDTH, Column, bits
from .device import geometry_kernel
from .device_facts import FOUND, facts_kernel
from .device_output import IN_COLUMNS, IN_ROWS, NO_CHANNELS, OF_ONE, OF_ROWS, OF_SEVERAL, output_kernel
from .device_rows import rows_kernel
from .device_sketch import sketch_kernel
from .host_pieces import float32_below
from .launch import Launcher
from .reference import SIGNS, SKETCH
from .triton_import import AVAILABLE, tl

__all__ = ["AVAILABLE", "GeometryReader", "OutputReader", "SketchReader", "scratch_size", "supports", "whole_facts"]

ROW_BYTES = 8 * WIDTH

DTYPES: dict[torch.dtype, Any] = (
    {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16} if AVAILABLE else {}
)
"""What Triton calls the dtypes that the kernels read."""

FILLED = bits([Column.LARGEST])
"""The columns that these kernels fill on request. If others are wanted, the reference measures the tensor, in more
passes."""


def can_fill(wanted: int) -> bool:
    """Whether there are kernels here, and they fill all columns that are wanted."""
    return AVAILABLE and not wanted & ~FILLED


def supports(x: Tensor) -> bool:
    """Whether the kernels here can read ``x``: on a GPU, float32 or shorter, without gaps in memory."""
    if not x.is_cuda or x.dtype not in DTYPES or x.layout is not torch.strided:
        return False
    return (x.is_contiguous() or _is_dense(x.shape, x.stride())) and x.numel() > 0 and _works(x.get_device())


@lru_cache(maxsize=64)
def _works(device: int) -> bool:
    """Whether kernels compile and run on the device: Triton needs a C compiler, and a GPU that is not too old."""
    try:
        place = torch.device("cuda", device)
        x = torch.zeros(1, dtype=torch.float32, device=place)
        block = torch.zeros(1, WIDTH, dtype=torch.float64, device=place)
        GeometryReader(x, None)(x, block, 0, False)
    except Exception:
        return False
    return True


@lru_cache(maxsize=4096)
def _is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the elements fill their memory without gaps, in any order of dimensions."""
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True


@lru_cache(maxsize=64)
def threshold(eps: float) -> float:
    """The largest float32 that is not above ``eps``, so that comparing in float32 gives the same result."""
    return float(float32_below(eps))


@lru_cache(maxsize=16)
def processors(device: int) -> int:
    """How many multiprocessors the device has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


# measured on an H200: elements per tile, warps per program, tiles read at once, programs per multiprocessor
TILE, WARPS, UNROLL, WAVES = 1024, 4, 4, 4
GEOMETRY_TILE, GEOMETRY_WARPS, GEOMETRY_WAVES = 4096, 2, 12
SKETCH_WARPS, SKETCH_WAVES = 16, 2
FACTS_TILE, FACTS_WARPS, FACTS_WAVES = 2048, 8, 8


class Plan(NamedTuple):
    """How an output of one shape is read, see :func:`~.device_output.output_kernel`."""

    device: int
    copy: bool  # whether the samples are interleaved in memory
    launchers: tuple[Launcher, Launcher]  # for any address, for aligned ones
    programs: int
    numbers: tuple[int, ...]


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()


def _matrix(x: Tensor, channel_dim: int | None) -> tuple[int, int, int, int]:
    """Memory of ``x`` as a matrix: which of its sides are channels, rows per sample, their length, channels."""
    batch, per_sample = x.shape[0], x.numel() // x.shape[0]
    if channel_dim is None:
        return NO_CHANNELS, 1, per_sample, 0
    channels = x.shape[channel_dim]
    if channel_dim % x.dim() == 0:
        return IN_ROWS, 1, per_sample, batch
    inner = x.stride(channel_dim) if channels > 1 else per_sample
    if inner == 1:
        return IN_COLUMNS, per_sample // channels, channels, channels
    return IN_ROWS, per_sample // inner, inner, channels


class Tiling(NamedTuple):
    """How much of a matrix one program reads."""

    height: int
    breadth: int
    steps: int
    whole: bool  # whether rows are read by one program each

    @property
    def elements(self) -> int:
        return self.height * self.breadth * self.steps


def _tiling(flags: int, single: bool, span: int, length: int, size: int, wanted: int) -> Tiling:
    """Programs of about ``wanted`` elements, made of tiles of ``size`` and as many steps as the matrix allows."""
    if flags == IN_COLUMNS and single:
        even = length & -length
        breadth = min(even, 256) if even >= 64 else 256
    elif flags == IN_COLUMNS:  # long rows, since each row costs an atomic
        breadth = min(max(32, _power(length)), 4 * TILE)
    else:
        breadth = min(_power(length), TILE)
    height = max(1, size // breadth)
    reach = -(-span // height) if flags == IN_COLUMNS else -(-length // breadth)
    steps = 1 if flags == IN_COLUMNS and not single else max(1, min(wanted // (height * breadth), reach))
    if steps > UNROLL:
        steps -= steps % UNROLL
    return Tiling(height, breadth, steps, breadth * (1 if flags == IN_COLUMNS else steps) >= length)


@lru_cache(maxsize=1024)
def _plan(shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, channel_dim: int | None, device: int) -> Plan:
    """Choose tiles and programs; programs stay within a sample if samples are large."""
    x = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    batch = shape[0]
    copy = batch > 1 and stride[0] * batch != x.numel()
    flags, group, length, channels = _matrix(x.contiguous() if copy else x, channel_dim)
    if group == 1 and flags != IN_ROWS and length <= 4 * TILE and batch > 1:
        return Plan(device, copy, *_rows_plan(batch, length, flags, dtype, x.numel() // (WAVES * processors(device))))
    single = group * length >= (16 if flags == IN_COLUMNS else 4) * TILE and (flags != IN_COLUMNS or group >= 16)
    span = group if single else batch * group
    wanted = x.numel() // (WAVES * processors(device))
    sizes = [TILE] if single else [TILE, 2 * TILE, 4 * TILE]
    tilings = [_tiling(flags, single, span, length, size, wanted) for size in sizes]
    tiling = next((t for t in tilings if t.elements >= wanted), tilings[-1])
    height, breadth, steps, whole = tiling
    unroll = 0 if steps == 1 else UNROLL if steps % UNROLL == 0 else 1
    rows, columns = (height * steps, breadth) if flags == IN_COLUMNS else (height, breadth * steps)
    across = -(-length // columns)
    programs = across * -(-span // rows) * (batch if single else 1)
    sums = OF_ONE if single else OF_ROWS if whole and group == 1 else OF_SEVERAL
    warps = WARPS if height * breadth < 4 * TILE else 2 * WARPS
    constants = (flags, sums, length % columns == 0, height, breadth, unroll)
    launchers = _launchers(output_kernel, warps, dtype, length, *constants)
    return Plan(device, copy, launchers, programs, (batch, span, group, length, channels, steps, across))


def _rows_plan(batch: int, length: int, flags: int, dtype: torch.dtype, wanted: int) -> tuple[Any, int, Any]:
    """Launchers, programs and numbers for samples that are rows of a tile each."""
    breadth = max(32, _power(length))
    height = max(1, max(TILE, min(_power(wanted), 4 * TILE)) // breadth)
    steps = max(1, wanted // (height * breadth))
    constants = (flags, length == breadth, height, breadth)
    launchers = _launchers(rows_kernel, WARPS if height * breadth < 4 * TILE else 2 * WARPS, dtype, length, *constants)
    return launchers, -(-batch // (height * steps)), (batch, length, steps)


def _launchers(kernel: Any, warps: int, dtype: torch.dtype, length: int, *constants: Any) -> tuple[Launcher, Launcher]:
    """For any address, and for aligned ones."""
    anywhere, aligned = (
        _launcher(kernel, warps, DTYPES[dtype], aligned and length % 16 == 0, *constants) for aligned in (False, True)
    )
    return anywhere, aligned


@lru_cache(maxsize=1024)
def _launcher(kernel: Any, warps: int, *constants: Any) -> Launcher:
    return Launcher(kernel, warps, *constants)


def scratch_size(x: Tensor, channel_dim: int | None) -> int:
    """How many float64 zeros an :class:`OutputReader` needs as its scratch."""
    return 1 + x.shape[0] + (0 if channel_dim is None else -(-x.shape[channel_dim] // 64))


class OutputReader:
    """Writes the rows of outputs with the layout of ``x``; whatever they share is computed once.

    Args:
        scratch: zeros before and after each call, see :func:`scratch_size`.
    """

    __slots__ = ("_arguments", "_plan", "_scratch")

    def __init__(self, x: Tensor, channel_dim: int | None, eps: float, scratch: Tensor) -> None:
        self._plan = _plan(x.shape, x.stride(), x.dtype, channel_dim, x.get_device())
        self._scratch = scratch  # kept alive: the kernel has only its address
        self._arguments = (threshold(eps), *self._plan.numbers)

    def __call__(self, x: Tensor, block: Tensor, index: int) -> None:
        """Write the row of ``x``."""
        plan = self._plan
        if plan.copy:
            x = x.contiguous()
        address = x.data_ptr()
        launch = plan.launchers[address % 16 == 0]
        row = block.data_ptr() + index * ROW_BYTES
        launch(plan.device, plan.programs, address, self._scratch.data_ptr(), row, *self._arguments)


@lru_cache(maxsize=64)
def _geometry_launcher(dtype: torch.dtype, aligned: bool, keep: bool) -> Launcher:
    return Launcher(geometry_kernel, GEOMETRY_WARPS, DTYPES[dtype], aligned, keep, GEOMETRY_TILE)


class GeometryReader:
    """Writes the rows of tensors like ``x``, and copies each of them to ``previous``."""

    __slots__ = ("_device", "_keeps", "_launchers", "_previous", "_programs", "_size")

    def __init__(self, x: Tensor, previous: Tensor | None) -> None:
        self._previous, self._keeps = previous, previous is not None
        self._device, self._size = x.get_device(), x.numel()
        self._launchers = tuple(_geometry_launcher(x.dtype, aligned, self._keeps) for aligned in (False, True))
        self._programs = min(-(-self._size // GEOMETRY_TILE), GEOMETRY_WAVES * processors(self._device))

    def __call__(self, x: Tensor, block: Tensor, index: int, follows: bool) -> None:
        """Write the row of ``x``, compared with the tensor before if it ``follows``."""
        address, kept = x.data_ptr(), 0 if self._previous is None else self._previous.data_ptr()
        launch = self._launchers[(address | kept) % 16 == 0]
        row = block.data_ptr() + index * ROW_BYTES
        launch(self._device, self._programs, address, kept, row, self._size, int(follows and self._keeps))


@lru_cache(maxsize=64)
def _facts_launcher(dtype: torch.dtype, aligned: bool) -> Launcher:
    return Launcher(facts_kernel, FACTS_WARPS, DTYPES[dtype], aligned, FACTS_TILE)


def whole_facts(x: Tensor) -> Tensor | None:
    """The finite extremes of a tensor, infinite if there are none, and how many elements are zero, not finite and NaN.

    In float64, from one pass; None if no kernel can read the tensor.
    """
    if not AVAILABLE or not supports(x):
        return None
    scratch = torch.zeros(FOUND + 1, dtype=torch.int64, device=x.device)
    found = torch.empty(FOUND, dtype=torch.float64, device=x.device)
    device, address, size = x.get_device(), x.data_ptr(), x.numel()
    programs = min(-(-size // FACTS_TILE), FACTS_WAVES * processors(device))
    launch = _facts_launcher(x.dtype, address % 16 == 0)
    launch(device, programs, address, scratch.data_ptr(), found.data_ptr(), size)
    return found


@lru_cache(maxsize=16)
def pool_of_signs(device: int) -> Tensor:
    """The pool of signs, its beginning repeated so that no index wraps."""
    place = torch.device("cuda", device)
    return lasting(lambda: torch.cat([SIGNS, SIGNS[:SKETCH]]).to(place), place, in_graph=True)


@lru_cache(maxsize=64)
def _sketch_launcher(dtype: torch.dtype, aligned: bool) -> Launcher:
    return Launcher(sketch_kernel, SKETCH_WARPS, DTYPES[dtype], aligned)


class SketchReader:
    """Writes the rows of tensors like ``x`` with DOT estimated.

    Args:
        state: its first row becomes the sketch of each tensor, the second stays zero.
    """

    __slots__ = ("_device", "_launchers", "_programs", "_signs", "_size", "_state")

    def __init__(self, x: Tensor, state: Tensor) -> None:
        self._device, self._size = x.get_device(), x.numel()
        self._state, self._signs = state, pool_of_signs(self._device)
        self._launchers = tuple(_sketch_launcher(x.dtype, aligned) for aligned in (False, True))
        self._programs = min(-(-self._size // (4 * SKETCH)), SKETCH_WAVES * processors(self._device))

    def __call__(self, x: Tensor, block: Tensor, index: int, follows: bool) -> None:
        """Write the row of ``x``, compared with the tensor before if it ``follows``."""
        address = x.data_ptr()
        places = address, self._state.data_ptr(), self._signs.data_ptr(), block.data_ptr() + index * ROW_BYTES
        self._launchers[address % 16 == 0](self._device, self._programs, *places, self._size, int(follows))
