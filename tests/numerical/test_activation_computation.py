import numpy as np
import pytest
import torch

from monitorch.numerical import reduce_activation_to_activation_rates
from monitorch.numerical.activation_computation import reduce_non_channels, reduce_spatial_


@pytest.fixture
def mask():
    return lambda shape: torch.rand(shape) > 0.6


@pytest.mark.parametrize(
    ("shape", "axes"), [((4, 3, 5, 2), (0, 2, 3)), ((4, 3, 5), (0, 2)), ((4, 3), 0), ((1, 3), 0), ((4,), 0), ((), None)]
)
def test_rates_of_a_batch(mask, shape, axes):
    active = mask(shape)
    rates = reduce_activation_to_activation_rates(active, batch=True)
    np.testing.assert_allclose(rates.numpy(), active.numpy().astype(float).mean(axis=axes), rtol=1e-6)
    assert rates.dtype == torch.float32


@pytest.mark.parametrize(("shape", "axes"), [((3, 5, 2), (1, 2)), ((3, 5), 1)])
def test_rates_of_rows(mask, shape, axes):
    active = mask(shape)
    rates = reduce_activation_to_activation_rates(active, batch=False)
    np.testing.assert_allclose(rates.numpy(), active.numpy().astype(float).mean(axis=axes), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3,), ()])
def test_a_vector_without_batch_is_its_own_rates(mask, shape):
    active = mask(shape)
    assert reduce_activation_to_activation_rates(active, batch=False) is active


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_any_dimension_may_hold_the_channels(mask, shape):
    active = mask(shape)
    for channel in range(-len(shape), len(shape)):
        others = tuple(axis for axis in range(len(shape)) if axis != channel % len(shape))
        rates = reduce_non_channels(active, channel)
        assert rates.shape == (shape[channel],)
        np.testing.assert_allclose(rates.numpy(), active.numpy().astype(float).mean(axis=others), rtol=1e-6)


@pytest.mark.parametrize(("batch", "reduced"), [(True, (4, 3)), (False, (4,))])
def test_spatial_dimensions_come_after_the_channels(mask, batch, reduced):
    active = mask((4, 3, 5, 2))
    result = reduce_spatial_(active, batch)
    assert result.shape == reduced
    expected = active.numpy().astype(float).mean(axis=tuple(range(len(reduced), 4)))
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)
    few = active.flatten()[:1].reshape((1,) * len(reduced))
    assert reduce_spatial_(few, batch) is few
