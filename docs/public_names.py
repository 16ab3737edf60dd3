"""Which names of monitorch are public, and which of them a list of documented names leaves out."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import monitorch

REFERENCE = Path(__file__).parent / "reference"
INSIDE = ("monitorch.cli", "monitorch.engine", "monitorch.lens.views", "monitorch.preprocessor.outputs")
"""Modules that say what they export to others of ours, not to users."""


def public() -> Iterator[tuple[str, str]]:
    """Packages and the names that they export; modules are no names."""
    for package in (monitorch.__name__, *_modules()):
        module = import_module(package)
        for name in getattr(module, "__all__", ()):
            if not name.startswith("__") and not isinstance(getattr(module, name), ModuleType):
                yield package, name


def _modules() -> Iterator[str]:
    for found in pkgutil.walk_packages(monitorch.__path__, "monitorch."):
        is_private = any(part.startswith("_") for part in found.name.split("."))
        if not is_private and not found.name.startswith((*INSIDE, "monitorch.integration")):
            yield found.name


def missing(documented: Iterable[str]) -> list[str]:
    """Public names that are not among these, under this path or any other that leads to the same object."""
    known = set(documented)
    objects = {id(found) for name in known if (found := _find(name)) is not None}
    paths = [(f"{package}.{name}", getattr(import_module(package), name)) for package, name in public()]
    return [path for path, found in paths if path not in known and id(found) not in objects]


def _find(path: str) -> Any:
    """What a dotted path leads to; None if it leads nowhere."""
    package, _, name = path.rpartition(".")
    try:
        return getattr(import_module(package), name, None)
    except (ImportError, ValueError):  # a member of a class, or a name without a package
        return None


def in_reference() -> set[str]:
    """The names that the pages of the reference ask Sphinx to document."""
    names = set[str]()
    for page in REFERENCE.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        names.update(re.findall(r"^\.\. (?:autoclass|autofunction|py:data):: (\S+)$", text, re.MULTILINE))
        for module, options in re.findall(r"^\.\. automodule:: (\S+)\n((?:   .*\n)*)", text, re.MULTILINE):
            left_out = set(re.findall(r"\w+", "".join(re.findall(r":exclude-members: (.*)", options))))
            names.update(f"{module}.{name}" for name in _members(import_module(module)) if name not in left_out)
    return names


def _members(module: ModuleType) -> Iterable[str]:
    """What Sphinx documents of a module."""
    own = (name for name, found in vars(module).items() if getattr(found, "__module__", None) == module.__name__)
    return getattr(module, "__all__", own)
