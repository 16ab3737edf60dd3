"""The optimizer inside those objects that other libraries hand out in its place."""

from typing import Any, NamedTuple

from torch.optim import Optimizer

from ..errors import UnsupportedModelError

DEEPSPEED = "DeepSpeed keeps parameters and gradients outside the model; use fully_shard (FSDP2) instead"

HOOKS = "_optimizer_step_pre_hooks"
"""Where an optimizer keeps what is to be called before its steps."""

INSIDE = ("optimizer", "_optimizer", "optim")
"""What wrappers call the optimizer that they stand around."""


class Unwrapped(NamedTuple):
    """What takes the steps, if it is an optimizer at all, and the scaler that a wrapper around it has."""

    optimizer: Any
    scaler: Any = None


def unwrap_optimizer(given: Any, scaler: Any = None) -> Unwrapped:
    """What is inside wrappers that only pass calls on, such as those of Accelerate and Lightning.

    One that is an optimizer by itself, such as a Lookahead around another one, stays as it is.
    """
    package = type(given).__module__
    if package.startswith("deepspeed.") and not package.startswith("deepspeed.ops."):  # those are plain optimizers
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
    """Whether it is an optimizer whose steps can be followed: some have the class, and do not call its __init__."""
    return isinstance(optimizer, Optimizer) and hasattr(optimizer, HOOKS)


def _is_one(wrapper: Any, inner: Any) -> bool:
    """Whether it has hooks of its own: then its steps are those of an optimizer, and not only passed on."""
    own = vars(wrapper).get(HOOKS) if hasattr(wrapper, "__dict__") else None
    return own is not None and own is not getattr(inner, HOOKS, None)
