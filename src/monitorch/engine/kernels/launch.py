"""Launching a compiled kernel with as little Python as possible."""

from typing import Any

import torch

from ..torch_private import current_device, current_stream

_kernels = 0


def number_of_kernels() -> int:
    """How many kernels were compiled so far, or read from the disk."""
    return _kernels


class Launcher:
    """A kernel with its constants chosen.

    Triton looks at every argument of every launch to pick the compiled variant; here all arguments but the constants
    are plain numbers of a declared type, so the variant of the first launch serves all others of its device.
    """

    __slots__ = ("_constants", "_kernel", "_ready", "_warps")

    def __init__(self, kernel: Any, warps: int, *constants: Any) -> None:
        self._kernel = kernel
        self._warps = warps
        self._constants = constants
        self._ready: dict[int, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {}

    def __call__(self, device: int, programs: int, *arguments: Any) -> None:
        """Launch on the current stream of ``device``."""
        if device != current_device():
            with torch.cuda.device(device):
                return self(device, programs, *arguments)
        ready = self._ready.get(device)
        if ready is None:
            return self._first(device, programs, *arguments)
        launch, function, metadata = ready
        launch(programs, 1, 1, current_stream(device), *function, *metadata, *arguments, *self._constants)
        return None

    def _first(self, device: int, programs: int, *arguments: Any) -> None:
        """Compile, launch the documented way, and remember the faster way if this release of Triton has it."""
        global _kernels
        _kernels += 1
        compiled = self._kernel[(programs,)](*arguments, *self._constants, num_warps=self._warps)
        run = getattr(compiled, "run", None)
        function = getattr(compiled, "function", None)
        metadata = getattr(compiled, "packed_metadata", None)
        if run is None or function is None or metadata is None:
            return
        self._ready[device] = (run, (function,), (metadata, None, None, None))
        scratch = getattr(run, "global_scratch_size", None), getattr(run, "profile_scratch_size", None)
        if scratch == (0, 0) and hasattr(run, "launch"):
            flags = (function, run.launch_cooperative_grid, run.launch_pdl, None, None)
            self._ready[device] = (run.launch, flags, (metadata, None, None, None))
