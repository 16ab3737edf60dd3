"""Gradients of outputs: tags, in-place operations, unused parts, and the documented example."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from monitorch.errors import MonitorchWarning
from monitorch.inspector import PyTorchInspector
from monitorch.lens import OutputGradientGeometry

NORM = ("Output Gradient Norm", False, False, True, "NUMERICAL", None)
CORRELATION = ("Output Gradient Correlation", False, False, True, "NUMERICAL", None)


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, [NORM, CORRELATION]),
        ({"log_scale": True}, [("Output Gradient Norm", True, *NORM[2:]), CORRELATION]),
        ({"compute_correlation": False}, [NORM]),
    ],
)
def test_tags(options, tags, tags_of):
    assert tags_of(OutputGradientGeometry(**options)) == tags


def test_documented_example():
    mynet = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    train_dataloader = DataLoader(TensorDataset(torch.randn(12, 4), torch.randn(12, 2)), batch_size=5)
    optimizer, loss_fn = torch.optim.Adam(mynet.parameters()), nn.MSELoss()
    inspector = PyTorchInspector(lenses=[OutputGradientGeometry()], module=mynet, visualizer="matplotlib")
    for _epoch in range(3):
        for data, label in train_dataloader:
            optimizer.zero_grad()
            prediction = mynet(data)
            loss = loss_fn(prediction, label)
            loss.backward()
            optimizer.step()
        inspector.tick_epoch()
    figure = inspector.visualizer.show_fig()
    titles = [axes.get_title() for part in figure.subfigs for block in part.subfigs for axes in block.axes]
    assert titles == ["0", "2", "0", "2"]


class ResidualBlock(nn.Module):
    """Convolutions, batch norms, in-place activations and an in-place sum."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.conv2, self.norm2 = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.0, inplace=True)

    def forward(self, inputs):
        hidden = self.relu(self.norm1(self.conv1(inputs)))
        hidden = self.norm2(self.conv2(hidden))
        hidden += inputs
        return self.drop(self.relu(hidden))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.flat, self.head = ResidualBlock(), nn.Flatten(), nn.Linear(48, 2)

    def forward(self, inputs):
        return self.head(self.flat(self.block(inputs.reshape(-1, 3, 4, 4))))


def test_residual_block_with_in_place_operations(task, train, record, watch, shown, make_batches, close):
    batches = make_batches(features=48)
    watched = task(Classifier())
    bare, tape = record(watched.model)
    inspector = watch(watched.model, OutputGradientGeometry())
    losses = train(watched.model, watched.optimizer, batches)
    inspector.tick_epoch()
    plain = task(bare)
    assert torch.equal(torch.stack(losses), torch.stack(train(bare, plain.optimizer, batches, tape=tape)))
    found = {layer: lines["mean"] for layer, lines in shown.values("Output Gradient Norm").items()}
    expected = {
        layer: np.mean([np.linalg.norm(now) for _, now in pairs])
        for layer, pairs in tape.new(tape.output_gradients).items()
        if layer != "block.relu"
    }
    assert list(found) == ["block.conv1", "block.norm1", "block.conv2", "block.norm2", "block.drop", "flat", "head"]
    assert found == {layer: close(value) for layer, value in expected.items()}


@pytest.mark.parametrize(("index", "found"), [(None, []), (0, []), (1, ["gru"])])
def test_recurrent_layer_read_through_its_last_state(index, found, watch, shown, close):
    class LastState(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)

        def forward(self, inputs):
            return self.head(self.gru(inputs)[1][-1])

    model = LastState()
    inspector = watch(model, OutputGradientGeometry(output_index=index))
    model(torch.randn(5, 6, 3)).sum().backward()
    inspector.tick_epoch()
    norms = shown.values("Output Gradient Norm")
    assert list(norms) == [*found, "head"]
    assert norms["head"]["mean"] == close(5**0.5)
    if found:
        per_sample = np.linalg.norm(model.head.weight.detach().double().numpy())
        assert norms["gru"]["mean"] == close(per_sample * 5**0.5)


def test_head_that_is_no_scalar(watch, shown, close):
    model = nn.Sequential(nn.Linear(3, 4))
    inspector = watch(model, OutputGradientGeometry())
    weights = torch.randn(5, 4)
    model(torch.randn(5, 3)).backward(weights)
    inspector.tick_epoch()
    assert shown.values("Output Gradient Norm")["0"]["mean"] == close(np.linalg.norm(weights.double().numpy()))


@pytest.mark.parametrize(("last", "samples"), [(5, 3), (2, 2), (1, 2)])
def test_short_last_batch_has_no_correlation_sample(last, samples, watch, shown):
    model = nn.Sequential(nn.Linear(3, 4))
    lens = OutputGradientGeometry(inplace=False)
    inspector = watch(model, lens)
    for size in (5, 5, last):
        model(torch.randn(size, 3)).square().sum().backward()
    norms, correlations = lens._preprocessors[0].value["0"]
    assert (len(norms), len(correlations)) == (3, samples)
    assert all(abs(value) <= 1 for value in correlations)
    inspector.tick_epoch()


def test_tick_without_any_correlation_sample_leaves_the_layer_out(watch, shown):
    model = nn.Sequential(nn.Linear(3, 4))
    inspector = watch(model, OutputGradientGeometry())
    for _ in inspector.range(2):
        for size in (5, 2):
            model(torch.randn(size, 3)).square().sum().backward()
    assert list(shown.values("Output Gradient Norm")) == ["0"]
    assert shown.values("Output Gradient Correlation") == shown.ranges("Output Gradient Correlation") == {}


@pytest.mark.parametrize("skip", [True, False])
def test_activations_are_skipped_unless_wanted(skip, watch, shown):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    inspector = watch(model, OutputGradientGeometry(skip_activation=skip))
    model(torch.randn(5, 3)).sum().backward()
    inspector.tick_epoch()
    assert list(shown.values("Output Gradient Norm")) == (["0", "2"] if skip else ["0", "1", "2"])


def test_model_of_activations_warns_and_names_the_option_that_helps(watch):
    with pytest.warns(MonitorchWarning, match="OutputGradientGeometry found no layer.*skip_activation=False"):
        watch(nn.Sequential(nn.ReLU()), OutputGradientGeometry())


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_correlation_of_equal_gradients_is_one_at_every_scale(scale, watch, shown):
    model = nn.Sequential(nn.Linear(3, 4))
    inspector = watch(model, OutputGradientGeometry())
    inputs = torch.randn(5, 3)
    for _ in inspector.range(2):
        (scale * model(inputs).sum()).backward()
    assert shown.values("Output Gradient Correlation")["0"]["mean"] == pytest.approx(1, abs=1e-6)


def test_module_called_twice_has_two_samples_a_step(watch):
    model = nn.Sequential(nn.Linear(3, 3))
    lens = OutputGradientGeometry(inplace=False)
    inspector = watch(model, lens)
    model(model(torch.randn(5, 3))).sum().backward()
    norms, _ = lens._preprocessors[0].value["0"]
    weight = model[0].weight.detach().double().numpy()
    inner = np.linalg.norm(np.ones((5, 3)) @ weight)
    assert norms == pytest.approx([15**0.5, inner], rel=1e-6)
    inspector.detach()
