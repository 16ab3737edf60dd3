"""Scale, range and features of what enters a model."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.lens import InputStatistics


class TwoInputs(nn.Module):
    """Takes token ids and numbers by keyword."""

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(9, 3), nn.Linear(3, 1)

    def forward(self, ids, *, batch):
        return self.linear(self.embedding(ids) + batch["numbers"])


def test_tags(tags_of):
    assert tags_of(InputStatistics()) == [
        (f"Input {what}", logy, False, True, "NUMERICAL", None)
        for what, logy in (
            ("Mean", False),
            ("Std", False),
            ("Range", False),
            ("Feature Spread", True),
            ("Constant Features", False),
            ("Nonfinite Elements", False),
        )
    ]


def test_every_argument_has_its_own_line_in_the_order_of_the_call(watch, shown, close):
    model = TwoInputs()
    inspector = watch(model, InputStatistics())
    stream = np.random.default_rng(0)
    numbers = [np.float32(stream.normal(size=(5, 3)) * [1, 50, 1]) for _ in range(2)]
    for low, array in enumerate(numbers):
        model(torch.tensor([low + 1, 3, 3, 4, 8]), batch={"numbers": torch.tensor(array)}).sum().backward()
    inspector.tick_epoch()
    assert shown.values("Input Range") == {
        "input": {"min": 1, "max": 8},
        "input.batch.numbers": {"min": close(np.min(numbers)), "max": close(np.max(numbers))},
    }
    spreads = [array.std(axis=0).max() / array.std(axis=0).min() for array in np.float64(numbers)]
    assert shown.values("Input Feature Spread") == {"input.batch.numbers": {"mean": close(np.mean(spreads))}}
    assert shown.ranges("Input Feature Spread") == {
        "input.batch.numbers": {("min", "max"): close((min(spreads), max(spreads)))}
    }
    assert shown.values("Input Constant Features") == {"input.batch.numbers": {"mean": 0}}


def test_unscaled_features_can_be_told_from_scaled_ones(watch, shown):
    model = nn.Linear(4, 1)
    inspector = watch(model, InputStatistics())
    raw = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1.0, 1.0, 300.0]) + 500
    found = []
    for inputs in (raw, (raw - raw.mean(0)) / raw.std(0)):
        model(inputs).sum().backward()
        inspector.tick_epoch()
        found.append([shown.values(f"Input {what}")["input"]["mean"] for what in ("Mean", "Std", "Feature Spread")])
    (mean, std, spread), (scaled_mean, scaled_std, scaled_spread) = found
    assert mean > 400
    assert std > 100
    assert spread > 100
    assert scaled_mean == pytest.approx(0, abs=1e-3)
    assert (scaled_std, scaled_spread) == pytest.approx((1, 1), rel=0.02)


def test_a_broken_batch_is_counted(watch, shown):
    model = nn.Linear(2, 1)
    inspector = watch(model, InputStatistics())
    for broken in (0, 3):
        inputs = torch.ones(4, 2)
        inputs[:broken, 0] = float("nan")
        model(inputs).sum().backward()
    inspector.tick_epoch()
    assert shown.values("Input Nonfinite Elements") == {"input": {"max": 3}}
    counts = {record.tag: record.nonfinite for record in inspector.records() if record.statistic == "mean"}
    assert counts["Input Mean"] == 1


def test_a_tick_names_only_what_has_come_since_the_last_one(watch, shown):
    model = TwoInputs()
    inspector = watch(model, InputStatistics())
    batch = {"numbers": torch.ones(2, 3)}
    model(torch.tensor([1, 2]), batch=batch).sum().backward()
    inspector.tick_epoch()
    model(ids=torch.tensor([1, 2]), batch=batch).sum().backward()
    inspector.tick_epoch()
    assert list(shown.values("Input Range")) == ["input.batch.numbers", "input.ids"]


def test_a_saved_state_goes_on_in_the_middle_of_a_tick():
    def begin():
        model = nn.Linear(2, 1)
        return model, PyTorchInspector([InputStatistics()], module=model, visualizer="dummy", on_error="raise")

    model, inspector = begin()
    model(torch.full((3, 2), 1.0)).sum().backward()
    again, resumed = begin()
    resumed.load_state_dict(inspector.state_dict())
    again(torch.full((3, 2), 5.0)).sum().backward()
    resumed.tick_epoch()
    found = {(record.tag, record.statistic): record.value for record in resumed.records()}
    assert [found["Input Range", end] for end in ("min", "max")] == [1, 5]
    assert found["Input Mean", "mean"] == 3
