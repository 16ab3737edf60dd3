"""Tags, a visualizer full of them, and no figure left open after a test."""

import matplotlib
import matplotlib.pyplot as plt
import pytest

from monitorch.visualizer import MatplotlibVisualizer, TagAttributes, TagType


@pytest.fixture(autouse=True)
def _no_figures_left():
    matplotlib.use("Agg")
    plt.close("all")
    yield
    plt.close("all")


@pytest.fixture
def attributes():
    """Build attributes from what differs from a small numerical tag."""

    def build(kind=TagType.NUMERICAL, **changes):
        return TagAttributes(**{"logy": False, "big_plot": False, "annotate": True, "type": kind, **changes})

    return build


@pytest.fixture
def visualizer(attributes):
    """Build a visualizer with one tag ``T`` that got ``{layer: {line: [number per epoch]}}``."""

    def build(layers, *, bands=None, kind=TagType.NUMERICAL, first_epoch=0, **changes):
        built = MatplotlibVisualizer()
        built.register_tags("T", attributes(kind, **changes))
        epochs = max((len(numbers) for lines in layers.values() for numbers in lines.values()), default=0)
        for index in range(epochs):
            values = {
                layer: {name: numbers[index] for name, numbers in lines.items()} for layer, lines in layers.items()
            }
            ranges = {layer: {edges: (lo[index], hi[index])} for layer, (edges, lo, hi) in (bands or {}).items()}
            built.plot_numerical_values(first_epoch + index, "T", values, ranges)
        return built

    return build


@pytest.fixture
def axes_of():
    """The axes of one tag of a figure, by title."""

    def find(figure, tag="T"):
        parts = [part for block in figure.subfigs for part in block.subfigs if part.get_suptitle() == tag]
        return {axes.get_title(): axes for part in parts for axes in part.axes}

    return find
