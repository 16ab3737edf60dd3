"""Shares of active neurons, of outputs and of gradients."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.errors import SkippedSample
from monitorch.preprocessor import GradientActivation, OutputActivation


@pytest.fixture
def rates():
    return lambda death=True, inplace=False, **options: OutputActivation(death, inplace, False, False, **options)


def rates_of_output(output, channel=1, eps=1e-8):
    """Share of active entries, and share of channels without any."""
    numbers = np.abs(output.to(torch.complex128 if output.is_complex() else torch.float64).numpy())
    numbers = numbers if numbers.ndim > 1 else numbers.reshape(1, -1)
    by_channel = np.moveaxis(numbers > eps, channel, 0).reshape(numbers.shape[channel], -1).mean(axis=1)
    return by_channel.mean(), (by_channel == 0).mean()


def of_outputs(preprocessor, layer, *outputs):
    for output in outputs:
        preprocessor.process_fw("x", layer, None, output)
    return preprocessor.value["x"]


def half_dead(shape, channel=1):
    """Outputs of a ReLU where the first channel is silent."""
    output = torch.randn(shape).relu()
    if output.dim() > 1:
        output.select(channel, 0).zero_()
    return output


@pytest.mark.parametrize("shape", [(4, 3), (1, 5), (4, 3, 5, 2), (2, 6, 3), (7,), ()])
@pytest.mark.parametrize("channel_last", [True, False])
def test_rates_of_channels(rates, layer, shape, channel_last, dtype):
    channel = -1 if channel_last else 1
    outputs = [half_dead(shape, channel).to(dtype) for _ in range(3)]
    activation, death = of_outputs(rates(channel_last=channel_last), layer, *outputs)
    expected = np.array([rates_of_output(output, channel) for output in outputs])
    np.testing.assert_allclose(activation, expected[:, 0], rtol=1e-6)
    np.testing.assert_allclose(death, expected[:, 1], rtol=1e-6)
    if len(shape) > 1:
        assert min(death) > 0


def test_a_dead_feature_of_a_sequence_is_seen_with_channels_last(rates, layer):
    output = torch.ones(2, 3, 4)
    output[..., 1] = 0
    assert of_outputs(rates(channel_last=True), layer, output)[1] == [0.25]
    assert of_outputs(rates(), layer, output)[1] == [0.0]


def test_the_place_of_channels_may_depend_on_the_layer(rates, layer):
    preprocessor = rates(channel_last=lambda name: name == "last")
    output = half_dead((2, 3, 4), -1)
    for name in ("last", "first"):
        preprocessor.process_fw(name, layer, None, output)
    expected = {"last": rates_of_output(output, -1), "first": rates_of_output(output, 1)}
    for name, (activation, death) in preprocessor.value.items():
        assert (activation[0], death[0]) == pytest.approx(expected[name])


def test_without_death_there_is_one_accumulator(rates, layer):
    samples = of_outputs(rates(death=False), layer, torch.tensor([[0.0, 1.0]]))
    assert samples == [0.5]


def test_eps_itself_counts_as_zero(rates, layer):
    output = torch.tensor([[0.5, -0.5, 0.75, -0.75]])
    assert of_outputs(rates(eps=0.5), layer, output) == ([0.5], [0.5])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("fill", [0.0, 1.0])
def test_bad_outputs_do_not_look_dead(rates, layer, bad, fill):
    poisoned = torch.full((2, 3), fill)
    poisoned[1, 1] = bad
    for moments in of_outputs(rates(inplace=True), layer, poisoned, torch.full((2, 3), bad), torch.ones(2, 3)):
        assert (moments.count, moments.nonfinite) == (1, 2)
        assert moments.min_ == moments.max_


def test_one_unbatched_sample_is_a_batch_of_one(rates, layer):
    assert of_outputs(rates(), layer, torch.tensor([0.0, 1.0, 2.0, 0.0])) == ([0.5], [0.5])
    assert of_outputs(rates(channel_last=True), layer, torch.tensor(0.0)) == ([0.0], [1.0])


def test_complex_outputs(rates, layer):
    output = torch.tensor([[0j, 1j, 1 + 0j, 0j]])
    assert of_outputs(rates(), layer, output) == ([0.5], [0.5])


def test_the_output_is_left_as_it_was(rates, layer):
    output = torch.tensor([[0.0, -2.0]], requires_grad=True) * 1
    of_outputs(rates(), layer, output)
    assert output.tolist() == [[0.0, -2.0]]
    assert output.requires_grad


def rates_of_gradient(gradient, eps=1e-8):
    active = np.abs(gradient.to(torch.complex128).numpy()) > eps
    rows = active.reshape(len(active) if active.ndim else 1, -1).mean(axis=1)
    return rows.mean(), (rows == 0).mean()


def of_gradients(*gradients, inplace=False, **options):
    preprocessor = GradientActivation(death=True, inplace=inplace, **options)
    for gradient in gradients:
        preprocessor.process_tensor("x", gradient)
    return preprocessor.value["x"]


@pytest.mark.parametrize("shape", [(6, 3), (5, 2, 3, 3), (4, 1), (7,), (1,), ()])
def test_rates_of_rows(shape, dtype):
    gradients = [torch.randn(shape).relu().to(dtype) for _ in range(4)]
    activation, death = of_gradients(*gradients)
    expected = np.array([rates_of_gradient(gradient) for gradient in gradients])
    np.testing.assert_allclose(activation, expected[:, 0], rtol=1e-6)
    np.testing.assert_allclose(death, expected[:, 1], rtol=1e-6)


def test_each_element_of_a_bias_is_a_row():
    assert of_gradients(torch.tensor([0.0, 1.0, 0.0, -1.0])) == ([0.5], [0.5])


def test_without_death_gradients_have_one_accumulator():
    preprocessor = GradientActivation(death=False, inplace=True)
    preprocessor.process_tensor("x", torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    assert preprocessor.value["x"].mean == 0.25


def test_eps_itself_counts_as_zero_in_gradients():
    assert of_gradients(torch.tensor([0.5, -0.75]), eps=0.5) == ([0.5], [0.5])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_gradients_do_not_look_dead(bad):
    for moments in of_gradients(torch.full((2, 3), bad), torch.ones(2, 3), inplace=True):
        assert (moments.count, moments.nonfinite) == (1, 1)


def test_a_complex_number_is_active_as_a_whole():
    gradient = torch.tensor([[0j, 1j], [1 + 0j, 0j], [0j, 0j]])
    activation, death = of_gradients(gradient)
    assert (activation[0], death[0]) == pytest.approx(rates_of_gradient(gradient))
    assert of_gradients(torch.tensor(1j)) == ([1.0], [0.0])


def test_sparse_gradients_of_an_embedding():
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1, 1, 4])).sum().backward()
    assert table.weight.grad.is_sparse
    assert of_gradients(table.weight.grad) == (pytest.approx([0.4]), pytest.approx([0.6]))


GRADIENTS = {
    "expanded": torch.ones(()).expand(3, 4),
    "transposed": torch.randn(4, 3).relu().T,
    "with a graph": torch.randn(3, 4, requires_grad=True).relu(),
}


@pytest.mark.parametrize("gradient", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_of_any_layout_are_left_as_they_were(gradient):
    before = gradient.detach().clone()
    activation, death = of_gradients(gradient)
    assert (activation[0], death[0]) == pytest.approx(rates_of_gradient(before))
    assert torch.equal(gradient.detach(), before)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_gradients_are_skipped(shape):
    with pytest.raises(SkippedSample, match="empty"):
        of_gradients(torch.zeros(shape))
