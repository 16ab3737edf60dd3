"""Options of lenses: checked and brought into one form when the lens is made."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer

from ..engine.meter import AUTO, EXACT, SKETCH
from ..engine.optimizers import unwrap_optimizer
from ..errors import OptionError
from ..numerical.extraction import INPLACE_POINTS, INPLACE_RANGES, POINTS, RANGES
from . import module_distinction

Strings = str | Iterable[str]
Classes = type[nn.Module] | Iterable[type[nn.Module]]
Init = TypeVar("Init", bound=Callable[..., None])

ALL = "all"
"""The name that means every parameter."""


def strings(option: str, value: Strings | None) -> tuple[str, ...]:
    """One string or several, as a tuple; None gives an empty one."""
    found: tuple[Any, ...] = () if value is None else (value,)
    if isinstance(value, Iterable) and not isinstance(value, str):
        found = tuple(value)
    if not all(isinstance(item, str) and item for item in found):
        raise OptionError(f"{option} takes names, not {value!r}")
    return found


def parameters(value: Strings) -> tuple[str, ...]:
    """Names of parameters, or the name that means all."""
    right = f"names such as 'weight' and 'in_proj_weight', or {ALL!r} for every parameter"
    try:
        found = strings("parameters", value)
    except OptionError:
        raise OptionError(f"parameters takes {right}, not {value!r}") from None
    if not found or (ALL in found and len(found) > 1):
        raise OptionError(f"parameters={value!r} must be {right}")
    return found


def parameter_title(name: str, what: str) -> str:
    """The tag for a quantity of the parameters of this name.

    >>> parameter_title("weight", "gradient norm"), parameter_title("all", "norm")
    ('Weight Gradient Norm', 'Parameter Norm')
    """
    return f"{'parameter' if name == ALL else name} {what}".title()


def points(option: str, value: Strings, inplace: bool | None = None) -> tuple[str, ...]:
    """Names of single numbers; at least one. ``inplace`` as in lenses; None if it is not known yet."""
    found = _checked(option, strings(option, value), POINTS, INPLACE_POINTS, inplace)
    if not found:
        raise OptionError(f"{option} needs at least one of {', '.join(map(repr, POINTS))}")
    return found


def point(option: str, value: str, inplace: bool | None = None) -> str:
    """The name of one number."""
    found = points(option, value, inplace)
    if len(found) > 1:
        raise OptionError(f"{option} takes only one of {', '.join(map(repr, POINTS))}, not {value!r}")
    return found[0]


def ranges(option: str, value: Strings | None, inplace: bool | None = None) -> tuple[str, ...]:
    """Names of bands, or none."""
    return _checked(option, strings(option, value), RANGES, INPLACE_RANGES, inplace)


def _checked(
    option: str, names: tuple[str, ...], known: tuple[str, ...], known_inplace: tuple[str, ...], inplace: bool | None
) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise OptionError.unknown(option, name, known)
        if inplace and name not in known_inplace:
            switch = "loss_fn_inplace" if option.startswith("loss_") else "inplace"
            choices = ", ".join(map(repr, known_inplace))
            raise OptionError(f"{option}={name!r} needs every sample: pass {switch}=False, or choose from {choices}")
    return names


def rate_methods(activation_aggregation: str, death_aggregation: str, inplace: bool) -> tuple[str, str]:
    """How activation and death rates are aggregated."""
    activation = point("activation_aggregation", activation_aggregation, inplace)
    return activation, point("death_aggregation", death_aggregation, inplace)


def channel_last(value: bool | str) -> bool | str:
    """Where channels are."""
    if value not in (True, False, "auto"):
        raise OptionError.unknown("channel_last", value, (True, False, "auto"))
    return value


def not_negative(option: str, value: float) -> None:
    """A number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise OptionError(f"{option} takes a number of at least 0, not {value!r}")


def whole(option: str, value: int, least: int) -> int:
    """A whole number of at least this."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{option} takes a whole number of at least {least}, not {value!r}")
    return value


def comparison(option: str, value: str) -> str:
    """What is kept of a tensor to compare it with another."""
    if value not in (EXACT, SKETCH, AUTO):
        raise OptionError.unknown(option, value, (EXACT, SKETCH, AUTO))
    return value


def optimizer(value: Any, cure: str = "pass None and call inspect_update() after each step") -> Optimizer | None:
    """The optimizer whose steps are measured, without the wrappers of other libraries; or None."""
    found: Optimizer | None = unwrap_optimizer(value).optimizer
    if found is not None and (isinstance(found, type) or not hasattr(found, "register_step_post_hook")):
        raise OptionError(f"{found!r} is not a torch.optim.Optimizer object: {cure}")
    return found


def needed_optimizers(value: Any, *, several: bool) -> tuple[Optimizer, ...]:
    """The optimizer, or several if that is allowed, without the wrappers of other libraries."""
    cure = "pass the one that trains the model" + (", or a list of them" if several else "")
    is_one = not several or isinstance(value, (str, type)) or not isinstance(value, Iterable)
    given = [value] if is_one else list(value)
    found = [optimizer(each, cure) for each in given]
    if not found or None in found:
        raise OptionError(f"an optimizer is needed, not {value!r}: {cure}")
    return tuple(each for each in found if each is not None)


class LayerChoice:
    """Which layers a lens watches: layers of some kinds and of included classes, never of excluded ones.

    Args:
        kinds: functions of ``module_distinction``; a leaf is chosen if one of them returns True.
        include: one or more classes that are always chosen, even with children.
        exclude: one or more classes that are never chosen.
    """

    def __init__(
        self, kinds: Iterable[Callable[[nn.Module], bool]], include: Classes = (), exclude: Classes = ()
    ) -> None:
        self._kinds = tuple(kinds)
        self._include, self._exclude = _classes("include", include), _classes("exclude", exclude)

    def leaf(self, module: nn.Module) -> bool:
        """Whether a module without children is chosen."""
        of_kind = any(kind(module) for kind in self._kinds) and not isinstance(module, self._exclude)
        return of_kind or self.container(module)

    def container(self, module: nn.Module) -> bool:
        """Whether a module with children is chosen."""
        return isinstance(module, self._include) and not isinstance(module, self._exclude)


def _classes(option: str, value: Classes) -> tuple[type[nn.Module], ...]:
    found: tuple[Any, ...] = (value,)
    if isinstance(value, Iterable) and not isinstance(value, (str, type)):
        found = tuple(value)
    for item in found:
        if not (isinstance(item, type) and issubclass(item, nn.Module)):
            raise OptionError(f"{option} takes classes of modules such as nn.Linear, not {item!r}")
    return found


def kinds(**wanted: bool) -> list[Callable[[nn.Module], bool]]:
    """The functions of ``module_distinction`` for the kinds that are switched on."""
    return [getattr(module_distinction, f"is{kind}") for kind, on in wanted.items() if on]


def old_names(**replacements: str) -> Callable[[Init], Init]:
    """Decorator for constructors: accept the keywords of earlier releases under their current names."""

    def decorate(init: Init) -> Init:
        @wraps(init)
        def renamed(self: Any, *args: Any, **kwargs: Any) -> None:
            for old, new in replacements.items():
                if old in kwargs:
                    kwargs[new] = kwargs.pop(old)
            init(self, *args, **kwargs)

        return renamed  # type: ignore[return-value]

    return decorate


def with_options_of(parent: type) -> Callable[[Init], Init]:
    """Decorator for constructors that pass ``**kwargs`` on to ``parent``: show its options in the signature."""

    def decorate(init: Init) -> Init:
        own = [p for p in inspect.signature(init).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        inherited = list(inspect.signature(parent).parameters.values())
        init.__signature__ = inspect.Signature([*own, *inherited])  # type: ignore[attr-defined]
        return init

    return decorate
