"""Copies of a model to measure with: whatever is done with them, the model and its training stay as they are."""

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from itertools import chain
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..engine.optimizers import StandIn
from ..engine.torch_private import BatchNorm, tree_leaves, tree_map, without_compiler, without_graphs
from ..errors import OptionError, UnsupportedModelError
from ..preprocessor.loss_module import loss_in
from .display import DisplaysRun
from .module_tree import is_spread, scripted

NO_LOSS = "there is no loss to measure: pass loss_fn=, with targets, or use a model whose output has a field loss"


def check_can_be_copied(model: nn.Module) -> None:
    """Refuse models whose copies would not be trained like them."""
    if is_spread(model):
        cure = "probe a copy of it that is not sharded, in one process"
        raise UnsupportedModelError(f"parameters that are sharded over processes cannot be probed: {cure}")
    if parts := scripted(model):
        cure = "probe the model without torch.jit"
        raise UnsupportedModelError(f"copies of scripted parts cannot be trained, such as {parts[0]!r}: {cure}")


@contextmanager
def copied(model: nn.Module, loss_fn: Callable[..., Any] | None, *, train: bool = True) -> Iterator["ModelCopy"]:
    """A copy to measure with inside a ``with`` block, in train or eval mode.

    Every block starts from the same random state and restores it at the end. The model itself cannot be called in it.
    """
    with ExitStack() as stack:
        stack.enter_context(_same_random_numbers())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(without_graphs())
        twin = ModelCopy(model, loss_fn)
        stack.enter_context(_only_copies_run(model))
        if not train:
            twin.model.eval()
        elif not twin.model.training:  # otherwise some layers may be in eval mode on purpose
            twin.model.train()
        yield twin


class ModelCopy:
    """A copy of a model and of what computes its loss; hooks of this package do nothing in it."""

    def __init__(self, model: nn.Module, loss_fn: Callable[..., Any] | None) -> None:
        self._copies: dict[int, Any] = {}
        owner = getattr(loss_fn, "__self__", loss_fn)
        for part in chain(model.modules(), owner.modules() if isinstance(owner, nn.Module) else ()):
            self._copies |= _taken_along(part)
        try:
            with torch.no_grad():  # gradients of a copy must not reach the model
                self.model = copy.deepcopy(model, self._copies)
                self._loss_fn = copy.deepcopy(loss_fn, self._copies) if isinstance(owner, nn.Module) else loss_fn
        except Exception as error:
            raise UnsupportedModelError(
                f"a model is probed on a copy, and {type(model).__name__} cannot be copied: {error}"
            ) from error
        for part in self.model.modules():
            if (method := _compiled_method(vars(part).get("forward"))) is not None:
                part.forward = copy.deepcopy(method, self._copies)
            if isinstance(part, nn.SyncBatchNorm):  # it would wait for other processes, which may not probe
                part.__class__ = _LocalBatchNorm  # type: ignore[assignment]
            elif isinstance(part, nn.RNNBase):
                part.flatten_parameters()  # cuDNN needs them contiguous
        owner = getattr(self._loss_fn, "__self__", self._loss_fn)
        self._parts = [part for part in (self.model, owner) if isinstance(part, nn.Module)]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters; those of lazy modules are there after a pass."""
        return list(dict.fromkeys(chain.from_iterable(part.parameters() for part in self._parts)))

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that are not frozen."""
        return [parameter for parameter in self.parameters if parameter.requires_grad]

    def call(self, inputs: Any) -> Any:
        """Run the model."""
        if isinstance(inputs, dict):
            return self.model(**inputs)
        return self.model(*inputs) if isinstance(inputs, (tuple, list)) else self.model(inputs)

    def loss(self, batch: tuple[Any, Any]) -> Tensor:
        """Run the model and compute the loss; the batch stays as it is."""
        inputs, targets = fresh(batch)
        return self.loss_of(self.call(inputs), targets)

    def loss_of(self, output: Any, targets: Any) -> Tensor:
        """The loss of an output of the model."""
        if self._loss_fn is None:
            loss = loss_in(output)
        else:
            loss = self._loss_fn(output) if targets is None else self._loss_fn(output, targets)
        if loss is None:
            raise OptionError(NO_LOSS)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            kind = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise OptionError(f"a loss is a tensor with one number, not {kind}: pass a loss_fn= that reduces it")
        return loss.reshape(())

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for part in self._parts:
            part.zero_grad()

    def train(self, batch: tuple[Any, Any]) -> Tensor:
        """Compute the loss and new gradients of it."""
        self.zero_grad()
        loss: Any = self.loss(batch)
        if loss.requires_grad:
            loss.backward()  # not autograd.grad(), which not every kind of activation checkpointing supports
        detached: Tensor = loss.detach()
        return detached

    def fit(
        self,
        batch: tuple[Any, Any],
        optimizers: Sequence[Optimizer],
        steps: int,
        look: Callable[[int], None] | None = None,
    ) -> list[float]:
        """Train ``steps`` steps on one batch. Returns the loss before each step, and after the last one.

        ``look`` is called in each step, with its number, as soon as there are gradients.
        """
        losses: list[Tensor] = []
        begins: list[int] = []

        def closure() -> Any:
            losses.append(self.train(batch))
            if look is not None and len(losses) == begins[-1] + 1:
                look(len(begins) - 1)
            return losses[-1]

        for _ in range(steps):
            begins.append(len(losses))  # some optimizers call the closure several times in a step
            optimizers[0].step(closure)
            for other in optimizers[1:]:
                other.step()
        return [*(float(losses[place]) for place in begins), float(self.loss(batch).detach())]

    def gradient(self, batch: tuple[Any, Any]) -> list[Tensor | None]:
        """The gradient of the loss, by parameter."""
        self.train(batch)
        return [None if own.grad is None else own.grad.to_dense() for own in self.parameters]

    def optimizer(self, given: Optimizer) -> Optimizer | None:
        """A new optimizer of the same class, with the same options; None if it trains nothing of the copy."""
        if isinstance(given, StandIn):
            raise OptionError(f"cannot make an optimizer like {given.kind!r} for a copy: it is not from torch.optim")
        groups = []
        for group in given.param_groups:
            options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
            own = [self._copies[id(parameter)] for parameter in group["params"] if id(parameter) in self._copies]
            if own:
                groups.append({"params": own, **copy.deepcopy(options)})
        if not groups:
            return None
        try:
            known = signature(type(given)).parameters
            options = {name: value for name, value in given.defaults.items() if name in known}
            made: Optimizer = type(given)(groups, **copy.deepcopy(options))
            return made
        except Exception as error:
            kind = type(given).__name__
            raise OptionError(f"cannot make another {kind} for a copy from its options: {error}") from error


class _LocalBatchNorm(BatchNorm):
    def _check_input_dim(self, input: Tensor) -> None:  # torch's name
        """Any number of dimensions, as in SyncBatchNorm."""


def _compiled_method(forward: Any) -> MethodType | None:
    """The method inside ``model.forward = torch.compile(model.forward)``: deepcopy does not copy functions."""
    inside = without_compiler(forward)
    method = inside if isinstance(inside, MethodType) else getattr(inside, "__wrapped__", None)
    return method if isinstance(method, MethodType) else None


@contextmanager
def _only_copies_run(model: nn.Module) -> Iterator[None]:
    """Raise an error if a function that holds on to the original model calls it."""
    handles = [part.register_forward_pre_hook(_refuse_to_run, prepend=True) for part in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse_to_run(module: nn.Module, _: Any) -> None:
    raise UnsupportedModelError(
        f"a model is probed on a copy, but something calls the original {type(module).__name__}: a loss_fn may only "
        "use the model if it is a method of it or a module, and a replaced forward if it is bound by types.MethodType"
    )


def _taken_along(part: nn.Module) -> dict[int, Any]:
    """Replacements for attributes that cannot be copied: tensors computed in a pass, and watches."""
    leaves = tree_leaves(vars(part))
    results = {id(leaf): leaf.detach().clone() for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_leaf}
    return results | {id(leaf): leaf for leaf in leaves if isinstance(leaf, DisplaysRun)}


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Restore the random state at the end."""
    of_python, of_numpy = random.getstate(), np.random.get_state(legacy=False)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def fresh(batch: Any) -> Any:
    """The same batch in memory of its own: a model may change its inputs."""
    return tree_map(lambda leaf: own_memory(leaf.detach()) if isinstance(leaf, Tensor) else leaf, batch)


def own_memory(leaf: Any) -> Any:
    """A tensor in memory of its own; anything else as it is."""
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def cut(batch: Any, samples: slice) -> Any:
    """Some samples of a batch, which are along the first dimension of each tensor."""
    return tree_map(lambda leaf: leaf[samples] if isinstance(leaf, Tensor) and leaf.dim() else leaf, batch)
