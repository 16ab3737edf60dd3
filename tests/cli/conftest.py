"""What the tests of the command line share."""

import os
import subprocess
import sys

import numpy as np
import pytest

from monitorch.cli.demo_data import python_help
from monitorch.cli.demo_training import train
from monitorch.diagnosis import RunFacts, signals
from monitorch.diagnosis.check import FACTS
from monitorch.store import Writer
from monitorch.store.samples import SampleArrays
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
        return train(corpus, steps, seed, notebook, lambda step, words: None), notebook.ticks

    return run


@pytest.fixture(scope="session")
def python():
    """Run Python in a process of its own, with the arguments given; keywords are environment variables."""

    def run(*arguments, **environment):
        environment = {**os.environ, **environment}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)

    return run


@pytest.fixture
def write_run(tmp_path):
    """Write a run below ``tmp_path / "runs"``: ``values`` is ``{lens: {statistic: {layer: numbers}}}``."""

    def write(name, values, status="finished", every=1, **options):
        with Writer(tmp_path / "runs" / name, **options) as writer:
            for lens, statistics in values.items():
                layers = list(dict.fromkeys(layer for numbers in statistics.values() for layer in numbers))
                columns = [[numbers[layer] for layer in layers] for numbers in statistics.values()]
                for tick, frame in enumerate(np.array(columns, float).transpose(2, 0, 1)):
                    step = (tick + 1) * every
                    writer.put(lens, step, frame, layers=layers, statistics=list(statistics), time=1000.0 + tick)
            writer.close(status)
        return tmp_path / "runs" / name

    return write


@pytest.fixture
def write_judged(write_run):
    """Write a run of which a diagnosis has kept samples: those of its inputs, with this standard deviation."""

    def write(name, std, steps=20):
        folder = write_run(name, {"L": {"Norm/mean": {"fc": [1.0, 2.0]}}}, meta={FACTS: RunFacts().to_json()}, every=10)
        numbers = {signals.INPUT_STD: std, signals.INPUT_MEAN: 0.0, signals.FEATURE_SPREAD: 1.0}
        with Writer(folder, resume=True) as writer:
            for signal, value in numbers.items():
                samples = SampleArrays(np.arange(1, steps + 1), np.zeros(steps, int), np.full(steps, value))
                writer.put_samples(signal, samples, writer="w", first=0, names=["input"], replaces=False)
        return folder

    return write
