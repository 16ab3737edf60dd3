"""The object that holds lenses, a model and a visualizer together."""

from .inspector_state import InspectorState
from .pytorch_inspector import PyTorchInspector

__all__ = ["InspectorState", "PyTorchInspector"]
