"""What a diagnosis could not look at."""

import numpy as np
import pytest
import torch
from torch import nn

import monitorch
from monitorch.diagnosis import signals
from monitorch.diagnosis.notes import notes_of


@pytest.fixture
def watched(story, falling):
    """A run of 200 steps, with their losses, of which these were observed."""
    return lambda steps, count=200: story().losses(falling(count)).weights(signals.GRADIENT, 1.0, 1.0, 1.0, steps=steps)


def test_a_run_that_was_watched_well_needs_none(watched):
    assert notes_of(watched(range(10, 201, 10)).history) == []


def test_no_loss(story):
    told = story().weights(signals.GRADIENT, *[np.ones(100)] * 3)
    assert notes_of(told.history) == ["No loss was seen, so it is not judged: pass loss_fn= or call push_loss(loss)."]


def test_a_model_that_trains_in_eval_mode(story, falling):
    told = story().weights(signals.GRADIENT, *[np.ones(100)] * 3).checks(falling(100), range(100))
    assert notes_of(told.history) == [
        "All losses were seen in eval mode, so none counts as training: call model.train() before training."
    ]


def test_few_steps(watched):
    assert notes_of(watched(range(1, 9), 8).history) == ["8 losses: too few to judge the loss; that needs 30."]


def test_a_single_step(watched):
    assert notes_of(watched([1], 1).history) == [
        "1 loss: too few to judge the loss; that needs 30.",
        "1 step was observed: too few to judge layers; that needs 5.",
    ]


def test_steps_that_were_observed_long_ago(watched):
    assert notes_of(watched(range(1, 8)).history) == [
        "No step was observed after step 7 of 200: later ones are judged by their losses only; every=10 sees more."
    ]


def test_few_observed_steps(watched):
    assert notes_of(watched([1, 2, 150]).history) == ["3 steps were observed: too few to judge layers; that needs 5."]


@pytest.mark.parametrize(
    ("frozen", "said"), [(["fc1.weight"], "fc1.weight is"), (["fc0.bias", "fc1.bias"], "fc0.bias and 1 other are")]
)
def test_parameters_that_are_not_trained(watched, frozen, said):
    told = watched(range(10, 201, 10))
    for name in frozen:
        told.facts.parameters[name].trainable = False
    assert notes_of(told.history) == [f"{said} not trained (requires_grad=False)."]


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        (["fc0.weight"], "fc0.weight never got a gradient: in training its layer does not run, runs"),
        (
            ["fc0.weight", "fc0.bias"],
            "fc0.weight and 1 other never got a gradient: in training their layers do not run, run",
        ),
    ],
)
def test_parameters_whose_layers_are_not_trained_by_any_pass(story, falling, left_out, said):
    told = story().losses(falling(200)).weights(signals.GRADIENT, None, 1.0, 1.0, steps=range(10, 201, 10))
    told.add(signals.CHANGED, range(10, 201, 10), fc1__weight=1.0, **{n.replace(".", "__"): 0.0 for n in left_out})
    assert notes_of(told.history) == [f"{said} only under no_grad(), or without reaching the loss."]


@pytest.mark.parametrize("fact", ["trainable", "optimized"])
def test_layers_that_nobody_means_to_train_need_not_run(story, falling, fact):
    told = story().losses(falling(200)).weights(signals.GRADIENT, None, 1.0, 1.0, steps=range(10, 201, 10))
    told.add(signals.CHANGED, range(10, 201, 10), fc0__weight=0.0)
    setattr(told.facts.parameters["fc0.weight"], fact, False)
    assert not any("never got" in note for note in notes_of(told.history))


def test_a_layer_that_runs_without_gradients_is_told(tmp_path):
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    optimizer, loss_fn = torch.optim.Adam(model.parameters()), nn.MSELoss()
    with monitorch.watch(model, optimizer, loss_fn=loss_fn, folder=tmp_path, every=1) as watched:
        for _ in range(8):
            with torch.no_grad():
                features = model[0](torch.ones(4, 2))
            optimizer.zero_grad()
            loss_fn(model[1](features), torch.zeros(4, 1)).backward()
            optimizer.step()
    said = (
        "0.weight and 1 other never got a gradient: in training their layers do not run, run only under no_grad(), or "
    )
    assert f"{said}without reaching the loss." in str(watched)


def test_a_normalisation_whose_result_is_thrown_away_is_told(tmp_path):
    class Forgetful(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 1)

        def forward(self, x):
            self.norm(x)
            return self.head(x)

    model = Forgetful()
    optimizer, loss_fn = torch.optim.Adam(model.parameters()), nn.MSELoss()
    with monitorch.watch(model, optimizer, loss_fn=loss_fn, folder=tmp_path, every=1) as watched:
        for _ in range(8):
            optimizer.zero_grad()
            loss_fn(model(torch.randn(8, 4)), torch.zeros(8, 1)).backward()
            optimizer.step()
    assert "norm.weight and 1 other never got a gradient" in str(watched)
    assert "or without reaching the loss." in str(watched)


def test_at_most_three_and_nothing_of_a_model_that_is_not_trained_at_all(story):
    told = story()
    told.facts.parameters["fc1.bias"].trainable = False
    assert len(notes_of(told.history)) == 3
    for own in told.facts.parameters.values():
        own.trainable = False
    assert len(notes_of(told.history)) == 2


def test_a_watch_that_is_printed_says_so():
    model = nn.Linear(2, 1)
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
    with monitorch.watch(model, optimizer, loss_fn=loss_fn, run=None, every=1) as watched:
        for _ in range(8):
            optimizer.zero_grad()
            loss_fn(model(torch.ones(4, 2)), torch.zeros(4, 1)).backward()
            optimizer.step()
    assert str(watched).splitlines()[1] == "  8 losses: too few to judge the loss; that needs 30."
