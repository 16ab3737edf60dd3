"""Pools of monitors: those that would record the same are shared."""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from ..errors import LifecycleError
from .module import Module
from .monitor import Monitor, MonitorConstructor


class Monitors(Mapping[str, Monitor]):
    """Monitors by name, as items and as attributes; holds them weakly."""

    def __init__(self) -> None:
        self._found: weakref.WeakValueDictionary[str, Monitor] = weakref.WeakValueDictionary()

    def __getitem__(self, name: str) -> Monitor:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._found))

    def __len__(self) -> int:
        return len(self._found)

    def __getattr__(self, name: str) -> Monitor:
        try:
            return self.__dict__["_found"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"there is no monitor {name!r}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Monitors, ()  # monitors watch the original, not its copy


class Weakly:
    """A weak reference that can be copied: its copy refers to the copy of the object."""

    def __init__(self, thing: Any) -> None:
        self._reference = None if thing is None else weakref.ref(thing)

    def __call__(self) -> Any:
        """The object, or None if it is gone."""
        return None if self._reference is None else self._reference()

    def __reduce__(self) -> tuple[Any, ...]:
        return Weakly, (self(),)


class Observable:
    """A part of a larger module, the basis; knows the paths of its attributes from the basis.

    A subclass writes :meth:`local_remap`.

    Args:
        basis: the module that monitors are registered on.
        realign: name of a method of the basis that returns a path.
        realign_args: the first positional arguments for it.
        realign_kwargs: the first keyword arguments for it.
    """

    def __init__(
        self,
        basis: nn.Module,
        realign: str,
        realign_args: tuple[Any, ...] | None,
        realign_kwargs: dict[str, Any] | None,
    ) -> None:
        if not callable(getattr(basis, realign, None)):
            raise TypeError(f"realign={realign!r} is not a method of {type(basis).__name__}")
        self._basis, self._realign = Weakly(basis), realign
        self._realign_args, self._realign_kwargs = tuple(realign_args or ()), dict(realign_kwargs or {})
        self._monitors = Monitors()

    @property
    def basis(self) -> nn.Module:
        """The module that monitors are registered on."""
        basis = self._basis()
        if basis is None:
            raise LifecycleError(f"the module that this {type(self).__name__} is a part of is gone")
        return basis  # type: ignore[no-any-return]

    @property
    def monitors(self) -> Monitors:
        """The existing monitors that were made through this object."""
        return self._monitors

    def local_remap(self, attr: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The other arguments, positional and keyword, that the method of the basis needs for ``attr``."""
        raise NotImplementedError(f"{type(self).__name__} needs a method local_remap(attr)")

    def realign_attribute(self, attr: str) -> str:
        """The path of an attribute from the basis."""
        args, kwargs = self.local_remap(attr)
        realign = getattr(self.basis, self._realign)
        return str(realign(*self._realign_args, *args, **self._realign_kwargs, **kwargs))

    def add_monitor(
        self,
        name: str,
        attr: str,
        constructor: MonitorConstructor,
        pool: Iterable[tuple["Observable", Mapping[str, Monitor]]] | None,
        /,
        **tags: Any,
    ) -> Monitor:
        """A monitor of ``attr``: the one in the pool with this basis, name, path and tags, or a new one."""
        path = self.realign_attribute(attr)
        wanted = {} if pool is None else {**tags, "_attr": path}
        known = sorted(pool or (), key=lambda entry: entry[0] is not self)
        alike = (found[name] for other, found in known if name in found and other._basis() is self.basis)
        monitor = next((one for one in alike if one.tags == wanted), None)
        if monitor is None:
            monitor = constructor(path, self.basis)
            monitor.tags = wanted
        self._monitors._found[name] = monitor
        return monitor


class MonitorPool(Module):
    """Holds monitors by observable and name; a monitor may have several names."""

    def __init__(self) -> None:
        super().__init__()
        self.monitors_ = nn.ModuleDict()
        self._observed: dict[str, weakref.ref[Observable]] = {}

    @property
    def monitors(self) -> Iterator[Monitor]:
        """All monitors, each once."""
        return iter(list({id(monitor): monitor for _, monitor in self.named_monitors}.values()))

    @property
    def named_monitors(self) -> Iterator[tuple[tuple[str, str], Monitor]]:
        """All monitors, each with the name of its observable and its own."""
        for observed in list(self.monitors_):
            for name, monitor in self.named_monitors_of(observed):
                yield (observed, name), monitor

    def named_monitors_of(self, observed: str) -> Iterator[tuple[str, Monitor]]:
        """The monitors of one observable, by name."""
        yield from list(self._group(observed).items())

    @property
    def pool(self) -> Iterator[tuple[Observable, dict[str, Monitor]]]:
        """Observables that still exist, with their monitors."""
        for name, observable in self._alive().items():
            yield observable, self._group(name)

    def add_observed(self, name: str, value: Observable) -> Observable:
        """Add an observable. The pool does not keep it alive."""
        if not isinstance(value, Observable):
            raise TypeError(f"{name!r} is a {type(value).__name__}, not an Observable")
        if name in self._alive():
            raise LifecycleError(f"the pool already has an observable {name!r}: choose another name")
        if name in self.monitors_:
            raise LifecycleError(f"the pool still has monitors of an earlier {name!r}: call del_observed() first")
        self._observed[name] = weakref.ref(value)
        return value

    def get_observed(self, name: str) -> Observable:
        """The observable of a name."""
        alive = self._alive()
        if name not in alive:
            raise KeyError(f"the pool has no observable {name!r}; it has {', '.join(map(repr, alive)) or 'none'}")
        return alive[name]

    def del_observed(self, name: str) -> None:
        """Remove an observable and its monitors, if there is one."""
        for monitor, _ in list(self.named_monitors_of(name)):
            self.del_monitor(name, monitor)
        self._observed.pop(name, None)

    def add_monitor(
        self, observed: str, name: str, attr: str, constructor: MonitorConstructor, unique: bool = False, /, **tags: Any
    ) -> Monitor:
        """The monitor of that name, or a new one; ``unique`` replaces it by one that is never shared."""
        if observed not in self._alive():
            raise AttributeError(f"the pool has no observable {observed!r}: call add_observed() first")
        known = self.get_monitor(observed, name)
        if known is not None and not unique:
            return known
        before = [id(monitor) for monitor in self.monitors]
        shared = None if unique else self.pool
        monitor = self.get_observed(observed).add_monitor(name, attr, constructor, shared, **tags)
        if known is not None:
            self.del_monitor(observed, name)
        if observed not in self.monitors_:
            self.monitors_[observed] = nn.ModuleDict()
        self.monitors_[observed].add_module(name, monitor)
        if not self.training and id(monitor) not in before:
            monitor.deregister()
        return monitor

    def get_monitor(self, observed: str, monitor: str) -> Monitor | None:
        """The monitor of that name, or None."""
        return self._group(observed).get(monitor)

    def del_monitor(self, observed: str, monitor: str) -> None:
        """Remove a name of a monitor; the monitor stops when it has no name left."""
        dropped = self.get_monitor(observed, monitor)
        if dropped is None:
            raise AttributeError(f"the pool has no monitor {monitor!r} of {observed!r}")
        group = self.monitors_[observed]
        del group[monitor]  # type: ignore[operator]
        if not self._group(observed):
            del self.monitors_[observed]
        if all(dropped is not other for other in self.monitors):
            dropped.deregister()

    def _alive(self) -> dict[str, Observable]:
        """Observables that still exist, by name."""
        found = {name: reference() for name, reference in self._observed.items()}
        return {name: observable for name, observable in found.items() if observable is not None}

    def _group(self, observed: str) -> dict[str, Monitor]:
        return dict(self.monitors_[observed].items()) if observed in self.monitors_ else {}  # type: ignore[operator]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_observed": {}}
