"""Losses, read where they are computed, and what happens to them before backward."""

import math
import weakref
from collections.abc import Callable, Iterable
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..engine.allocation import is_capturing
from ..engine.distributed_tensors import is_distributed, local_samples
from ..engine.passes import is_training_pass
from ..engine.torch_private import is_transformed, without_modes_of_others
from ..numerical.precision import wide_dtype
from ..numerical.series import Series
from ..numerical.waiting import Pending, as_sample
from .abstract import AbstractForwardPreprocessor
from .accumulating import Kept
from .run_numbers import MOST_OPEN, Part, RunNumbers

ITEMS_OF_STEP = "num_items_in_batch"
"""With this argument Hugging Face's Trainer tells a model to divide its loss by the size of all micro-batches."""

SMALLEST_SCALE = 2.0**10
"""GradScalers start with a larger scale, but gradient accumulation may divide it."""

MOST_PARTS = 64
"""The most micro-batches per step: a scaled loss may be divided by their number."""

ENOUGH = 4
"""Gradients that are looked at."""

EXACTNESS = 1.2e-7
"""The precision of float32."""


class LossGradient:
    """The gradients of the losses of one tick: 1 if nothing was done to the loss before backward.

    They reveal a GradScaler that the inspector was not given. It watches losses until it has seen a few gradients,
    without waiting for the GPU.
    """

    def __init__(self) -> None:
        self._seen: Series | None = Series()
        self._complete: Series | None = None
        self._to_see = ENOUGH
        self.is_looking = True
        """Whether it has not seen enough yet."""
        self.failure: Exception | None = None
        """The error inside backward, if there was one; it stops then."""

    def watch(self, loss: Any) -> None:
        """Note the gradient of a loss, if it gets one."""
        if not self.is_looking:
            return
        if type(loss) is Tensor and loss.grad_fn is not None and loss.numel() == 1 and not is_transformed(loss):
            loss.register_hook(self._note)  # type: ignore[no-untyped-call]

    def end_tick(self) -> None:
        """Close the set of gradients of this tick."""
        if self._seen is not None and self._seen.used_keys():
            self._complete, self._seen, self.is_looking = self._seen, None, False

    def pending(self) -> list[Pending]:
        """What a tick should copy to the CPU."""
        return [] if self._complete is None else self._complete.pending()

    def finish(self) -> None:
        """Take what was copied."""
        if self._complete is not None:
            self._complete.finish()

    def scale(self) -> float | None:
        """The scale that a scaler seems to have multiplied the losses of the last tick with; returned only once."""
        complete, self._complete = self._complete, None
        if complete is None:
            return None
        complete.settle()
        row = complete.moments.row(0)
        return row.high if row.finite and is_scale(row.low) and is_scale(row.high) else None

    def _note(self, gradient: Tensor | None) -> None:
        try:
            # there is none if a function of the user says so
            if self._seen is not None and gradient is not None and not is_capturing(gradient.device):
                self._to_see -= 1
                self.is_looking = self._to_see > 0
                with without_modes_of_others():
                    self._seen.add("", as_sample(gradient.detach().clone()))
        except Exception as error:  # nothing may raise inside backward
            self.failure, self._seen, self.is_looking = error, None, False


def is_scale(number: float) -> bool:
    """Whether it is a large power of two, or one divided by a number of micro-batches.

    >>> [is_scale(x) for x in (65536.0, 65536 / 3, 1.0, 0.25, 1000.0, 3000.0)]
    [True, True, False, False, False, False]
    """
    if not SMALLEST_SCALE <= number < math.inf:
        return False
    mantissas = (math.frexp(number * parts)[0] for parts in range(1, MOST_PARTS + 1, 2))
    return any(mantissa - 0.5 < EXACTNESS or 1 - mantissa < EXACTNESS for mantissa in mantissas)


class PartOfLoss(NamedTuple):
    """A loss that is only a part of the step's loss: the losses of all micro-batches add up to it."""

    loss: Any


class Slots:
    """Memory for single numbers on a device, made for many at once: a new tensor for each takes twice as long."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def copy(self, number: Tensor) -> Tensor:
        """A copy of a scalar tensor, without its graph; nothing waits for the device."""
        free = self._free
        if not free or free[-1].dtype != number.dtype or free[-1].device != number.device:
            free[:] = torch.empty(MOST_OPEN, dtype=number.dtype, device=number.device).unbind()
        return free.pop().copy_(number.detach())


def loss_in(output: Any) -> Any:
    """The ``loss`` field of an output, for models that compute their own loss; None if there is none."""
    return output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)


class LossModule(RunNumbers, AbstractForwardPreprocessor):
    """Records what a loss module returns, separately for training and evaluation.

    Where steps are known, the mean loss of all micro-batches of a step is one sample.

    Args:
        inplace: keep only running moments, instead of every sample.
        evaluation_from_grad: how to tell evaluation from training, see ``is_training_pass``.
        field_only: read only a ``loss`` field of the output, and ignore outputs without one.
    """

    every_step = True
    """Record at every step: a loss is computed anyway, and reading it costs almost nothing."""

    def __init__(self, inplace: bool, evaluation_from_grad: bool | None, *, field_only: bool = False) -> None:
        self._names: tuple[str, str] | None = None
        self._numbers: list[tuple[int, float | Tensor]] = []
        self._slots = Slots()
        super().__init__(inplace)
        self.evaluation_from_grad, self.field_only = evaluation_from_grad, field_only
        self.tell: Callable[[str], None] | None = None
        """Called with the name of each evaluation loss."""
        self._model: weakref.ref[nn.Module] | None = None
        self.gradient = LossGradient()
        """The gradients of the losses."""

    def set_loss_strs(self, train_loss_str: str, non_train_loss_str: str) -> None:
        """Name the two losses."""
        self._names = train_loss_str, non_train_loss_str
        self.reset()

    def ask_model(self, model: nn.Module | None) -> None:
        """Also use the model's train or eval mode: nobody calls ``eval()`` on a loss function."""
        self._model = None if model is None else weakref.ref(model)

    def clear(self) -> None:
        """Also forget the model."""
        self._model, self.gradient, self._numbers, self._slots = None, LossGradient(), [], Slots()
        super().clear()

    def _new_kept(self) -> Kept:
        """The two losses are always there, even without samples."""
        kept = super()._new_kept()
        for name in self._names or ():
            kept.series.place(name, self.inplace)
        return kept

    def release(self) -> Kept:
        """The same; closes the set of loss gradients, too."""
        self.gradient.end_tick()
        return super().release()

    def pending(self, kept: Kept) -> list[Pending]:
        """Also the gradients of losses."""
        return [*super().pending(kept), *self.gradient.pending()]

    def finish(self) -> None:
        """Also the gradients of losses."""
        super().finish()
        self.gradient.finish()

    def hold(self, step: int, names: Iterable[str]) -> None:
        """The same for evaluation losses."""
        for name in (self._names or ())[1:]:
            if name in names:
                super().hold(step, [name])
                self._kept.series.place(name, self.inplace)

    def loss_in_graph(self, output: Any) -> Tensor | None:
        """The loss in an output, while a model is being compiled."""
        if isinstance(output, Tensor):
            return None if self.field_only else output
        loss = loss_in(output)
        return loss if isinstance(loss, Tensor) else None

    def take_quietly(self, module: nn.Module, output: Any, step: int) -> bool:
        """Take a plain training loss as cheaply as possible; False if it needs the full treatment."""
        model = None if self._model is None else self._model()
        if not module.training or not torch.is_grad_enabled() or (model is not None and not model.training):
            return False
        is_loss = type(output) is Tensor and not self.field_only
        loss = output if is_loss else None if type(output) is Tensor else loss_in(output)
        if loss is None:
            return self.field_only
        if type(loss) is not Tensor or loss.dim() or loss.is_meta or self.gradient.is_looking:
            return False
        if not loss.is_cpu and is_capturing(loss.device):
            return False
        if len(self._numbers) >= MOST_OPEN and step != self._numbers[-1][0]:  # no more losses of the last step come
            self._close_steps()
        self._numbers.append((step, loss.item() if loss.is_cpu else self._slots.copy(loss)))
        return True

    def _open_parts(self) -> list[Part]:
        if self._names is None or not self._numbers:
            return self._parts
        taken_quietly = [Part(step, self._names[0], number, self.inplace) for step, number in self._numbers]
        return sorted([*self._parts, *taken_quietly], key=attrgetter("step"))

    def _close_steps(self) -> None:
        steps = sorted([*self._numbers, *((part.step, part.sample) for part in self._parts)], key=itemgetter(0))
        if self._names is None or len(dict(steps)) < len(steps):
            super()._close_steps()
        elif steps:  # nearly always: one for each step
            self._add_steps(self._names[0], steps, self.inplace)
        self._numbers, self._parts = [], []

    def process_fw(self, name: str, module: nn.Module, layer_input: Any, layer_output: Any) -> None:
        """Take one loss."""
        loss = layer_output if type(layer_output) is Tensor else loss_in(layer_output)
        if loss is layer_output and self.field_only:
            loss = None
        elif loss is None and not self.field_only:
            loss = layer_output
        if loss is None:
            return
        if type(loss) is not Tensor and is_distributed(loss):
            loss = local_samples(loss)[0]
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise AttributeError(f"a loss is one number, not {shape}; reduce it, or use push_loss()")
        if self._names is None:
            raise KeyError("the losses have no names yet: call set_loss_strs() first")
        sample = loss.detach().to(wide_dtype(loss), copy=True).reshape(())
        if self._is_training(module):
            self.gradient.watch(loss)
            self._add_to_step(self._names[0], sample, self.inplace, add_up=isinstance(layer_output, PartOfLoss))
        else:
            self._add_evaluation(self._names[1], sample, self.inplace)
            if self.tell is not None:
                self.tell(self._names[1])

    def _is_training(self, module: nn.Module) -> bool:
        model = self._model() if self._model is not None else None
        asks_both = self.evaluation_from_grad is None
        model_trains = model is None or model.training or not asks_both
        return model_trains and is_training_pass(module, self.evaluation_from_grad)
