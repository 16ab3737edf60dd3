"""Figures for notebooks, papers and files, drawn with matplotlib."""

from .visualizer import MatplotlibVisualizer

__all__ = ["MatplotlibVisualizer"]
