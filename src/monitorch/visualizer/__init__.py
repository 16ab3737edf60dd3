"""Visualizers show the numbers: as text, figures, in TensorBoard, as recordings, or in your own class."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError, OptionError
from .abstract_visualizer import AbstractVisualizer, TagAttributes, TagType
from .dummy_visualizer import DummyVisualizer
from .player_visualizer import PlayerVisualizer
from .print_visualizer import PrintVisualizer
from .record import Record
from .recorder_visualizer import RecorderVisualizer
from .several import Several

if TYPE_CHECKING:
    from .matplotlib import MatplotlibVisualizer
    from .store_visualizer import StoreVisualizer
    from .tensorboard_visualizer import TensorBoardVisualizer

__all__ = [
    "AbstractVisualizer",
    "MatplotlibVisualizer",
    "PlayerVisualizer",
    "PrintVisualizer",
    "Record",
    "RecorderVisualizer",
    "StoreVisualizer",
    "TagAttributes",
    "TagType",
    "TensorBoardVisualizer",
]

# class name -> (module that defines it, package it needs, which is also the name of the extra)
_OPTIONAL = {
    "MatplotlibVisualizer": (".matplotlib", "matplotlib"),
    "TensorBoardVisualizer": (".tensorboard_visualizer", "tensorboard"),
    "StoreVisualizer": (".store_visualizer", "numpy"),  # always installed, but slow to import
}

# the names that PyTorchInspector(visualizer=...) accepts, whatever is installed
_vizualizer_dict: dict[str, str | type[AbstractVisualizer]] = {
    "print": PrintVisualizer,
    "dummy": DummyVisualizer,
    "matplotlib": "MatplotlibVisualizer",
    "tensorboard": "TensorBoardVisualizer",
    "store": "StoreVisualizer",
}


def __getattr__(name: str) -> Any:
    """Import a visualizer with an optional dependency on first use."""
    if name not in _OPTIONAL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, package = _OPTIONAL[name]
    if find_spec(package) is None:
        raise MissingExtraError.needed_by(name, package, extra=package)
    return getattr(import_module(module, __name__), name)


def resolve(visualizer: Any) -> Any:
    """A visualizer as it is, or built from its short name; a list becomes one that shows everything in each."""
    if isinstance(visualizer, str):
        return create(visualizer)
    if isinstance(visualizer, (list, tuple)) and visualizer:
        return Several([resolve(part) for part in visualizer])
    if isinstance(visualizer, type) or not hasattr(visualizer, "register_tags"):
        names = ", ".join(map(repr, _vizualizer_dict))
        hint = f": write {visualizer.__name__}()" if isinstance(visualizer, type) else ""
        raise OptionError(f"visualizer must be one of {names}, or a visualizer object, not {visualizer!r}{hint}")
    return visualizer


def create(name: str) -> AbstractVisualizer:
    """Build a visualizer from its short name."""
    if name not in _vizualizer_dict:
        raise OptionError.unknown("visualizer", name, _vizualizer_dict)
    entry = _vizualizer_dict[name]
    visualizer: AbstractVisualizer = (__getattr__(entry) if isinstance(entry, str) else entry)()
    return visualizer
