"""Learning rates and speed come by themselves where the optimizer is known."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from monitorch import PyTorchInspector
from monitorch.inspector.vitals import Vitals


def optimizer(*rates):
    return SGD([{"params": nn.Linear(1, 1).parameters(), "lr": rate} for rate in rates])


@pytest.mark.parametrize(
    ("optimizers", "expected"),
    [
        ([], {}),
        ([optimizer(0.1)], {"learning rate": 0.1}),
        ([optimizer(0.1, 0.2)], {"learning rate 0": 0.1, "learning rate 1": 0.2}),
        ([optimizer(0.1), optimizer(0.3)], {"learning rate 0": 0.1, "learning rate 1": 0.3}),
    ],
    ids=["none", "one", "two groups", "two optimizers"],
)
def test_learning_rates_by_name(optimizers, expected):
    assert Vitals(optimizers).read() == expected


@pytest.mark.parametrize(("processes", "speed"), [(1, 2.5), (4, 10.0)])
def test_speed_is_that_of_all_processes_since_the_last_reading(processes, speed):
    vitals = Vitals([], processes, clock=iter([0.0, 2.0, 4.0]).__next__)
    vitals.count(torch.zeros(3, 8))
    vitals.count(torch.zeros(2, 8))
    assert vitals.read() == {"samples per second": speed}
    assert vitals.read() == {}


@pytest.mark.parametrize("batch", [None, {"ids": 1}, torch.tensor(1.0), "text"])
def test_what_cannot_be_counted_is_passed_over(batch):
    vitals = Vitals([])
    vitals.count(batch)
    assert vitals.read() == {}


def watched_numbers(**options):
    model = nn.Linear(3, 1)
    steps = SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(steps, step_size=2, gamma=0.1)
    inspector = PyTorchInspector(
        [], module=model, visualizer="dummy", **{name: steps for name in options if name == "optimizer"}
    )
    shown = []
    for _ in range(2):
        for _ in range(2):
            model(input=torch.ones(4, 3)).sum().backward()
            steps.step()
            schedule.step()
        inspector.tick_epoch()
        shown.append({record.statistic: record.value for record in inspector.records()})
    return shown


def test_an_inspector_that_knows_the_optimizer_logs_them_at_each_tick():
    first, second = watched_numbers(optimizer=True)
    assert first["learning rate mean"] == pytest.approx(0.05)
    assert second["learning rate mean"] == pytest.approx(0.005)
    assert first["samples per second mean"] > 0


def test_an_inspector_that_does_not_logs_nothing():
    assert watched_numbers() == [{}, {}]
