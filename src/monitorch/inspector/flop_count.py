"""How many floating-point operations a step takes, and the share of the device's peak that this is."""

import re
from collections import Counter
from typing import Any

import torch

from ..engine.distributed_tensors import distributed_type
from ..engine.ranks import several_processes
from ..engine.tensors import tensors_in
from ..engine.torch_private import OperatorMode, inside_backward, last_operator_mode, number_of_graphs
from .step_clock import StepClock

TRIES = 3
"""How many attempts may fail, because of an evaluation or a torch mode of the user, before we give up."""

HALF, TF32, FLOAT32 = "half", "tf32", "float32"
PRECISIONS = {torch.float16: HALF, torch.bfloat16: HALF, torch.float32: FLOAT32}

TERA = 1e12
PEAKS: dict[str, tuple[float, float | None, float]] = {
    "B200": (2250, 1125, 75),
    "H200": (989.4, 494.7, 66.9),
    "H200 NVL": (835.5, 417.7, 60),
    "GH200 [0-9]+GB": (989.4, 494.7, 66.9),
    "H100 [0-9]+GB HBM3": (989.4, 494.7, 66.9),
    "H100 NVL": (835.5, 417.7, 60),
    "H100 PCIe": (756, 378, 51.2),
    "A[18]00(-SXM4|-PCIE)?[- ][0-9]+GB( PCIe)?": (312, 156, 19.5),
    "A40": (149.7, 74.8, 37.4),
    "A10": (125, 62.5, 31.2),
    "L40S": (362, 183, 91.6),
    "L40": (181, 90.5, 90.5),
    "L4": (121, 60, 30.3),
    "GeForce RTX 5090": (209.5, 104.8, 104.8),
    "GeForce RTX 4090": (165.2, 82.6, 82.6),
    "GeForce RTX 3090": (71, 35.6, 35.6),
    "V100-SXM2-[0-9]+GB": (125, None, 15.7),
    "T4": (65, None, 8.1),
}
"""Peak TFLOP/s of dense matrix products in 16-bit floats, TF32 and float32, by the device name in torch.

From the manufacturers' data sheets: without sparsity, and with float32 accumulation where that differs."""


def peak_of(name: str, precision: str) -> float | None:
    """The most FLOP/s that a card of this name can do; None if that is not known.

    >>> peak_of("NVIDIA H100 80GB HBM3", "half"), peak_of("NVIDIA GeForce RTX 4090 Laptop GPU", "half")
    (989400000000000.0, None)
    """
    model = re.sub("^(NVIDIA|Tesla) ", "", name)
    for pattern, peaks in PEAKS.items():
        if re.fullmatch(pattern, model):
            found = dict(zip((HALF, TF32, FLOAT32), peaks, strict=True)).get(precision)
            return None if found is None else found * TERA
    return None


class FlopCount:
    """Counts the operations of an early step: matrix products, convolutions and attention, as torch's FLOP counter.

    From the end of one step to the beginning of the next one a mode of torch sees every operator that runs, forward and
    backward, and changes nothing. Recomputation by activation checkpointing is not counted.

    Args:
        device: where the model is.
        peak: the most FLOP/s that the device can do; None to look the card up. Compiled models and several processes
            are skipped then, since the user did not ask for this.
        clock: knows when our own hooks run, and how long steps take.
    """

    def __init__(self, device: torch.device, peak: float | None, clock: StepClock) -> None:
        self._peak, self._clock = peak, clock
        self._card = torch.cuda.get_device_name(device) if peak is None and device.type == "cuda" else ""
        self._tries = TRIES if peak is not None or peak_of(self._card, FLOAT32) is not None else 0
        self._mode: _CountingMode | None = None
        self.flops: Counter[str] = Counter()
        """Operations of a step, by precision."""

    @property
    def is_wanted(self) -> bool:
        """Whether a step has yet to be counted."""
        return self._tries > 0 or self._mode is not None

    def begin(self) -> None:
        """A step has ended: count the next one, unless that was done."""
        self._leave()
        if self._mode is not None or self._tries <= 0:
            return
        has_graphs = number_of_graphs() > 0
        if self._peak is None and (has_graphs or several_processes()):
            self._tries = 0
            return
        self._tries = 0 if has_graphs else self._tries - 1  # what a CUDA graph replays is not seen later on
        if inside_backward() or last_operator_mode() is not None:
            return  # a mode entered here would not last, or the user has one active
        self._mode = _CountingMode(self._clock)
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """The optimizer is about to step: all has been computed."""
        mode = self._mode
        if mode is not None and mode.is_on:
            mode.is_on = False
            self._clock.interrupt()  # the step took longer than others
            if mode.is_complete:
                self.flops, self._tries = mode.flops, 0
        self._leave()

    def spoil(self) -> None:
        """Something else is computed: this is no usual step."""
        if self._mode is not None:
            self._mode.is_on = False
        self._leave()

    def remove(self) -> None:
        """Count no more."""
        self._tries = 0
        self.spoil()

    def utilisation(self, steps_per_second: float) -> float | None:
        """The share of the device's peak, in the precision of most operations; None if something is not known."""
        if not self.flops:
            return None
        ((precision, _),) = self.flops.most_common(1)
        peak = peak_of(self._card, precision) if self._peak is None else self._peak
        return None if peak is None else self.flops.total() * steps_per_second / peak

    def _leave(self) -> None:
        """Take the mode off, once it is no longer below another one; nothing is counted until then."""
        mode = self._mode
        if mode is not None and not mode.is_on and last_operator_mode() is mode:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._mode = None


class _CountingMode(OperatorMode):  # type: ignore[no-untyped-call]
    """Sees every operator, also those that compiled graphs call."""

    supports_higher_order_operators = True
    is_ours = True

    def __init__(self, clock: StepClock) -> None:
        from torch.utils.flop_counter import FlopCounterMode  # loads much, and few need it

        super().__init__()  # type: ignore[no-untyped-call]
        self._formulas: dict[Any, Any] = FlopCounterMode(display=False).flop_registry
        self._clock, self._distributed = clock, distributed_type()
        self.flops: Counter[str] = Counter()
        self.is_on = self.is_complete = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let the compiler work as without this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called instead of each operator."""
        result = func(*args, **(kwargs or {}))
        if self.is_on and not self._clock.is_in_hook:
            formula = self._formulas.get(getattr(func, "_overloadpacket", func))
            if formula is not None and not (inside_backward() and torch.is_grad_enabled()):  # checkpointing repeats it
                self._count(formula, func, types, args, kwargs or {}, result)
        return result

    def _count(self, formula: Any, func: Any, types: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        try:
            if any(issubclass(kind, self._distributed) for kind in types):
                self.is_complete = False  # these are the operations of all processes
                return
            others = {name: value for name, value in kwargs.items() if name != "out"}
            flops = formula(*args, **others, out_val=result)
            self.flops[_precision(func, next(tensors_in(args)).dtype)] += int(flops)
        except Exception:  # a formula may not know all ways to call its operator
            self.is_complete = False


def _precision(func: Any, dtype: torch.dtype) -> str:
    if dtype is torch.float32:
        is_convolution = "convolution" in str(func)
        is_short = (
            torch.backends.cudnn.allow_tf32 if is_convolution else torch.get_float32_matmul_precision() != "highest"
        )
        return TF32 if is_short else FLOAT32
    return PRECISIONS.get(dtype, str(dtype))
