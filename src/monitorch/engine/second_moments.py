"""Gradients divided by the root of the second moment that Adam keeps."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..numerical.norms import as_dense
from ..numerical.precision import HOST, full_dtype, wide_dtype
from .buffers import Entry, Info
from .distributed_tensors import local_part
from .meter import Measured, Meter, Reporter, Subscription
from .optimizers import group_numbers
from .parameters import ParameterRef
from .step_interval import StepInterval
from .torch_private import divide_all, multiply_all, raise_all, root_all

if TYPE_CHECKING:
    from .engine import Engine

SCALED_GRADIENT = "gradient by second moment"
"""What its meters measure: the first part of their keys."""

PIECE = 1 << 15
"""How many elements are divided at once on a CPU."""

AT_ONCE = 64 << 20
"""How many bytes of gradients are divided at once: limits the memory for quotients."""


class _Watched(ParameterRef):
    """A parameter whose gradient is measured."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__(module, name)
        self.meters: list[Meter] = []


class SecondMoment(NamedTuple):
    """A gradient and the optimizer's running average of its squares; local parts if sharded."""

    gradient: Tensor
    second: Tensor
    beta: Any
    step: Any
    eps: float


class SecondMomentTap:
    """Measures ``g / sqrt(v)`` of each parameter right after a step, where the optimizer keeps second moments ``v``."""

    def __init__(self, engine: "Engine", optimizer: Optimizer) -> None:
        self.state, self._engine, self._optimizer = engine.state, engine, optimizer
        self._interval = StepInterval(engine, optimizer, self._end_step)
        self._watched: dict[tuple[int, str], _Watched] = {}

    def watch(
        self, module: nn.Module, parameter: str, name: str, gatherer: Reporter, preprocessor: Measured
    ) -> Subscription:
        """Measure a parameter for a preprocessor from now on."""
        watched = self._watched.get((id(module), parameter))
        if watched is None or not watched.belongs_to(module):
            watched = self._watched[id(module), parameter] = _Watched(module, parameter)
        return self._engine.subscribe(watched.meters, name, gatherer, preprocessor, SCALED_GRADIENT, parameter)

    def remove(self) -> None:
        """Measure nothing any more."""
        self._interval.remove()
        self._watched = {}

    @torch.no_grad()
    def _end_step(self, observed: bool) -> None:
        if not observed:
            return
        waiting = list[tuple[Meter, int, SecondMoment]]()
        size, groups = 0, group_numbers(self._optimizer)
        for watched in self._watched.values():
            tensor = watched.find()
            if tensor is None or id(tensor) not in groups:
                continue
            for meter in watched.meters:
                found = None if meter.failed else meter.guarded(self._look, tensor, groups[id(tensor)])
                if found is not None:
                    waiting.append((meter, *found))
                    size += found[1].gradient.nbytes
            if size > AT_ONCE:
                self._measure(waiting)
                waiting, size = [], 0
        self._measure(waiting)

    def _look(self, parameter: Tensor, group: int) -> tuple[int, SecondMoment] | None:
        """Which part of a parameter is here, and its moment; None if the optimizer keeps none of it."""
        kept, options = self._optimizer.state.get(parameter) or {}, self._optimizer.param_groups[group]
        second, step = kept.get("max_exp_avg_sq", kept.get("exp_avg_sq")), kept.get("step")
        if not isinstance(second, Tensor) or step is None or "betas" not in options or parameter.grad is None:
            return None
        gradient, part = local_part(parameter.grad)
        second, gradient = local_part(second)[0], as_dense(gradient)
        if second.shape != gradient.shape or second.is_complex():
            return None
        eps = options.get("eps")
        eps = float(eps) if isinstance(eps, (int, float)) else 0.0
        return part, SecondMoment(gradient, second, options["betas"][1], step, eps)

    def _measure(self, waiting: list[tuple[Meter, int, SecondMoment]]) -> None:
        step, entries = self.state.step, list[Entry]()
        quotients = divided([moment for *_, moment in waiting])
        for (meter, part, _), x in zip(waiting, quotients, strict=True):
            entries.append((meter, Info(meter.number, step, part=part), x, False))
        correction = self._engine.step_scales.of(self._optimizer).of_unscaled
        self._engine.measure_together("gradients", entries, correction)


def divided(moments: list[SecondMoment]) -> list[Tensor]:
    """Each gradient divided by the root of its second moment, which is bias-corrected, and at least eps.

    >>> gradient, squares = torch.tensor([3.0, 0.0]), torch.tensor([0.09, 0.0])
    >>> (found,) = divided([SecondMoment(gradient, squares, beta=0.99, step=1.0, eps=1e-8)])
    >>> [round(quotient, 4) for quotient in found.tolist()]
    [1.0, 0.0]
    """
    found: list[Any] = [None] * len(moments)
    alike = defaultdict[Any, list[int]](list)
    for place, moment in enumerate(moments):
        alike[moment.second.device, moment.second.dtype, _kind_of_step(moment)].append(place)
    for (device, dtype, _), places in alike.items():
        own = [moments[place] for place in places]
        wide = full_dtype(dtype)
        least = [max(moment.eps, torch.finfo(wide).tiny) for moment in own]
        divide = _divide_in_pieces if device.type == "cpu" else _divide_together
        gradients, seconds = [m.gradient.to(wide) for m in own], [m.second.to(wide) for m in own]
        quotients = divide(gradients, seconds, _factors(own, wide), least)
        for place, quotient in zip(places, quotients, strict=True):
            found[place] = quotient
    return found


def _divide_together(
    gradients: list[Tensor], seconds: list[Tensor], factors: Sequence[Any], least: list[float]
) -> Iterable[Tensor]:
    roots = root_all(seconds)
    multiply_all(roots, factors)
    raise_all(roots, least)
    return divide_all(gradients, roots)


def _divide_in_pieces(
    gradients: list[Tensor], seconds: list[Tensor], factors: Sequence[Any], least: list[float]
) -> Iterable[Tensor]:
    """The same in pieces that stay in the cache of a CPU: three times as fast for large tensors."""
    for gradient, second, factor, low in zip(gradients, seconds, factors, least, strict=True):
        found = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        flat = (found.view(-1), gradient.contiguous().view(-1), second.contiguous().view(-1))
        for out, x, squares in zip(*(torch.split(tensor, PIECE) for tensor in flat), strict=True):
            torch.sqrt(squares, out=out)
            torch.div(x, out.mul_(factor).clamp_(min=low), out=out)
        yield found


def _on_host(step: Any) -> bool:
    return not isinstance(step, Tensor) or step.device.type == "cpu"


def _kind_of_step(moment: SecondMoment) -> tuple[Any, ...]:
    """The key of moments whose factors are computed together."""
    step, beta = moment.step, moment.beta
    kind = (step.device, step.dtype, step.shape) if isinstance(step, Tensor) else None
    return kind, id(beta) if isinstance(beta, Tensor) else beta


def _factors(moments: Sequence[SecondMoment], dtype: torch.dtype) -> Sequence[Any]:
    """What the roots are multiplied by: 1 / sqrt(1 - beta^step); what is counted on a device stays there."""
    steps = [moment.step for moment in moments]
    is_tensor = isinstance(steps[0], Tensor)
    counts = torch.stack(steps).view(-1) if is_tensor else torch.tensor(steps, dtype=torch.float64, device=HOST)
    powers = counts.to(wide_dtype(counts)) * _log(moments[0].beta, counts)
    factors = (-torch.expm1(powers)).rsqrt().where(powers != 0, 1.0)
    return factors.numpy().tolist() if _on_host(steps[0]) else factors.to(dtype).unbind()


def _log(beta: Any, like: Tensor) -> Any:
    if isinstance(beta, Tensor):
        return beta.to(like.device, wide_dtype(like)).log()
    return math.log(beta) if beta else -math.inf
