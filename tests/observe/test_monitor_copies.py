"""Copies of monitors, of what they watch, and of their state."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from monitorch.observe import (
    CAReducer,
    EMAReducer,
    OutputMonitor,
    PassthroughReducer,
)

X = torch.ones(1, 2)
DUPLICATES = [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))]


@pytest.mark.parametrize("duplicate", [*DUPLICATES, AveragedModel])
def test_copy_of_a_watched_model_is_not_watched(build_monitor, layer, duplicate):
    monitor = build_monitor(PassthroughReducer(1.0), layer)
    copied = duplicate(layer)
    layer(X)
    copied(X)
    assert monitor.reducer.count == 1
    del monitor
    copied(X)


@pytest.mark.parametrize("duplicate", DUPLICATES)
def test_copy_of_a_monitor_is_independent(build_monitor, layer, duplicate):
    monitor = build_monitor(CAReducer(1.0, 2.0), layer)
    layer(X)
    copied = duplicate(monitor)
    assert not copied.registered
    assert torch.equal(copied.latest, monitor.latest)
    copied.register(other := nn.Linear(2, 2))
    other(X)
    assert (monitor.reducer.count, copied.reducer.count) == (1, 2)


def test_monitor_inside_the_model_is_copied_with_it(layer):
    layer.monitor = OutputMonitor(PassthroughReducer(1.0), layer)
    copied = copy.deepcopy(layer)
    layer(X)
    copied(X)
    assert (layer.monitor.reducer.count, copied.monitor.reducer.count) == (1, 0)
    copied.monitor.register(copied)
    copied(X)
    assert (layer.monitor.reducer.count, copied.monitor.reducer.count) == (1, 1)


def test_whole_watched_model_is_saved_and_loaded(layer):
    monitor = OutputMonitor(PassthroughReducer(1.0), layer)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(X), layer(X))
    assert monitor.reducer.count == 1


def test_state_is_loaded_into_a_fresh_monitor(build_monitor, layer):
    monitor = build_monitor(EMAReducer(1.0, 0.5, 3.0), layer)
    for _ in range(2):
        layer(X)
    file = io.BytesIO()
    torch.save(monitor.state_dict(), file)
    file.seek(0)
    fresh = build_monitor(EMAReducer(1.0, 0.5, 3.0))
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(fresh.dump(), monitor.dump())
    fresh.register(layer)
    layer(X)
    assert torch.equal(fresh.dump(), monitor.dump())
