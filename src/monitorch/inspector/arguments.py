"""Arguments of the inspector: checked once, with what is right in the message."""

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from ..errors import OptionError


def check(option: str, value: Any, kind: Any, wanted: str) -> None:
    """Refuse a value that is not of the kind."""
    if not isinstance(value, kind) or isinstance(value, (str, type)) != (kind is str):
        raise OptionError(f"{option} takes {wanted}, not {value!r}")


def optimizers(given: Any) -> tuple[Optimizer, ...]:
    """One optimizer or several, as a tuple."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    found = () if given is None else tuple(given) if several else (given,)
    for optimizer in found:
        if not isinstance(optimizer, Optimizer):
            raise OptionError(f"optimizer takes a torch.optim.Optimizer or a list of them, not {optimizer!r}")
    return found
