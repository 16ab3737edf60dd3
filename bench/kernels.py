"""How near the fused kernels come to what the memory of a GPU can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

Launch = Callable[[], Any]
REPEATS = 20
MANY = 128
WIDTH_OF_PIECES = 1024


class Kernel(NamedTuple):
    """A kernel on a tensor, and how often each byte of that tensor is read or written; beside it, float32 copies."""

    name: str
    traffic: int
    launch: Callable[[Tensor], Launch]
    copies: int = 0

    def moved(self, x: Tensor) -> int:
        """Bytes that are read and written."""
        return self.traffic * x.nbytes + self.copies * 4 * x.numel()

    def tensors(self) -> list[tuple[int, ...]]:
        """Shapes to try: a layer's outputs, and a long vector."""
        return [(64, 1024, 3072), (16, 1024, 50304)] if "output" in self.name else [(2**28,)]


def copy(x: Tensor) -> Launch:
    """The ceiling of kernels that write."""
    return partial(torch.empty_like(x).copy_, x)


def read(x: Tensor) -> Launch:
    """The ceiling of kernels that only read."""
    return partial(torch.linalg.vector_norm, x, dtype=torch.float32)


def sums() -> Tensor:
    """Rows to write to: kernels expect zeros."""
    from monitorch.engine.columns import WIDTH

    return torch.zeros(MANY, WIDTH, dtype=torch.float64, device="cuda")


def single_kernels() -> Iterator[Kernel]:
    """Those that look at one tensor."""
    from monitorch.engine.kernels import fused

    def output(x: Tensor, channel_dim: int | None) -> Launch:
        scratch = torch.zeros(fused.scratch_size(x, channel_dim), dtype=torch.float64, device="cuda")
        return partial(fused.OutputReader(x, channel_dim, 1e-8, scratch), x, sums(), 0)

    def geometry(x: Tensor, follows: bool) -> Launch:
        previous = torch.zeros_like(x) if follows else None
        return partial(fused.GeometryReader(x, previous), x, sums(), 0, follows)

    def sketch(x: Tensor) -> Launch:
        state = torch.zeros(2, fused.SKETCH, device="cuda")
        return partial(fused.SketchReader(x, state), x, sums(), 0, True)

    yield Kernel("output norms", 1, partial(output, channel_dim=None))
    yield Kernel("output norms and rates", 1, partial(output, channel_dim=-1))
    yield Kernel("norm", 1, partial(geometry, follows=False))
    yield Kernel("norm and correlation", 3, partial(geometry, follows=True))
    yield Kernel("norm and sketched correlation", 1, sketch)


def many_kernels() -> Iterator[Kernel]:
    """Those that look at all parameters of a model, here at matrices that are pieces of one tensor."""
    from monitorch.engine.kernels import reference
    from monitorch.engine.kernels.fused_many import ManyGradients, ManySketches, ManyUpdates

    def pieces(x: Tensor) -> list[Tensor]:
        return list(x.view(MANY, -1, min(WIDTH_OF_PIECES, x.numel() // MANY)))

    def gradients(x: Tensor, eps: float | None) -> Launch:
        now, before = pieces(x), pieces(torch.zeros_like(x))
        return partial(ManyGradients(), now, before, [True] * len(now), eps, sums(), 0)

    def updates(x: Tensor) -> Launch:
        now, before = pieces(x), pieces(torch.zeros_like(x))
        previous = pieces(torch.zeros_like(x, dtype=torch.float32))
        return partial(ManyUpdates(), now, before, previous, [True] * len(now), sums(), 0)

    def sketched(x: Tensor) -> Launch:
        now = pieces(x)
        states = list(torch.zeros(len(now), 2, reference.SKETCH, dtype=torch.float64, device="cuda"))
        return partial(ManySketches(), now, states, [True] * len(now), sums(), 0)

    yield Kernel("many: gradients", 3, partial(gradients, eps=None))
    yield Kernel("many: gradients and rates", 3, partial(gradients, eps=1e-8))
    yield Kernel("many: updates", 2, updates, copies=2)
    yield Kernel("many: sketched updates", 1, sketched)


def measure(device: str) -> list[dict[str, Any]]:
    """A row per kernel and tensor, after those of the ceilings."""
    if device != "cuda":
        return [{"kernel": "all", "tensor": "", "problem": "unavailable: no GPU"}]
    rows = []
    ceilings: dict[tuple[bool, torch.dtype], float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        for kernel in (Kernel("torch copy", 2, copy), Kernel("torch read", 1, read)):
            rows.append(figures(kernel, (2**28,), dtype))
            ceilings[kernel.traffic > 1, dtype] = rows[-1]["tb_per_s"]
    for kernel in chain(single_kernels(), many_kernels()):
        for shape in kernel.tensors():
            for dtype in (torch.float32, torch.bfloat16):
                row = figures(kernel, shape, dtype)
                if "tb_per_s" in row:
                    row["of_ceiling"] = row["tb_per_s"] / ceilings[kernel.traffic > 1, dtype]
                rows.append(row)
    return rows


def figures(kernel: Kernel, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    """Speed on a tensor too large for any cache, and what a call costs the host on a tiny one."""
    name = f"{'x'.join(map(str, shape))} {str(dtype).removeprefix('torch.')}"
    row: dict[str, Any] = {"kernel": kernel.name, "tensor": name}
    try:
        x = torch.randn(shape, device="cuda", dtype=dtype)
        milliseconds = device_time(kernel.launch(x))
        small = torch.randn([min(length, 256) for length in shape], device="cuda", dtype=dtype)
        host = host_time(kernel.launch(small)) * 1e6
    except Exception as error:
        return {**row, "problem": f"failed: {type(error).__name__}: {error}"}
    speed = kernel.moved(x) / milliseconds / 1e9
    return {**row, "ms": milliseconds, "tb_per_s": speed, "host_us": host}


def device_time(launch: Launch) -> float:
    """Milliseconds of one launch on the device."""
    launch()
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(REPEATS):
        launch()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / REPEATS


def host_time(launch: Launch) -> float:
    """Seconds until a call returns, without waiting for its result."""
    launch()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(100):
        launch()
    return (time.perf_counter() - start) / 100
