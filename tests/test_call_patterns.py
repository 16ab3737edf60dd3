"""The ways people call an inspector in notebooks, each with its results."""

import math
from itertools import pairwise

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

from monitorch.inspector import PyTorchInspector
from monitorch.lens import (
    LossMetrics,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
)
from monitorch.visualizer import MatplotlibVisualizer, TensorBoardVisualizer
from monitorch.visualizer.record_sink import RecordSink

X, Y = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0], [1.0], [1.0], [0.0]])


class Kept(RecordSink):
    def __init__(self):
        super().__init__()
        self.records = []

    def write(self, records):
        self.records += records

    def line(self, tag, layer=None, statistic="mean"):
        """Values of one line, tick by tick."""
        at = (tag, layer or tag, statistic)
        return [r.value for r in self.records if (r.tag, r.layer, r.statistic) == at]


def net(hidden=4):
    return nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def fit(model, loss_fn=None, optimizer=None, steps=2):
    """Plain steps on exclusive or; returns the losses."""
    loss_fn = loss_fn or nn.MSELoss()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_fn(model(X), Y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def titles(figure):
    """Titles of a figure and everything in it."""
    own = [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)]
    return {*own, *(title for part in figure.subfigs for title in titles(part))}


def test_one_inspector_is_attached_to_one_model_after_the_other():
    inspector = PyTorchInspector([OutputNorm(), LossMetrics()], visualizer=MatplotlibVisualizer())
    for name in ("first", "second", "third"):
        model = nn.Sequential()
        model.add_module(name, nn.Linear(2, 1))
        model.add_module(f"act_{name}", nn.Sigmoid())
        assert inspector.attach(model) is inspector
        for _ in inspector.range(2):
            inspector.push_loss(fit(model)[-1], train=True)
        assert {title for title in titles(inspector.visualizer.show_fig()) if "act" in title} == {f"act_{name}"}


@pytest.mark.parametrize("visualizer", ["matplotlib", "tensorboard", "print"])
def test_everything_is_given_to_the_constructor(visualizer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = net()
    inspector = PyTorchInspector(lenses=[ParameterNorm()], module=model, visualizer=visualizer)
    for _ in inspector.range(2):
        fit(model)
    if visualizer == "matplotlib":
        assert "Weight Norm" in titles(inspector.visualizer.show_fig())
    elif visualizer == "tensorboard":
        inspector.visualizer.writer.flush()
        assert list(tmp_path.glob("runs/*/events*"))
    else:
        assert "epoch 2" in capsys.readouterr().out


def test_ticks_come_every_few_optimizer_steps():
    model, kept = net(), Kept()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = PyTorchInspector([LossMetrics()], module=model, visualizer=kept)
    losses = []
    for step in range(1, 7):
        losses += fit(model, optimizer=optimizer, steps=1)
        inspector.push_loss(losses[-1], train=True)
        if step % 3 == 0:
            inspector.tick()
    assert kept.line("Loss", statistic="train_loss mean") == pytest.approx([sum(losses[:3]) / 3, sum(losses[3:]) / 3])


def test_figure_is_taken_after_training_and_goes_on_living():
    model = net()
    inspector = PyTorchInspector([LossMetrics(), OutputActivation()], module=model, visualizer="matplotlib")
    for _ in inspector.range(3):
        inspector.push_loss(fit(model)[-1], train=True)
    figure = inspector.visualizer.show_fig()
    assert {"Loss", "Output Activations", "Warning Output Activations", "1"} <= titles(figure)
    inspector.tick_epoch()
    assert isinstance(inspector.visualizer.show_fig(), plt.Figure)


def test_loss_module_is_listened_to_with_median_and_quartiles():
    model, loss_fn, kept = net(), nn.MSELoss(), Kept()
    lens = LossMetrics(
        loss_fn=loss_fn,
        metrics=["accuracy"],
        separate_loss_and_metrics=False,
        loss_fn_inplace=False,
        loss_range=["Q1-Q3", "min-max"],
        loss_line="median",
    )
    inspector = PyTorchInspector([lens], module=model, visualizer=kept)
    losses = fit(model, loss_fn, steps=5)
    inspector.push_metric("accuracy", 0.75)
    inspector.tick_epoch()
    lines = {name: kept.line("Loss & Metrics", statistic=f"train_loss {name}") for name in ("median", "Q1", "max")}
    expected = sorted(losses)
    assert lines == {"median": [expected[2]], "Q1": [expected[1]], "max": [expected[4]]}
    assert kept.line("Loss & Metrics", statistic="accuracy mean") == [0.75]


def test_losses_are_pushed_by_hand_and_kept_in_memory():
    kept = Kept()
    lens = LossMetrics(metrics=["val_accuracy"], loss_line="median", loss_range="Q1-Q3")
    inspector = PyTorchInspector([lens], visualizer=kept)
    for _ in inspector.range(2):
        for loss in (5.0, 1.0, 2.0, 4.0, 3.0):
            inspector.push_loss(loss, train=True, running=False)
        inspector.push_loss(7.0, train=False, running=False)
        inspector.push_metric("val_accuracy", 0.5)
    found = [kept.line("Loss", statistic=f"train_loss {name}") for name in ("median", "Q1", "Q3")]
    assert found == [[3.0, 3.0], [2.0, 2.0], [4.0, 4.0]]
    assert kept.line("Loss", statistic="val_loss median") == [7.0, 7.0]
    assert kept.line("Metrics", statistic="val_accuracy mean") == [0.5, 0.5]


def test_training_stops_early_by_the_loss_of_the_last_tick():
    inspector = PyTorchInspector([LossMetrics()], visualizer="dummy")
    best, epochs = math.inf, 0
    for value in (3.0, 2.0, 1.0, 1.5, 0.1):
        inspector.push_loss(value, train=False)
        inspector.tick_epoch()
        epochs += 1
        if inspector.lenses[0].loss(train=False) > best:
            break
        best = inspector.lenses[0].loss(train=False)
    assert (best, epochs) == (1.0, 4)


def test_loss_module_is_heard_over_detaching_and_attaching():
    loss_fn = nn.MSELoss()
    lens = LossMetrics(loss_fn=loss_fn)
    inspector = PyTorchInspector([lens], visualizer="dummy")
    for _ in range(3):
        model = net()
        inspector.attach(model)
        losses = fit(model, loss_fn)
        inspector.tick_epoch()
        assert lens.loss(train=True) == pytest.approx(sum(losses) / 2)
        inspector.detach()


def test_validation_in_a_function_without_gradients_is_told_from_training():
    model, loss_fn, kept = net(), nn.MSELoss(), Kept()

    @torch.no_grad
    def validate():
        return loss_fn(model(X * 100), Y).item()

    lenses = [LossMetrics(loss_fn=loss_fn), OutputNorm(), OutputActivation()]
    inspector = PyTorchInspector(lenses, module=model, visualizer=kept)
    norm = model[:2](X).double().norm(dim=1).mean().item()
    [train_loss], val_loss = fit(model, loss_fn, steps=1), validate()
    inspector.tick_epoch()
    assert kept.line("Loss", statistic="train_loss mean") == [pytest.approx(train_loss)]
    assert kept.line("Loss", statistic="val_loss mean") == [pytest.approx(val_loss)]
    assert kept.line("Output Norm", "1") == [pytest.approx(norm)]


def test_visualizer_is_changed_while_detached(tmp_path):
    model = net()
    inspector = PyTorchInspector([ParameterNorm()], module=model, visualizer="matplotlib")
    fit(model)
    inspector.tick_epoch()
    inspector.detach().visualizer = TensorBoardVisualizer(log_dir=str(tmp_path))
    inspector.attach(model)
    fit(model)
    inspector.tick_epoch()
    inspector.visualizer.writer.flush()
    assert list(tmp_path.glob("events*"))


def test_several_lenses_of_one_kind_look_at_different_parameters():
    model, kept = nn.ModuleDict({"rnn": nn.LSTM(2, 3), "head": nn.Linear(3, 1)}), Kept()
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    lenses = [ParameterGradientGeometry(), ParameterGradientGeometry(parameters=names)]
    inspector = PyTorchInspector(lenses, module=model, visualizer=kept)
    model["head"](model["rnn"](X[None])[0]).pow(2).sum().backward()
    inspector.tick_epoch()
    for name in names:
        truth = getattr(model["rnn"], name).grad.double().norm().item()
        assert kept.line(f"{name} Gradient Norm".title(), "rnn") == [pytest.approx(truth)]
    assert kept.line("Weight Gradient Norm", "head") == [
        pytest.approx(model["head"].weight.grad.double().norm().item())
    ]


def test_policy_acts_without_gradients_and_learns_with_them():
    policy, kept = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2), nn.Identity()), Kept()
    lenses = [
        OutputNorm(include=[nn.Identity], activation=False, normalize_by_size=True),
        ParameterNorm(normalize_by_size=True),
        LossMetrics(metrics=["reward", "length"]),
    ]
    inspector = PyTorchInspector(lenses, module=policy, visualizer=kept)
    with torch.no_grad():
        policy(X * 1000)  # acting is not recorded
    truth = policy(X).double().norm(dim=1).mean().item() / math.sqrt(2)
    inspector.push_metric("reward", 3.0)
    inspector.push_metric("length", 9.0)
    inspector.tick_epoch()
    assert kept.line("Output Norm", "3") == [pytest.approx(truth)]
    weight = policy[0].weight.detach().double()
    assert kept.line("Weight Norm", "0") == [pytest.approx(weight.pow(2).mean().sqrt().item())]
    assert [kept.line("Metrics", statistic=f"{name} mean") for name in ("reward", "length")] == [[3.0], [9.0]]


def test_keywords_of_earlier_releases_are_understood():
    model, kept = net(), Kept()
    lenses = [
        ParameterGradientGeometry(compute_adj_prod=False),
        OutputGradientGeometry(compute_adj_prod=False),
        OutputNorm(skip_no_grad_pass=True),
    ]
    inspector = PyTorchInspector(lenses, module=model, vizualizer=kept)
    fit(model, steps=1)
    with torch.no_grad():
        model(X * 1000)
    inspector.tick_epoch()
    assert not [tag for tag in kept.tags if "Correlation" in tag]
    assert kept.line("Output Norm", "1")[0] < 100
    assert inspector.vizualizer is kept


def test_parameters_are_sampled_by_hand_between_ticks():
    model, kept = net(), Kept()
    norms = ParameterNorm(inplace=False, aggregation_method="max")
    updates = ParameterUpdateGeometry(None, parameters="weight")
    inspector = PyTorchInspector([norms, updates], module=model, visualizer=kept)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    weights = []
    for _ in range(3):
        fit(model, optimizer=optimizer, steps=1)
        norms.collect_data()
        updates.inspect_update()
        weights.append(model[0].weight.detach().double().clone())
    inspector.tick_epoch()
    assert kept.line("Weight Norm", "0", "max") == [pytest.approx(max(w.norm().item() for w in weights))]
    moves = [(after - before).norm().item() for before, after in pairwise(weights)]
    assert kept.line("Weight Update Norm", "0") == [pytest.approx(sum(moves) / 2, rel=1e-4)]
