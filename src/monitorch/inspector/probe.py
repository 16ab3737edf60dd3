"""Measurements that run the model: on copies of it, so that training is not touched."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from ..engine.ranks import several_processes
from ..engine.tensors import first_input, tensors_in
from ..engine.torch_private import BatchNorm, tree_leaves, tree_map
from ..errors import OptionError
from ..lens.module_distinction import has_running_statistics
from ..numerical.noise import estimate_noise, noise_scale
from ..numerical.precision import wide_dtype
from ..preprocessor.batch_norm import ChannelMoments, batch_norm_shift
from .arguments import check_loss_fn
from .model_copy import ModelCopy, check_can_be_copied, copied, cut, fresh, own_memory
from .module_tree import walk

MOST_MIXED = 16
"""At most this many samples are compared with each other; each takes a backward pass."""


class BatchNormShift(NamedTuple):
    """How far the running statistics of a BatchNorm layer are from those of the batch."""

    mean: float
    """The largest difference of the means of a channel, in running standard deviations."""
    variance: float
    """The variance of a channel in the batch over its running variance, where that is farthest from 1."""


@dataclass(frozen=True)
class ProbeReport:
    """What :meth:`monitorch.PyTorchInspector.probe` measured; what was not is None, and ``notes`` says why."""

    train_loss: float
    """The loss of the batch in train mode."""
    eval_loss: float
    """The loss of the same batch in eval mode."""
    batch_norms: dict[str, BatchNormShift]
    """The BatchNorm layers that keep running statistics, by name."""
    noise_scale: float | None = None
    """B_simple = tr(Sigma) / |G|^2, in samples; infinite if the noise hides the gradient."""
    gradient_variance: float | None = None
    """The estimate of tr(Sigma), the variance of the gradient of one sample, summed over all parameters."""
    gradient_square: float | None = None
    """The estimate of |G|^2, the squared norm of the true gradient; may be negative, because of noise."""
    half_cosine: float | None = None
    """The cosine between the gradients of the two halves of the batch."""
    overfit: tuple[float, ...] = ()
    """The loss after each step on this batch alone."""
    sharpness: float | None = None
    """The largest eigenvalue of the Hessian of the loss in train mode."""
    mixing: float | None = None
    """The largest derivative of the output of a sample with respect to the input of another one."""
    mixing_pair: tuple[int, int] | None = None
    """The two samples: number of the output, number of the input; None if no samples mix."""
    notes: tuple[str, ...] = ()
    """What to know about these numbers."""

    def __str__(self) -> str:
        lines = [("loss", f"{self.train_loss:.5g} in train mode, {self.eval_loss:.5g} in eval mode")]
        for name, shift in self.batch_norms.items():
            lines.append(
                (f"BatchNorm {name}", f"mean off by {shift.mean:.3g} deviations, variance x {shift.variance:.3g}")
            )
        if self.noise_scale is not None:
            lines.append(("noise scale", f"{self.noise_scale:.4g} samples, cosine of halves {self.half_cosine:.3f}"))
        if self.overfit:
            lines.append(("overfit", f"loss {self.overfit[-1]:.5g} after {len(self.overfit)} steps on this batch"))
        if self.sharpness is not None:
            lines.append(("sharpness", f"{self.sharpness:.5g}"))
        if self.mixing is not None:
            lines.append(("mixing", _mixing_text(self.mixing, self.mixing_pair)))
        lines += [("note", text) for text in self.notes]
        width = max(len(title) for title, _ in lines)
        return "\n".join(f"{title:<{width}}  {text}" for title, text in lines)


def _mixing_text(largest: float, pair: tuple[int, int] | None) -> str:
    return "no samples mix" if pair is None else f"output {pair[0]} changes with input {pair[1]}, by {largest:.3g}"


class Probe:
    """Measures a model with one batch.

    Each measurement uses its own copy of the model and the same random state, so no result depends on what else is
    measured. The model itself is never called, and the random state is restored.

    Args:
        model: the model itself, without wrappers.
        inputs: what it is called with: a dictionary holds keyword arguments, a tuple or list several arguments.
        targets: the second argument of ``loss_fn``; None to call it with the output alone.
        loss_fn: computes the loss from the output; None for the ``loss`` field of the output.
        optimizers: what trains the model.
        separator: what separates the parts of a layer's name.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        targets: Any = None,
        *,
        loss_fn: Callable[..., Any] | None = None,
        optimizers: Sequence[Optimizer] = (),
        separator: str = ".",
    ) -> None:
        check_can_be_copied(model)
        check_loss_fn(loss_fn)
        self._model, self._loss_fn, self._optimizers = model, loss_fn, optimizers
        self._batch = dict(inputs) if isinstance(inputs, Mapping) else inputs, targets
        self._separator = separator
        self.notes: list[str] = []
        """Why something was not measured."""
        if several_processes():
            self.notes.append("these numbers are of this process and its batch alone")

    def report(
        self, *, noise: bool, overfit: int, sharpness: bool, mixing: bool, iterations: int, tolerance: float
    ) -> ProbeReport:
        """Measure both losses and whatever else is asked for."""
        _check(overfit, iterations, tolerance, noise=noise, sharpness=sharpness, mixing=mixing)
        evaluated, (trained, shifts) = self.loss_in_eval_mode(), self.loss_in_train_mode()
        found: dict[str, Any] = self.noise() if noise else {}
        if overfit:
            found["overfit"] = self.overfit(overfit)
        if sharpness:
            found["sharpness"] = self.sharpness(iterations, tolerance)
        if mixing:
            found |= self.mixing()
        return ProbeReport(trained, evaluated, shifts, **found, notes=tuple(self.notes))

    def _trial(self, *, train: bool = True) -> AbstractContextManager[ModelCopy]:
        return copied(self._model, self._loss_fn, train=train)

    def loss_in_eval_mode(self) -> float:
        """The loss as evaluation computes it."""
        with self._trial(train=False) as twin, torch.no_grad():
            return float(twin.loss(self._batch))

    def loss_in_train_mode(self) -> tuple[float, dict[str, BatchNormShift]]:
        """The loss as training computes it, and how far BatchNorm's running statistics are from those of this pass."""
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        with self._trial() as twin:
            layers = [
                layer for layer in walk(twin.model, separator=self._separator) if has_running_statistics(layer.module)
            ]
            for name, module, _ in layers:
                module.register_forward_pre_hook(partial(_compare, seen, name), with_kwargs=True)
            loss = float(twin.loss(self._batch).detach())
        named = [layer.name for layer in layers if layer.name in seen]
        return loss, {name: BatchNormShift(*map(float, seen[name])) for name in named}

    def noise(self) -> dict[str, float]:
        """The fields of the report about the gradients g1 and g2 of two halves with b samples each.

        The estimates are those of :func:`estimate_noise` for two parts; the variance of one sample is b times that of a
        half. An odd last sample is left out.
        """
        size = self._samples(self._batch, "the noise scale")
        if size is None:
            return {}
        half = size // 2
        with self._trial() as twin:
            if half == 1 and any(isinstance(part, BatchNorm) and part.training for part in twin.model.modules()):
                self.notes.append("the noise scale is not known: with BatchNorm it takes at least four samples")
                return {}
            gradients = [twin.gradient(cut(self._batch, slice(at, at + half))) for at in (0, half)]
        first, second = gradients
        product, of_first, of_second = _dot(first, second), _dot(first, first), _dot(second, second)
        mean_square, norms = (of_first + of_second) / 2, math.sqrt(of_first) * math.sqrt(of_second)
        if norms == 0:
            self.notes.append("the noise scale is not known: the gradient is 0, or no parameter is trained")
            return {}
        square, variance = estimate_noise(2, mean_square, (mean_square + product) / 2)
        if square <= 0:
            self.notes.append("the halves of the batch do not agree on a direction: only a larger batch can show it")
        return {
            "noise_scale": noise_scale(square, half * variance),
            "gradient_variance": half * variance,
            "gradient_square": square,
            "half_cosine": product / norms,
        }

    def overfit(self, steps: int) -> tuple[float, ...]:
        """The loss after each of some steps on this batch, with new optimizers like those of the model."""
        with self._trial() as twin:
            optimizers = [made for given in self._optimizers if (made := twin.optimizer(given)) is not None]
            if not optimizers:
                cure = "pass the optimizer that trains the model to the inspector: optimizer="
                raise OptionError(f"overfit={steps} needs an optimizer: {cure}")
            return tuple(twin.fit(self._batch, optimizers, steps)[1:])

    def sharpness(self, iterations: int, tolerance: float) -> float | None:
        """The largest eigenvalue of the Hessian by power iteration, one Hessian-vector product each.

        It stops when ``|H v - a v| <= tolerance |H v|``: then ``a`` is that close to the eigenvalue with the largest
        absolute value. If it is negative, or another one has the opposite sign, the iteration is repeated with ``H + r
        I``, where ``r`` is the largest ``|H v|`` seen.
        """
        with self._trial() as twin, _plain_kernels():
            loss = twin.loss(self._batch)
            parameters = twin.trained
            if not loss.requires_grad or not parameters:
                self.notes.append("the sharpness is not known: the loss depends on no parameter that is trained")
                return None
            slopes = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
            if not any(slope.requires_grad for slope in slopes):
                return 0.0  # the loss is linear
            draws = {device: _draws(device) for device in {parameter.device for parameter in parameters}}
            start = [
                torch.randn(own.shape, generator=draws[own.device], device=own.device, dtype=torch.float32).to(own)
                for own in parameters
            ]

            def times(vector: Sequence[Tensor]) -> Sequence[Tensor]:
                pairs = [pair for pair in zip(slopes, vector, strict=True) if pair[0].requires_grad]
                bent, along = zip(*pairs, strict=True)
                return torch.autograd.grad(bent, parameters, along, retain_graph=True, materialize_grads=True)

            found = _power_iteration(times, start, iterations, tolerance)
            if found.value < 0 or not found.has_converged:
                shift = found.radius

                def shifted(vector: Sequence[Tensor]) -> list[Tensor]:
                    return [part + shift * own for part, own in zip(times(vector), vector, strict=True)]

                found = _power_iteration(shifted, start, iterations, tolerance)
                found = found._replace(value=found.value - shift)
            if not found.has_converged:
                self.notes.append(f"the sharpness has not settled in {iterations} iterations: allow more of them")
            return found.value

    def mixing(self) -> dict[str, Any]:
        """The fields of the report about samples that influence each other in eval mode.

        For at most 16 samples: the derivative of each output, along a random unit direction, with respect to all
        floating inputs.
        """
        size = self._samples(self._batch[0], "whether samples mix")
        if size is None:
            return {}
        size = min(size, MOST_MIXED)
        with self._trial(train=False) as twin, _plain_kernels():
            inputs = fresh(cut(self._batch[0], slice(0, size)))
            leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
            watched = [leaf.requires_grad_() for leaf in leaves if leaf.dim()]
            found = tensors_in(twin.call(tree_map(own_memory, inputs)))  # the model may not change leaves in place
            outputs = [part for part in found if part.requires_grad and part.dim() and len(part) == size]
            if not watched or not outputs:
                why = "no input is floating" if not watched else "no output of a sample depends on a floating input"
                self.notes.append(f"whether samples mix is not known: {why}")
                return {}
            rows = []
            for sample in range(size):
                mixes = [_along_random_direction(output[sample]) for output in outputs]
                slopes = torch.autograd.grad(mixes, watched, retain_graph=True, materialize_grads=True)
                sizes = torch.stack([slope.abs().reshape(size, -1).amax(1).to(slopes[0]) for slope in slopes]).amax(0)
                sizes[sample] = 0
                rows.append(sizes)
            matrix = torch.stack(rows)
            largest, place = float(matrix.max()), int(matrix.argmax())
        return {"mixing": largest, "mixing_pair": divmod(place, size) if largest else None}

    def _samples(self, data: Any, wanted: str) -> int | None:
        """The number of samples, if the batch can be split along its first dimension; else None, with a note."""
        leaves = [leaf for leaf in tree_leaves(data) if isinstance(leaf, Tensor) and leaf.dim()]
        sizes = sorted({len(leaf) for leaf in leaves})
        if len(sizes) == 1 and sizes[0] > 1:
            return sizes[0]
        if not sizes:
            why = "there is no tensor in the batch"
        elif len(sizes) > 1:
            why = f"the tensors of the batch have no common first dimension, but {', '.join(map(str, sizes))}"
        else:
            why = f"it takes at least two samples, not {sizes[0]}"
        self.notes.append(f"{wanted} is not known: {why}")
        return None


def _check(overfit: Any, iterations: Any, tolerance: Any, **switches: Any) -> None:
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise OptionError(f"{name}={value!r} must be True or False")
    for name, value, least in (("overfit", overfit, 0), ("iterations", iterations, 1)):
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
            raise OptionError(f"{name}={value!r} must be a whole number, at least {least}")
    if not isinstance(tolerance, Real) or isinstance(tolerance, bool) or not 0 < float(tolerance) < 1:
        raise OptionError(f"tolerance={tolerance!r} must be a number between 0 and 1, such as 0.01")


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Kernels that can be differentiated twice, and in eval mode: fused attention and cuDNN's RNNs cannot."""
    has_cudnn = torch.backends.cudnn.enabled  # not flags(), which also changes precision
    torch.backends.cudnn.enabled = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cudnn.enabled = has_cudnn


def _compare(
    seen: dict[str, tuple[Tensor, Tensor]], name: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """The hook of a BatchNorm layer: compares the first batch with what the layer has kept before."""
    batch, kept = first_input(args, kwargs).detach(), module.running_var
    if name in seen or not kept.numel() or batch.numel() <= batch.shape[1]:  # a single value has no variance
        return
    others = [dim for dim in range(batch.dim()) if dim != 1]
    variance, mean = torch.var_mean(batch.to(wide_dtype(batch)), others)
    running = ChannelMoments(module.running_mean.to(mean), kept.to(mean))
    seen[name] = batch_norm_shift(ChannelMoments(mean, variance), running, module.eps)


def _dot(some: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> float:
    """The dot product of two vectors that are given in parts; None is zero."""
    pairs = [(one, other) for one, other in zip(some, others, strict=True) if one is not None and other is not None]
    sums = [(one.to(wide_dtype(one)) * other.to(wide_dtype(other))).sum() for one, other in pairs]
    return float(torch.stack([each.to(sums[0].device) for each in sums]).sum()) if sums else 0.0


class _Found(NamedTuple):
    value: float
    radius: float
    """The largest absolute value of an eigenvalue, estimated from below."""
    has_converged: bool


def _power_iteration(
    times: Callable[[Sequence[Tensor]], Sequence[Tensor]], start: Sequence[Tensor], iterations: int, tolerance: float
) -> _Found:
    """The eigenvalue with the largest absolute value of a symmetric matrix, given by its product with a vector."""
    found, vector, length = _Found(0.0, 0.0, has_converged=False), start, math.sqrt(_dot(start, start))
    for _ in range(iterations):
        vector = [part / length for part in vector]
        product = times(vector)
        value, square = _dot(vector, product), _dot(product, product)
        length = math.sqrt(square)
        rest = [part - value * own for part, own in zip(product, vector, strict=True)]
        found = _Found(value, max(found.radius, length), math.sqrt(_dot(rest, rest)) <= tolerance * length)
        if found.has_converged or not math.isfinite(length):
            break
        vector = product
    return found


def _along_random_direction(output: Tensor) -> Tensor:
    """The output along a direction of length 1: a plain sum would be constant after a softmax."""
    where = output.device
    direction = torch.randn(output.shape, generator=_draws(where), device=where, dtype=torch.float32).to(output)
    length: Tensor = torch.linalg.vector_norm(direction)
    return (output * direction).sum() / length


def _draws(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)
