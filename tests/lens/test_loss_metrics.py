"""Losses from their three sources, metrics, and what is said of them after a tick."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.errors import OptionError
from monitorch.inspector import PyTorchInspector
from monitorch.lens import LossMetrics


def big(tag):
    return (tag, False, True, True, "NUMERICAL", None)


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, [big("Loss")]),
        ({"metrics": ["accuracy"]}, [big("Loss"), big("Metrics")]),
        ({"metrics": "accuracy"}, [big("Loss"), big("Metrics")]),
        ({"metrics": "accuracy", "separate_loss_and_metrics": False}, [big("Loss & Metrics")]),
        ({"separate_loss_and_metrics": False}, [big("Loss & Metrics")]),
    ],
)
def test_tags(options, tags, tags_of):
    assert tags_of(LossMetrics(**options)) == tags


@pytest.fixture
def inspector(shown):
    """An inspector of one lens, without a model."""

    def build(lens, **options):
        return PyTorchInspector([lens], visualizer=shown, on_error="raise", **options)

    return build


def bands(name, samples):
    mean, std = np.mean(samples), np.std(samples)
    return {(f"{name} -σ", f"{name} +σ"): pytest.approx((mean - std, mean + std))}


def test_results_of_the_loss_module_are_taken(inspector, shown):
    loss_fn = nn.MSELoss()
    watching = inspector(LossMetrics(loss_fn=loss_fn))
    target = torch.zeros(2, requires_grad=True)
    losses = [loss_fn(torch.full((2,), value), target).item() for value in (1.0, 2.0, 3.0)]
    with torch.no_grad():
        loss_fn(input=torch.full((2,), 4.0), target=target)
    watching.tick_epoch()
    means = {"train_loss mean": pytest.approx(np.mean(losses)), "val_loss mean": 16.0}
    assert shown.values("Loss") == {"Loss": means}
    assert shown.ranges("Loss") == {"Loss": {**bands("train_loss", losses), **bands("val_loss", [16.0])}}


@pytest.mark.parametrize(
    ("from_grad", "eval_with_gradients", "train_without"),
    [(None, "val", "val"), (True, "train", "val"), (False, "val", "train")],
)
def test_which_losses_are_those_of_training(from_grad, eval_with_gradients, train_without, inspector, shown):
    loss_fn = nn.L1Loss()
    watching = inspector(LossMetrics(loss_fn=loss_fn, evaluation_from_grad=from_grad))
    zero = torch.zeros(1)
    loss_fn.eval()(torch.full((1,), 3.0), zero)
    watching.tick_epoch()
    assert shown.values("Loss") == {"Loss": {f"{eval_with_gradients}_loss mean": 3.0}}
    with torch.no_grad():
        loss_fn.train()(torch.full((1,), 5.0), zero)
    watching.tick_epoch()
    assert shown.values("Loss") == {"Loss": {f"{train_without}_loss mean": 5.0}}


def test_pushed_losses_are_taken_under_the_names_of_the_inspector(inspector, shown):
    watching = inspector(LossMetrics(loss_range="min-max"), train_loss_str="fit", non_train_loss_str="test")
    live = torch.tensor(2.0, requires_grad=True)
    watching.push_loss(live * 3, train=True)
    watching.push_loss(8, train=True)
    watching.push_loss(np.float32(1.5), train=False)
    watching.tick_epoch()
    assert shown.values("Loss") == {"Loss": {"fit mean": 7.0, "test mean": 1.5}}
    assert shown.ranges("Loss") == {"Loss": {("fit min", "fit max"): (6.0, 8.0), ("test min", "test max"): (1.5, 1.5)}}


def test_pushed_losses_in_memory_have_quantiles(inspector, shown):
    watching = inspector(LossMetrics(loss_line=["median", "Q3"], loss_range="Q1-Q3"))
    for value in (1.0, 2.0, 3.0, 4.0, 10.0):
        watching.push_loss(torch.tensor(value, requires_grad=True), train=True, running=False)
    watching.tick_epoch()
    assert shown.values("Loss") == {"Loss": {"train_loss median": 3.0, "train_loss Q3": 4.0}}
    assert shown.ranges("Loss") == {"Loss": {("train_loss Q1", "train_loss Q3"): (2.0, 4.0)}}


def test_quantiles_of_a_loss_module_need_every_result():
    with pytest.raises(OptionError, match="loss_line='median' needs every sample: pass loss_fn_inplace=False"):
        LossMetrics(loss_fn=nn.MSELoss(), loss_line="median")
    LossMetrics(loss_fn=nn.MSELoss(), loss_line="median", loss_range="Q1-Q3", loss_fn_inplace=False)


@dataclass
class Answer:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class OwnLoss(nn.Module):
    """Computes its own loss, as large models do."""

    def __init__(self, form):
        super().__init__()
        self.inner, self.form = nn.Linear(2, 2), form

    def forward(self, inputs):
        logits = self.inner(inputs)
        answer = {"logits": logits, "loss": logits.square().mean()}
        return answer if self.form is dict else Answer(**answer)


@pytest.mark.parametrize("form", [dict, Answer])
def test_loss_field_of_the_output_is_taken(form, watch, shown, close):
    model = OwnLoss(form)
    watching = watch(model, LossMetrics())
    output = model(torch.randn(3, 2))
    loss = output["loss"] if form is dict else output.loss
    with torch.no_grad():
        model(torch.zeros(3, 2))
    watching.tick_epoch()
    assert list(shown.values("Loss")["Loss"]) == ["train_loss mean", "val_loss mean"]
    assert shown.values("Loss")["Loss"]["train_loss mean"] == close(loss.item())


def test_model_without_a_loss_field_has_no_loss(watch, shown):
    model = nn.Linear(2, 1)
    watching = watch(model, LossMetrics())
    model(torch.randn(3, 2))
    watching.tick_epoch()
    assert shown.values("Loss") == shown.ranges("Loss") == {}


def test_loss_module_wins_over_pushed_losses_and_the_field(watch, shown):
    loss_fn, model = nn.L1Loss(), OwnLoss(dict)
    watching = watch(model, LossMetrics(loss_fn=loss_fn))
    model(torch.randn(3, 2))
    watching.push_loss(100.0, train=True)
    loss_fn(torch.full((1,), 3.0), torch.zeros(1))
    watching.tick_epoch()
    assert shown.values("Loss") == {"Loss": {"train_loss mean": 3.0}}


def test_pushed_loss_stands_in_for_the_field_of_the_same_name_only(watch, shown, close):
    model = OwnLoss(dict)
    watching = watch(model, LossMetrics())
    loss = model(torch.randn(3, 2))["loss"].item()
    watching.push_loss(7.0, train=False)
    watching.tick_epoch()
    assert shown.values("Loss") == {"Loss": {"train_loss mean": close(loss), "val_loss mean": 7.0}}
    model(torch.randn(3, 2))
    watching.push_loss(5.0, train=True)
    watching.tick_epoch()
    assert shown.values("Loss") == {"Loss": {"train_loss mean": 5.0}}


def test_model_that_returns_its_loss_may_be_the_loss_module(watch, shown, close):
    class Scalar(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs).square().mean()

    model = nn.Sequential(Scalar(2, 2))
    watching = watch(model, LossMetrics(loss_fn=model))
    losses = [model(torch.randn(3, 2)).item() for _ in range(3)]
    watching.tick_epoch()
    assert shown.values("Loss")["Loss"]["train_loss mean"] == close(np.mean(losses))


@pytest.mark.parametrize("function", [nn.functional.mse_loss, lambda a, b: (a - b).sum()])
def test_plain_function_is_refused_with_advice(function):
    with pytest.raises(OptionError, match=r"loss_fn takes a module such as nn.MSELoss\(\), not <function.*push_loss"):
        LossMetrics(loss_fn=function)


def test_loss_that_is_no_single_number_is_an_error_that_says_so(inspector):
    loss_fn = nn.MSELoss(reduction="none")
    watching = inspector(LossMetrics(loss_fn=loss_fn))
    with pytest.raises(AttributeError, match=r"a loss is one number, not \(2,\); reduce it, or use push_loss\(\)"):
        loss_fn(torch.zeros(2), torch.zeros(2))
    watching.tick_epoch()


def test_metrics_have_lines_and_bands_of_their_own(inspector, shown):
    watching = inspector(LossMetrics(metrics=iter(["accuracy", "f1"]), metrics_line=["max"], metrics_range="std"))
    for _ in watching.range(2):
        for value in (0.5, 0.7):
            watching.push_metric("accuracy", value)
        watching.push_metric("undeclared", 1.0)
    assert shown.values("Metrics") == {"Metrics": {"accuracy max": 0.7}}  # f1 was declared but not pushed
    assert shown.ranges("Metrics") == {"Metrics": bands("accuracy", [0.5, 0.7])}


def test_joint_plot_is_called_twice_a_tick(inspector, shown):
    watching = inspector(LossMetrics(metrics="accuracy", separate_loss_and_metrics=False))
    watching.push_metric("accuracy", 0.5)
    watching.push_loss(2.0, train=True)
    watching.tick_epoch()
    assert [(tag, values) for _, tag, values, _ in shown.calls] == [
        ("Loss & Metrics", {"Loss & Metrics": {"train_loss mean": 2.0}}),
        ("Loss & Metrics", {"Loss & Metrics": {"accuracy mean": 0.5}}),
    ]


def test_losses_and_metrics_of_one_tick_are_not_shown_at_the_next(inspector, shown):
    watching = inspector(LossMetrics(metrics="accuracy"))
    watching.push_loss(2.0, train=False)
    watching.push_metric("accuracy", 0.5)
    watching.tick_epoch()
    watching.push_loss(1.0, train=True)
    watching.tick_epoch()
    assert shown.values("Loss") == {"Loss": {"train_loss mean": 1.0}}
    assert shown.values("Metrics") == {}


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("running", [True, False])
def test_non_finite_loss_is_counted_and_does_not_spoil_the_mean(poison, running, inspector, shown):
    lens = LossMetrics()
    watching = inspector(lens)
    for value in (1.0, poison, 3.0):
        watching.push_loss(value, train=True, running=running)
    watching.tick_epoch()
    assert shown.values("Loss") == {"Loss": {"train_loss mean": 2.0}}
    assert {record.nonfinite for record in lens.records(1)} == {1}


def test_loss_of_the_last_tick_can_be_asked_for(inspector):
    lens = LossMetrics(loss_line=("mean", "max"))
    watching = inspector(lens)
    for values in ((1.0, 3.0), (5.0, 7.0)):
        for value in values:
            watching.push_loss(value, train=True)
        watching.tick_epoch()
        assert lens.loss(train=True) == lens.loss(train=True, method="mean") == np.mean(values)
        assert lens.loss(train=True, method="max") == max(values)
        assert math.isnan(lens.loss(train=False))


def test_loss_after_a_tick_that_recorded_nothing_is_not_the_old_one(inspector):
    lens = LossMetrics()
    watching = inspector(lens, is_active_fn=2)
    values = []
    for value in (1.0, 2.0, 3.0, 4.0):
        watching.push_loss(value, train=True)
        watching.tick_epoch()
        values.append(lens.loss(train=True))
    assert np.array_equal(values, [math.nan, 2.0, math.nan, 4.0], equal_nan=True)


def test_loss_cannot_be_asked_for_too_early_or_by_an_unknown_method(inspector):
    lens = LossMetrics()
    with pytest.raises(AttributeError, match="this lens has no inspector yet"):
        lens.loss(train=True)
    watching = inspector(lens)
    with pytest.raises(KeyError, match="there are no numbers yet"):
        lens.loss(train=True)
    watching.push_loss(1.0, train=True)
    watching.tick_epoch()
    with pytest.raises(KeyError, match=r"method='max' is not in loss_line; choose from \('mean',\)"):
        lens.loss(train=True, method="max")


def test_loss_module_is_heard_over_several_models(watch, shown, hooks_on):
    loss_fn = nn.L1Loss()
    watching = watch(nn.Linear(1, 1), LossMetrics(loss_fn=loss_fn))
    for value in (1.0, 2.0):
        watching.attach(nn.Linear(1, 1))
        loss_fn(torch.full((1,), value), torch.zeros(1))
        watching.tick_epoch()
        assert shown.values("Loss") == {"Loss": {"train_loss mean": value}}
    watching.detach()
    assert not hooks_on(loss_fn)


def test_loss_module_may_be_called_before_there_is_an_inspector(inspector, shown):
    loss_fn = nn.L1Loss()
    lens = LossMetrics(loss_fn=loss_fn)
    loss_fn(torch.ones(1), torch.zeros(1))
    watching = inspector(lens)
    watching.tick_epoch()
    assert shown.values("Loss") == {}


@pytest.mark.parametrize("every", [1, 1000])  # with 1000 nearly all steps are quiet
def test_losses_of_a_model_that_was_left_are_not_those_of_the_next_one(every, inspector):
    model, loss_fn = nn.Linear(3, 1), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    lens = LossMetrics(loss_fn=loss_fn)
    watched = inspector(lens, module=model, optimizer=optimizer, every=every)
    x = torch.ones(2, 3)

    def train(target):
        loss = loss_fn(model(x), torch.full((2, 1), target))
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(20):
        train(100.0)
    watched.detach()
    watched.attach(model)
    losses = [train(1.0) for _ in range(6)]
    watched.tick_epoch()
    assert lens.loss(train=True) == pytest.approx(np.mean(losses))
