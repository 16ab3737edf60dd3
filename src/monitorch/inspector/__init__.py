"""The object that connects lenses, a model and a visualizer."""

from .inspector_state import InspectorState
from .probe import ProbeReport
from .pytorch_inspector import PyTorchInspector

__all__ = ["InspectorState", "ProbeReport", "PyTorchInspector"]
