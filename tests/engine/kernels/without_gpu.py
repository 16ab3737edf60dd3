"""Kernels for GPUs on a machine without one: compiled for a GPU that is not there, or interpreted on CPU tensors."""

import inspect
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from monitorch.engine.kernels import fused, fused_many, launch
from monitorch.engine.kernels.reference import SIGNS, SKETCH

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton reads this when it is imported: then it interprets kernels instead of compiling them."""

PROCESSORS = 2
"""Few, so that small tensors are read by several programs which read several tiles each."""

SIGNATURE = {"tl.int64": "i64", "tl.int32": "i32", "tl.float32": "fp32", "tl.float64": "fp64"}


def _reads(x: torch.Tensor) -> bool:
    is_dense = x.is_contiguous() or fused._is_dense(x.shape, x.stride())
    return x.is_cpu and x.dtype in fused.DTYPES and is_dense and x.numel() > 0


def pretend(monkeypatch: Any, launcher: Callable[..., None]) -> None:
    """From now on kernels take CPU tensors; instead of being launched they are handed to ``launcher``."""
    signs = torch.cat([SIGNS, SIGNS[:SKETCH]])
    for module in (fused, fused_many):
        monkeypatch.setattr(module, "pool_of_signs", lambda device: signs)
    monkeypatch.setattr(fused, "supports", _reads)
    monkeypatch.setattr(fused, "processors", lambda device: PROCESSORS)
    monkeypatch.setattr(fused_many._Tabled, "_upload", lambda self, values, device: torch.tensor(values))
    monkeypatch.setattr(fused_many._Tabled, "_launched", lambda self, *used: None)
    monkeypatch.setattr(launch.Launcher, "__call__", launcher)


def parameters(kernel: Any) -> dict[str, str]:
    """The declared type of each parameter."""
    return {name: str(kernel.fn.__annotations__[name]) for name in inspect.signature(kernel.fn).parameters}


def interpret(launcher: Any, device: int, programs: int, *arguments: Any) -> None:
    """Run a kernel in the interpreter, which by itself would take the type of a number from its size."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    kernel = launcher._kernel
    numbers = []
    for declared, number in zip(parameters(kernel).values(), arguments, strict=False):
        kind = getattr(tl, declared.removeprefix("tl."))
        numbers.append(tl.tensor(TensorHandle(np.array([number], declared.removeprefix("tl.")), kind), kind))
    with np.errstate(all="ignore"):  # a GPU says nothing of overflows either
        kernel[(programs,)](*numbers, *launcher._constants, num_warps=launcher._warps)


def compiled(launcher: Any, capability: int) -> Any:
    """What a GPU of this compute capability would run."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, declared = launcher._kernel, parameters(launcher._kernel)
    signature = {name: SIGNATURE.get(kind, "constexpr") for name, kind in declared.items()}
    first = len(declared) - len(launcher._constants)
    constants = {(first + place,): value for place, value in enumerate(launcher._constants)}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": launcher._warps})
