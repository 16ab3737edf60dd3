"""Finds the optimizer inside the wrappers of other libraries."""

from typing import Any, NamedTuple

from torch.optim import Optimizer

from ..errors import UnsupportedModelError

DEEPSPEED = "DeepSpeed keeps parameters and gradients outside the model; use fully_shard (FSDP2) instead"

HOOKS = "_optimizer_step_pre_hooks"
"""The attribute where an optimizer keeps its step pre-hooks."""

INSIDE = ("optimizer", "_optimizer", "optim")
"""The attributes under which wrappers keep the optimizer inside them."""


class Unwrapped(NamedTuple):
    """The optimizer that takes the steps, or what was given instead of one, and the GradScaler of its wrapper."""

    optimizer: Any
    scaler: Any = None


def unwrap_optimizer(given: Any, scaler: Any = None) -> Unwrapped:
    """The optimizer inside wrappers that only pass calls on, such as those of Accelerate and Lightning.

    A wrapper that is itself an optimizer, such as Lookahead, stays as it is.
    """
    package = type(given).__module__
    if package.startswith("deepspeed.") and not package.startswith("deepspeed.ops."):  # ops: plain optimizers
        raise UnsupportedModelError(f"{type(given).__name__} cannot be observed: {DEEPSPEED}")
    own = getattr(given, "scaler", None)
    scaler = scaler if own is None else own
    for name in INSIDE:
        inner = getattr(given, name, None)
        if inner is not None and inner is not given and not isinstance(given, type) and not _is_one(given, inner):
            found = unwrap_optimizer(inner, scaler)
            if takes_steps(found.optimizer):
                return found
    return Unwrapped(given, scaler)


def takes_steps(optimizer: Any) -> bool:
    """Whether it is an optimizer whose steps can be noticed: some subclasses do not call ``Optimizer.__init__``."""
    return isinstance(optimizer, Optimizer) and hasattr(optimizer, HOOKS)


def _is_one(wrapper: Any, inner: Any) -> bool:
    """Whether it has step hooks of its own: then it is an optimizer, and does not only pass calls on."""
    own = vars(wrapper).get(HOOKS) if hasattr(wrapper, "__dict__") else None
    return own is not None and own is not getattr(inner, HOOKS, None)
