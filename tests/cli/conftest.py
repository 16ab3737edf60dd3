"""What the tests of the command line share."""

import os
import subprocess
import sys

import pytest

from monitorch.cli.demo_data import python_help
from monitorch.cli.demo_training import train
from monitorch.cli.progress import Progress
from monitorch.visualizer import AbstractVisualizer


class Notebook(AbstractVisualizer):
    """Keeps the numbers of every tick: epoch -> (tag, layer, line) -> number."""

    def __init__(self):
        self.ticks = {}

    def register_tags(self, main_tag, tag_attr):
        pass

    def plot_numerical_values(self, epoch, main_tag, values_dict, ranges_dict=None):
        tick = self.ticks.setdefault(epoch, {})
        for layer, lines in values_dict.items():
            tick.update({(main_tag, layer, line): value for line, value in lines.items()})

    plot_probabilities = plot_relations = plot_numerical_values


@pytest.fixture(scope="session")
def corpus():
    return python_help()


@pytest.fixture(scope="session")
def training(corpus):
    """Run the demo's training and give its outcome, and the numbers of every tick."""

    def run(steps, seed=0):
        notebook = Notebook()
        return train(corpus, steps, seed, notebook, Progress(steps, None)), notebook.ticks

    return run


@pytest.fixture(scope="session")
def python():
    """Run Python in a process of its own, with the arguments given; keywords are environment variables."""

    def run(*arguments, **environment):
        environment = {**os.environ, **environment}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)

    return run
