"""Learning rates and speed come by themselves where the optimizer is known."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from monitorch import PyTorchInspector
from monitorch.inspector.run_statistics import RunStatistics


def optimizer(*rates):
    return SGD([{"params": nn.Linear(1, 1).parameters(), "lr": rate} for rate in rates])


def rates(*optimizers, model=None):
    return RunStatistics(optimizers, model=model).read()


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
    assert rates(*optimizers) == expected


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
        self.head = nn.Linear(2, 1)


@pytest.fixture
def net():
    return Net()


def weights(net):
    return [parameter for parameter in net.parameters() if parameter.dim() > 1]


def vectors(net):
    return [parameter for parameter in net.parameters() if parameter.dim() < 2]


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        (lambda net: [{"params": net.parameters(), "name": "all"}], ["all"]),
        (lambda net: [{"params": weights(net), "name": "a"}, {"params": vectors(net), "name": "b"}], ["a", "b"]),
        (lambda net: [{"params": net.encoder.parameters()}, {"params": net.head.parameters()}], ["encoder", "head"]),
        (
            lambda net: [{"params": net.encoder[0].parameters()}, {"params": net.encoder[1].parameters()}],
            ["encoder.0", "encoder.1"],
        ),
        (
            lambda net: [{"params": weights(net), "weight_decay": 0.1}, {"params": vectors(net), "weight_decay": 0}],
            ["decay", "bias and norm"],
        ),
        (
            lambda net: [
                {"params": [*weights(net)[:1], *vectors(net)], "weight_decay": 0.1},
                {"params": weights(net)[1:], "weight_decay": 0},
            ],
            ["decay", "no decay"],
        ),
        (lambda net: [{"params": weights(net), "name": "a"}, {"params": vectors(net)}], ["a", "bias and norm"]),
        (
            lambda net: [{"params": weights(net), "name": "a"}, {"params": vectors(net), "name": "a"}],
            ["no decay", "bias and norm"],
        ),
        (
            lambda net: [{"params": weights(net), "name": "bias and norm"}, {"params": vectors(net)}],
            ["bias and norm", "1"],
        ),
        (
            lambda net: [{"params": weights(net)[:1]}, {"params": weights(net)[1:]}, {"params": vectors(net)}],
            ["0", "1", "2"],
        ),
        (lambda net: [{"params": weights(net), "name": 5}, {"params": vectors(net)}], ["no decay", "bias and norm"]),
    ],
)
def test_groups_are_called_by_their_name_else_by_what_is_in_them_else_by_their_number(net, groups, names):
    steps = SGD(groups(net), lr=0.1)
    for number, group in enumerate(steps.param_groups):
        group["lr"] = number + 1.0
    titles = [f"learning rate {name}" if name.isdigit() else f"learning rate ({name})" for name in names]
    assert rates(steps, model=net) == {title: number + 1.0 for number, title in enumerate(titles)}


def test_optimizers_of_two_parts_are_called_by_them(net):
    pair = SGD(net.encoder.parameters(), lr=0.1), SGD(net.head.parameters(), lr=0.2)
    assert rates(*pair, model=net) == {"learning rate (encoder)": 0.1, "learning rate (head)": 0.2}


def test_a_group_that_is_added_gets_a_name_too(net):
    steps = SGD(net.encoder.parameters(), lr=0.1)
    run_statistics = RunStatistics([steps], model=net)
    assert run_statistics.read() == {"learning rate": 0.1}
    steps.add_param_group({"params": net.head.parameters(), "lr": 0.2})
    assert run_statistics.read() == {"learning rate (encoder)": 0.1, "learning rate (head)": 0.2}


@pytest.mark.parametrize("rate", [None, "missing", "high", torch.ones(2), lambda step: 0.1])
def test_a_group_without_a_rate_that_is_a_number_is_left_out_and_ticks_go_on(net, rate):
    steps = SGD([{"params": net.encoder.parameters()}, {"params": net.head.parameters()}], lr=0.5)
    steps.step = lambda: None  # such optimizers have a step of their own
    if isinstance(rate, str) and rate == "missing":
        del steps.param_groups[0]["lr"]
    else:
        steps.param_groups[0]["lr"] = rate
    inspector = PyTorchInspector([], module=net, visualizer="dummy", optimizer=steps, on_error="raise")
    inspector.tick_epoch()
    found = {record.statistic: record.value for record in inspector.records()}
    assert found == {"learning rate (head) mean": 0.5}


def test_a_rate_that_is_a_tensor_is_not_waited_for_and_may_change_in_place(net, monkeypatch):
    rate = torch.tensor(0.5, dtype=torch.float64)
    inspector = PyTorchInspector(
        [], module=net, visualizer="dummy", optimizer=torch.optim.Adam(net.parameters(), lr=rate)
    )
    read = RunStatistics.read
    with monkeypatch.context() as patch:
        for name in ("item", "__float__", "tolist", "__bool__"):
            patch.setattr(torch.Tensor, name, lambda *_: pytest.fail("a tensor was read"))
        (found,) = read(inspector._steps.run_statistics).values()
        inspector._logged.numbers.push("learning rate", found)
    rate.fill_(9.0)
    assert inspector._logged.numbers.value["learning rate"].mean == 0.5


@pytest.mark.parametrize("rate", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
def test_a_rate_is_the_one_that_the_step_had_until_another_step_is_read(net, rate):
    steps = torch.optim.Adam(net.parameters(), lr=rate, foreach=False)
    run_statistics = RunStatistics([steps], model=net)
    run_statistics.end_step(3)
    if isinstance(rate, torch.Tensor):
        rate.fill_(0.25)
    else:
        steps.param_groups[0]["lr"] = 0.25
    assert [float(run_statistics.read(step)["learning rate"]) for step in (3, 4)] == [0.5, 0.25]


@pytest.mark.parametrize(("processes", "speed"), [(1, 2.5), (4, 10.0)])
def test_speed_is_that_of_all_processes_since_the_last_reading(processes, speed):
    run_statistics = RunStatistics([], processes, clock=iter([0.0, 2.0, 4.0]).__next__)
    run_statistics.count(torch.zeros(3, 8))
    run_statistics.count(torch.zeros(2, 8))
    assert run_statistics.read() == {"samples per second": speed}
    assert run_statistics.read() == {}


def test_steps_per_second_are_those_since_the_last_reading_or_since_a_checkpoint_was_loaded():
    run_statistics = RunStatistics([], clock=iter([0.0, 2.0, 4.0, 5.0, 5.5]).__next__)
    assert run_statistics.read(step=3) == {"steps per second": 1.5}
    assert run_statistics.read(step=3) == {}
    run_statistics.begin_at(1000)
    assert run_statistics.read(step=1002) == {"steps per second": 4.0}


def test_learning_rates_are_those_that_the_step_has_used_if_it_was_told_of():
    optimizer = SGD(nn.Linear(3, 1).parameters(), lr=0.5)
    run_statistics = RunStatistics([optimizer])
    run_statistics.end_step(7)
    optimizer.param_groups[0]["lr"] = 0.25
    assert [run_statistics.read(step)["learning rate"] for step in (7, 8)] == [0.5, 0.25]
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.1})  # after the step
    assert [v for name, v in run_statistics.read(7).items() if "rate" in name] == [0.5]
    assert [v for name, v in run_statistics.read(8).items() if "rate" in name] == [0.25, 0.1]


def test_peak_memory_is_that_of_the_device_of_the_model(monkeypatch):
    model = nn.Linear(3, 1)
    assert RunStatistics([], model=model).read() == {}
    monkeypatch.setattr(RunStatistics, "_device", lambda self: torch.device("cuda", 1))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", {torch.device("cuda", 1): 3 * 2**29}.get)
    assert RunStatistics([], model=model).read() == {"peak memory (GiB)": 1.5}


@pytest.mark.parametrize("batch", [None, {"ids": 1}, torch.tensor(1.0), "text"])
def test_what_cannot_be_counted_is_passed_over(batch):
    run_statistics = RunStatistics([])
    run_statistics.count(batch)
    assert run_statistics.read() == {}


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
    assert first["learning rate mean"] == pytest.approx(0.5)  # of the last step, not what the scheduler has set since
    assert second["learning rate mean"] == pytest.approx(0.05)
    assert first["samples per second mean"] == pytest.approx(4 * first["steps per second mean"])


def test_a_number_that_the_user_logs_under_the_same_name_is_the_one_shown():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = PyTorchInspector([], module=model, optimizer=optimizer, visualizer="dummy")
    for rate in (3.0, None):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        if rate is not None:
            inspector.log({"learning rate": rate})
        inspector.tick_epoch()
        shown = {record.statistic: record.value for record in inspector.records()}
        assert shown["learning rate mean"] == pytest.approx(rate or 0.1)


def test_an_inspector_that_does_not_logs_nothing():
    assert watched_numbers() == [{}, {}]


def test_what_is_set_aside_does_not_slow_training_down():
    run_statistics = RunStatistics([], clock=iter([0.0, 1.0, 51.0, 52.0]).__next__)
    run_statistics.count(torch.ones(8, 1))
    with run_statistics.set_aside():
        pass  # from 1 to 51
    assert run_statistics.read() == {"samples per second": 4.0}
