"""One pass over a CUDA tensor in one Triton kernel, its row of sums written on the device."""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .device import geometry_kernel
from .device_output import output_kernel
from .device_sketch import sketch_kernel
from .launch import Launcher
from .reference import SIGNS, SKETCH
from .row import WIDTH
from .triton_import import AVAILABLE, tl

__all__ = ["AVAILABLE", "geometry", "output", "scratch_size", "sketch", "supports"]

ROW_BYTES = 8 * WIDTH

_DTYPES: dict[torch.dtype, Any] = (
    {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16} if AVAILABLE else {}
)


def supports(x: Tensor) -> bool:
    """Whether the kernels here can read ``x``: on a GPU, float32 or shorter, its elements without gaps in memory."""
    if not x.is_cuda or x.dtype not in _DTYPES or x.layout is not torch.strided:
        return False
    return (x.is_contiguous() or _is_dense(x.shape, x.stride())) and x.numel() > 0 and _works(x.get_device())


@lru_cache(maxsize=64)
def _works(device: int) -> bool:
    """Whether kernels compile and run on the device: Triton needs a C compiler, and not too old a GPU."""
    try:
        place = torch.device("cuda", device)
        geometry(torch.zeros(1, device=place), None, False, torch.zeros(1, WIDTH, dtype=torch.float64, device=place), 0)
    except Exception:
        return False
    return True


@lru_cache(maxsize=4096)
def _is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the elements fill a stretch of memory, in whatever order of the dimensions."""
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True


@lru_cache(maxsize=64)
def threshold(eps: float) -> float:
    """The largest float32 that is not above ``eps``, so that comparing in float32 says the same."""
    near = torch.tensor(eps, dtype=torch.float32)
    return float(near if float(near) <= eps else torch.nextafter(near, torch.tensor(float("-inf"))))


@lru_cache(maxsize=16)
def processors(device: int) -> int:
    """How many multiprocessors the device has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


# measured on an H200: elements per tile, warps per program, tiles read at once, programs per multiprocessor
TILE, WARPS, UNROLL, WAVES = 1024, 4, 4, 4
GEOMETRY_TILE, GEOMETRY_WARPS, GEOMETRY_WAVES = 4096, 2, 12
SKETCH_WARPS, SKETCH_WAVES = 16, 2


class Plan(NamedTuple):
    """How an output of one shape is read, see :func:`~.device_output.output_kernel`."""

    copy: bool  # whether the samples are not one after another in memory
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
        return 0, 1, per_sample, 0
    channels = x.shape[channel_dim]
    if channel_dim % x.dim() == 0:
        return 2, 1, per_sample, batch
    inner = x.stride(channel_dim) if channels > 1 else per_sample
    if inner == 1:
        return 1, per_sample // channels, channels, channels
    return 2, per_sample // inner, inner, channels


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
    """Programs of ``wanted`` elements, as far as tiles of ``size`` and the steps that the matrix allows reach."""
    if flags == 1 and single:
        even = length & -length
        breadth = min(even, 256) if even >= 64 else 256
    elif flags == 1:  # long rows, since every one costs an atomic
        breadth = min(max(32, _power(length)), 4 * TILE)
    else:
        breadth = min(_power(length), TILE)
    height = max(1, size // breadth)
    reach = -(-span // height) if flags == 1 else -(-length // breadth)
    steps = 1 if flags == 1 and not single else max(1, min(wanted // (height * breadth), reach))
    if steps > UNROLL:
        steps -= steps % UNROLL
    return Tiling(height, breadth, steps, breadth * (1 if flags == 1 else steps) >= length)


@lru_cache(maxsize=1024)
def _plan(shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, channel_dim: int | None, device: int) -> Plan:
    """Choose tiles and programs; they stay in a sample if these are large."""
    x = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    batch = shape[0]
    copy = batch > 1 and stride[0] * batch != x.numel()
    flags, group, length, channels = _matrix(x.contiguous() if copy else x, channel_dim)
    single = group * length >= (16 if flags == 1 else 4) * TILE and (flags != 1 or group >= 16)
    span = group if single else batch * group
    wanted = x.numel() // (WAVES * processors(device))
    sizes = [TILE] if single else [TILE, 2 * TILE, 4 * TILE]
    tilings = [_tiling(flags, single, span, length, size, wanted) for size in sizes]
    tiling = next((t for t in tilings if t.elements >= wanted), tilings[-1])
    height, breadth, steps, whole = tiling
    unroll = 0 if steps == 1 else UNROLL if steps % UNROLL == 0 else 1
    rows, columns = (height * steps, breadth) if flags == 1 else (height, breadth * steps)
    across = -(-length // columns)
    programs = across * -(-span // rows) * (batch if single else 1)
    sums = 1 if single else 2 if whole and group == 1 else 0
    warps = WARPS if height * breadth < 4 * TILE else 2 * WARPS
    constants = (flags, sums, length % columns == 0, height, breadth, unroll)
    anywhere, aligned = (
        _output_launcher(warps, _DTYPES[dtype], aligned and length % 16 == 0, *constants) for aligned in (False, True)
    )
    return Plan(copy, (anywhere, aligned), programs, (batch, span, group, length, channels, steps, across))


@lru_cache(maxsize=1024)
def _output_launcher(warps: int, *constants: Any) -> Launcher:
    return Launcher(output_kernel, warps, *constants)


def scratch_size(x: Tensor, channel_dim: int | None) -> int:
    """How many float64 zeros :func:`output` needs as its scratch."""
    return 1 + x.shape[0] + (0 if channel_dim is None else -(-x.shape[channel_dim] // 64))


def output(x: Tensor, channel_dim: int | None, eps: float, block: Tensor, index: int, scratch: Tensor) -> None:
    """Write the row of the output ``x`` of a layer; ``scratch`` is all zeros before and after."""
    device = x.get_device()
    plan = _plan(x.shape, x.stride(), x.dtype, channel_dim, device)
    if plan.copy:
        x = x.contiguous()
    address = x.data_ptr()
    plan.launchers[address % 16 == 0](
        device,
        plan.programs,
        address,
        scratch.data_ptr(),
        block.data_ptr() + index * ROW_BYTES,
        threshold(eps),
        *plan.numbers,
    )


@lru_cache(maxsize=64)
def _geometry_launcher(dtype: torch.dtype, aligned: bool, keep: bool) -> Launcher:
    return Launcher(geometry_kernel, GEOMETRY_WARPS, _DTYPES[dtype], aligned, keep, GEOMETRY_TILE)


def geometry(x: Tensor, previous: Tensor | None, follows: bool, block: Tensor, index: int) -> None:
    """Write the row of ``x``, compared with ``previous`` if it ``follows``; ``previous`` becomes ``x``."""
    device = x.get_device()
    size = x.numel()
    address = x.data_ptr()
    kept = 0 if previous is None else previous.data_ptr()
    launch = _geometry_launcher(x.dtype, (address | kept) % 16 == 0, previous is not None)
    programs = min(-(-size // GEOMETRY_TILE), GEOMETRY_WAVES * processors(device))
    follows = follows and previous is not None
    launch(device, programs, address, kept, block.data_ptr() + index * ROW_BYTES, size, int(follows))


@lru_cache(maxsize=16)
def _signs(device: int) -> Tensor:
    """The pool of signs, its beginning repeated so that no index wraps."""
    return torch.cat([SIGNS, SIGNS[:SKETCH]]).to(torch.device("cuda", device))


@lru_cache(maxsize=16)
def _sketch_launcher(dtype: torch.dtype) -> Launcher:
    return Launcher(sketch_kernel, SKETCH_WARPS, _DTYPES[dtype])


def sketch(x: Tensor, state: Tensor, follows: bool, block: Tensor, index: int) -> None:
    """Write the row of ``x`` with DOT estimated; ``state[0]`` becomes the sketch of ``x``, ``state[1]`` stays zero."""
    device = x.get_device()
    size = x.numel()
    programs = min(-(-size // (16 * SKETCH)), SKETCH_WAVES * processors(device))
    row = block.data_ptr() + index * ROW_BYTES
    launch = _sketch_launcher(x.dtype)
    launch(device, programs, x.data_ptr(), state.data_ptr(), _signs(device).data_ptr(), row, size, int(follows))
