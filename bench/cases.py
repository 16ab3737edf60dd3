"""What is measured: the list of cases of each section."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from .subjects import LENSES

IDLE = 1_000_000
"""A cadence at which no measured step is observed."""


@dataclass(frozen=True)
class Case:
    """One subject on one model, in one setting."""

    section: str
    model: str
    subject: str = "monitorch"
    lenses: str = "all"
    correlation: str = "exact"
    every: int = 1
    tick: int = 0  # steps between ticks; 0: none
    compiled: bool = False
    seconds: float = 1.0

    @property
    def block(self) -> int:
        """How many steps belong together: some are observed, some are not, or one is followed by a tick."""
        return self.tick or (1 if self.every == IDLE else self.every)

    @property
    def label(self) -> str:
        """The setting in words."""
        words = [self.lenses] if self.subject != "torch_module_monitor" else ["norms"]
        words += {"exact": [], "sketch": ["sketched"], "none": ["no correlation"]}[self.correlation]
        words += [] if self.every == 1 else ["idle"] if self.every == IDLE else [f"every {self.every}"]
        words += [f"tick {self.tick}"] if self.tick else []
        return ", ".join(words)


def eager(section: str, model: str, seconds: float) -> Iterator[Case]:
    """Everything together in all settings, each lens alone, and the peers."""
    for correlation, every in (("exact", 1), ("sketch", 1), ("none", 1), ("exact", 10), ("none", 10)):
        yield Case(section, model, correlation=correlation, every=every, seconds=seconds)
    for lens in LENSES:
        yield Case(section, model, lenses=lens, seconds=seconds / 2)
    yield Case(section, model, "upstream", seconds=seconds)
    yield Case(section, model, "torch_module_monitor", seconds=seconds)


def compiled(section: str, model: str, seconds: float) -> Iterator[Case]:
    """Everything together inside a graph."""
    for correlation, every in (("exact", 1), ("sketch", 1), ("exact", 10)):
        yield Case(section, model, correlation=correlation, every=every, compiled=True, seconds=seconds)
    yield Case(section, model, "upstream", compiled=True, seconds=seconds)


def small(device: str) -> Iterator[Case]:
    """The models that fit a CPU; compilers take their time, so only one of them is compiled."""
    yield from eager("small", "mlp", seconds=1.5)
    yield from eager("small", "cnn", seconds=3.0 if device == "cpu" else 1.5)
    if device == "cpu":
        yield from eager("small", "gpt", seconds=0.8)
    yield from compiled("small", "mlp", seconds=1.0)


def scaling(device: str) -> Iterator[Case]:
    """More layers, more parameters, more frequent ticks."""
    for layers in (10, 100, 1000):
        for every in (1, IDLE):
            yield Case("scaling", f"layers={layers}", every=every)
    for size in ("1e6", "1e7") if device == "cpu" else ("1e6", "1e7", "1e8", "1e9"):
        for correlation in ("exact", "sketch"):
            yield Case("scaling", f"parameters={size}", correlation=correlation)
    for tick in (1, 10, 100):
        yield Case("scaling", "mlp", tick=tick)


def plan(sections: list[str], device: str) -> list[Case]:
    """The cases of ``sections``."""
    makers = {
        "small": lambda: small(device),
        "gpt2-eager": lambda: eager("gpt2-eager", "gpt2", seconds=1.6),
        "gpt2-compiled": lambda: compiled("gpt2-compiled", "gpt2", seconds=1.6),
        "scaling": lambda: scaling(device),
    }
    return list(chain.from_iterable(makers[section]() for section in sections if section in makers))
