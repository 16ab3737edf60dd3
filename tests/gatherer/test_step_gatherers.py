"""Gatherers of what is told after steps: they pass on, and leave nothing behind."""

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.engine.gradient_parts import GradientParts
from monitorch.engine.parameter_facts import FactsTap
from monitorch.engine.second_moments import SecondMomentTap
from monitorch.gatherer.step_gatherers import FactsGatherer, SecondMomentGatherer
from monitorch.preprocessor import GradientGeometry
from monitorch.preprocessor.parameter_facts import FactSeries


@pytest.fixture
def setting():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    inspector = PyTorchInspector([], module=model, optimizer=optimizer, visualizer="dummy", on_error="raise")
    yield model, optimizer, inspector.state
    inspector.detach()


def train(model, optimizer):
    for _ in range(2):
        model(torch.ones(1, 2)).backward()
    optimizer.step()


def test_rows_of_gradients_and_parts_come_until_it_is_detached(setting):
    model, optimizer, state = setting
    rms, parts = GradientGeometry(correlation=False, normalize=True, inplace=False), []
    taps = SecondMomentTap(state.engine, optimizer), GradientParts(state.engine, optimizer, parts.append)
    gatherer = SecondMomentGatherer(model, "weight", [rms], "weight", state, *taps)
    train(model, optimizer)
    gatherer(torch.full((3,), 2.0))
    assert sorted(rms.value["weight"]) == pytest.approx([1.0, 2.0])
    assert [step.parts for step in parts] == [2]
    gatherer.detach()
    train(model, optimizer)
    assert len(rms.value["weight"]) == 2
    assert len(parts) == 1
    with pytest.raises(AttributeError, match="was detached"):
        gatherer(torch.ones(1))


def test_facts_come_under_the_name_of_the_gatherer_until_it_is_detached(setting):
    model, optimizer, state = setting
    series, tap = FactSeries(), FactsTap(state.engine, [optimizer])
    gatherer = FactsGatherer(model, "weight", [series], "weight", state, tap)
    gatherer.rename("layer.weight")
    train(model, optimizer)
    assert series.means("was_empty") == {"layer.weight": {"mean": 1.0}}
    gatherer("was_empty", 0.0)
    assert series.means("was_empty") == {"layer.weight": {"mean": 0.5}}
    gatherer.detach()
    train(model, optimizer)
    assert series.value["layer.weight"][0].count == 2
