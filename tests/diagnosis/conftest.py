"""Histories that are written by hand."""

import numpy as np
import pytest

from monitorch.diagnosis import RunFacts, SampleHistory, diagnose
from monitorch.diagnosis.history import LOSS, TRAINING, VALIDATION, Parameter

LINEAR = {"fc0": "Linear", "act0": "ReLU", "fc1": "Linear", "act1": "ReLU", "fc2": "Linear"}


def parameters_of(layers, dtype="float32"):
    """A weight of 8 times 8 and a bias for each linear layer."""
    return {
        f"{name}.{part}": Parameter(name, shape, dtype)
        for name, kind in layers.items()
        if kind == "Linear"
        for part, shape in (("weight", (8, 8)), ("bias", (8,)))
    }


class Story:
    """A run of which everything is known: three linear layers, unless others are given."""

    def __init__(self, layers=LINEAR, dtype="float32", **facts):
        self.history = SampleHistory(RunFacts(dict(layers), parameters_of(layers, dtype), **facts))

    @property
    def facts(self):
        return self.history.facts

    def add(self, signal, steps=None, **columns):
        """One series for each place, with ``__`` for a dot; a number is repeated, NaN is left out."""
        length = max(np.size(values) for values in columns.values())
        steps = np.arange(1, max(length, 20 if length == 1 else 0) + 1) if steps is None else np.asarray(steps)
        for place, values in columns.items():
            values = np.broadcast_to(np.asarray(values, float), len(steps))
            known = ~np.isnan(values)
            self.history.add(
                signal, [place.replace("__", ".")], np.zeros(known.sum(), int), steps[known], values[known]
            )
        return self

    def weights(self, signal, *values, steps=None):
        """A series for each weight of the model, in order; None for none."""
        names = [name for name, own in self.facts.parameters.items() if own.is_weight]
        columns = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        return self.add(signal, steps, **columns)

    def losses(self, values, steps=None, kind=TRAINING):
        """Losses, also those that are not finite; one for each step."""
        values = np.asarray(values, float)
        steps = np.arange(1, len(values) + 1) if steps is None else np.asarray(steps)
        self.history.add(LOSS, [kind], np.zeros(len(values), int), steps, values)
        return self

    def checks(self, values, steps):
        """Validation losses."""
        return self.losses(values, steps, VALIDATION)

    def find(self, symptom):
        """What this symptom finds, alone."""
        return diagnose(self.history, [symptom])

    def one(self, symptom):
        """The only finding of this symptom."""
        (found,) = self.find(symptom)
        assert found.symptom == symptom.id
        assert found.explanation.endswith(".")
        assert found.remedy.text
        return found


@pytest.fixture
def story():
    return Story


@pytest.fixture
def falling():
    """The losses of a run that learns."""
    return lambda count=100, first=2.0, last=0.1: first * (last / first) ** (np.arange(count) / max(count - 1, 1))


@pytest.fixture
def flat():
    """The losses of a run that learns nothing."""
    return lambda count=100, level=2.0: level * (1 + 0.01 * np.random.default_rng(0).normal(size=count))
