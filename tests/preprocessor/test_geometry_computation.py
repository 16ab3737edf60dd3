import copy
import gc
import math
import pickle
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monitorch.numerical import GeometryComputation, RunningMeanVar
from monitorch.preprocessor.geometry import comparable

EPS = 1e-8


@pytest.fixture
def geometry():
    return lambda eps=0.0, **options: GeometryComputation(
        **{"inplace": False, "normalize": False, "correlation": True, "eps": eps, **options}
    )


def updated(geometry, *tensors):
    for tensor in tensors:
        geometry.update(tensor)
    return geometry.value


def oracle(arrays, normalize, eps):
    arrays = [np.asarray(array, dtype=np.float64).ravel() for array in arrays]
    norms = [np.linalg.norm(array) for array in arrays]
    products = [0.0]
    for i in range(1, len(arrays)):
        products.append(arrays[i - 1] @ arrays[i] / (norms[i - 1] * norms[i] + eps))
    return [norm / math.sqrt(arrays[0].size) if normalize else norm for norm in norms], products


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.integers(1, 6), st.booleans(), st.sampled_from([0.0, EPS, 0.5]))
def test_norms_and_correlations_follow_the_formula(seed, steps, normalize, eps):
    random = torch.Generator().manual_seed(seed)
    tensors = torch.randn(steps, 3, 4, generator=random) * 10 ** (4 * torch.rand((), generator=random) - 2)
    norms, products = updated(GeometryComputation(False, normalize, True, eps), *tensors)
    expected_norms, expected_products = oracle(tensors.numpy(), normalize, eps)
    np.testing.assert_allclose(norms, expected_norms, rtol=1e-6)
    np.testing.assert_allclose(products, expected_products, atol=1e-6)


def test_in_place_keeps_the_moments_of_the_same_samples(geometry):
    tensors = torch.randn(5, 7)
    lists, moments = updated(geometry(), *tensors), updated(geometry(inplace=True), *tensors)
    for samples, accumulator in zip(lists, moments, strict=True):
        assert isinstance(accumulator, RunningMeanVar)
        assert accumulator.mean == pytest.approx(np.mean(samples))
        assert accumulator.var == pytest.approx(np.var(samples))


def test_without_correlation_there_are_only_norms(geometry):
    plain = geometry(correlation=False)
    assert updated(plain, torch.tensor([3.0, 4.0])) == [5.0]
    assert plain.value is plain.norm
    assert not {"product", "prev_norm", "prev_value"} & set(vars(plain))
    plain.interrupt()
    plain.reset()
    assert plain.value == []


def test_the_first_correlation_is_zero(geometry):
    assert updated(geometry(), torch.ones(3)) == ([math.sqrt(3)], [0.0])


@pytest.mark.parametrize("norm", [1e-3, 1e-4, 1e-5, 1e-6, 1e-30])
def test_identical_small_tensors_have_correlation_one_without_eps(geometry, norm):
    tensor = torch.tensor([0.6, 0.8]) * norm
    assert updated(geometry(), tensor, tensor)[1][1] == pytest.approx(1.0, rel=1e-6)
    shrunk = norm**2 / (norm**2 + EPS)
    assert updated(geometry(EPS), tensor, tensor)[1][1] == pytest.approx(shrunk, rel=1e-5)


LIMITS = [
    *[(torch.float16, scale) for scale in (1e-6, 1.0, 3e4)],
    *[(torch.bfloat16, scale) for scale in (1e-30, 1.0, 1e30)],
    *[(torch.float32, scale) for scale in (1e-30, 1.0, 1e30)],
    *[(torch.float64, scale) for scale in (1e-200, 1e-30, 1.0, 1e30, 1e200)],
]


@pytest.mark.parametrize(("dtype", "scale"), LIMITS)
def test_opposite_tensors_of_every_dtype_and_scale(geometry, dtype, scale):
    tensor = (torch.tensor([0.5, -1.0, 0.25], dtype=torch.float64) * scale).to(dtype)
    norms, products = updated(geometry(), tensor, -tensor, tensor)
    assert products == pytest.approx([0.0, -1.0, -1.0], rel=1e-6)
    assert norms == pytest.approx([np.linalg.norm(tensor.double().numpy() / scale) * scale] * 3, rel=1e-6)
    with_eps = updated(geometry(EPS), tensor, tensor)[1]
    assert with_eps[1] == pytest.approx(norms[0] / (norms[0] + EPS / norms[0]), rel=1e-6, abs=1e-300)


@pytest.mark.parametrize("eps", [0.0, EPS])
def test_zero_tensors_have_correlation_zero(geometry, eps):
    zero, one = torch.zeros(3), torch.ones(3)
    norms, products = updated(geometry(eps), zero, zero, one, zero)
    assert norms == pytest.approx([0.0, 0.0, math.sqrt(3), 0.0])
    assert products == [0.0] * 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("eps", [0.0, EPS])
def test_bad_numbers_make_their_own_samples_bad(geometry, bad, eps):
    good = torch.ones(2)
    norms, products = updated(geometry(eps, inplace=True), good, torch.tensor([bad, 1.0]), good, good)
    assert (norms.count, norms.nonfinite) == (3, 1)
    assert (products.count, products.nonfinite) == (2, 2)
    assert products.max_ == pytest.approx(1.0)


def test_short_last_batch_has_no_correlation_sample(geometry):
    full, short, single = torch.ones(5, 2), torch.ones(2, 2), torch.ones(1, 2)
    norms, products = updated(geometry(), full, full, short, single, full, -full)
    assert len(norms) == 6
    assert products == pytest.approx([0.0, 1.0, -1.0])


def test_reset_keeps_the_last_tensor(geometry):
    series = geometry(inplace=True)
    tensor = torch.ones(4)
    updated(series, tensor, tensor)
    first_epoch = series.value
    series.reset()
    assert [len(accumulator) for accumulator in series.value] == [0, 0]
    _, product = updated(series, tensor, tensor, tensor)
    assert (product.mean, product.min_, product.count) == pytest.approx((1.0, 1.0, 3))
    assert [len(accumulator) for accumulator in first_epoch] == [2, 2]


def test_after_an_interruption_there_is_no_false_correlation(geometry):
    series = geometry()
    series.interrupt()
    updated(series, torch.ones(4))
    series.interrupt()
    updated(series, -torch.ones(4), torch.ones(4))
    assert series.value[1] == pytest.approx([0.0, -1.0])
    assert len(series.value[0]) == 3


def test_a_tensor_changed_in_place_is_compared_with_what_it_was(geometry):
    series, gradient = geometry(), torch.tensor([1.0, 0.0])
    updated(series, gradient)
    gradient.add_(torch.tensor([0.0, 1.0]))
    updated(series, gradient)
    gradient.neg_()
    assert updated(series, gradient)[1] == pytest.approx([0.0, math.sqrt(0.5), -1.0])


@pytest.mark.parametrize("kind", [torch.complex64, torch.complex128])
def test_complex_tensors(geometry, kind):
    first, second = torch.randn(2, 6, dtype=torch.complex128).to(kind)
    norms, products = updated(geometry(normalize=True), first, second.conj())
    a, b = first.numpy(), second.numpy().conj()
    assert norms == pytest.approx([np.linalg.norm(a) / math.sqrt(6), np.linalg.norm(b) / math.sqrt(6)], rel=1e-6)
    assert products[1] == pytest.approx(np.vdot(a, b).real / (np.linalg.norm(a) * np.linalg.norm(b)), abs=1e-6)


KINDS = {
    "sparse": lambda t: t.to_sparse(),
    "integer": lambda t: t.long(),
    "transposed": lambda t: t.T.contiguous().T,
    "strided": lambda t: torch.stack([t, t], dim=-1)[..., 0],
    "needs grad": lambda t: t.clone().requires_grad_(),
    "with a graph": lambda t: t.clone().requires_grad_() * 1,
    "double": lambda t: t.double(),
}


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_tensors_of_all_kinds_follow_each_other(geometry, first, second):
    numbers = torch.tensor([[1.0, 2.0, 0.0], [-3.0, 0.0, 4.0]]), torch.tensor([[2.0, 0.0, 1.0], [3.0, 1.0, 0.0]])
    samples = updated(geometry(), KINDS[first](numbers[0]), KINDS[second](numbers[1]))
    for accumulator, expected in zip(samples, oracle([t.numpy() for t in numbers], False, 0.0), strict=True):
        assert accumulator == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("shape", "norm"), [((), 2.0), ((1,), 2.0), ((0,), 0.0), ((0, 3), 0.0)])
@pytest.mark.parametrize("normalize", [True, False])
def test_scalars_and_empty_tensors(geometry, shape, norm, normalize):
    tensor = torch.full(shape, -2.0)
    assert updated(geometry(normalize=normalize), tensor, tensor) == ([norm, norm], [0.0, 1.0 if norm else 0.0])


def test_gradients_of_gradients_are_accepted_and_their_graph_released(geometry):
    series = geometry()
    weight = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
    graph = weakref.ref(gradient)
    assert updated(series, gradient, gradient)[1] == pytest.approx([0.0, 1.0])
    del gradient
    gc.collect()
    assert graph() is None


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_by_themselves(geometry, clone):
    series = geometry()
    updated(series, torch.ones(2))
    cloned = clone(series)
    updated(cloned, torch.ones(2))
    assert len(series.value[0]) == 1
    assert cloned.value[1] == pytest.approx([0.0, 1.0])


def test_another_device_is_not_compared_with_the_one_before():
    assert comparable(torch.ones(2), torch.zeros(2))
    assert not comparable(torch.ones(2), torch.ones(2, device="meta"))
    assert not comparable(None, torch.ones(2))


def test_updates_read_nothing_back(geometry):
    series = geometry(EPS)
    for _ in range(300):
        series.update(torch.ones(4, device="meta"))
    with pytest.raises(NotImplementedError, match="meta"):
        len(series.norm)


SCALES = {
    torch.float16: [6e-8, 1e-3, 1.0, 6e4],
    torch.bfloat16: [1e-38, 1e-30, 1.0, 1e30, 3e38],
    torch.float32: [1e-44, 1e-30, 1e-12, 1.0, 1e18, 1e30, 3e38],
    torch.float64: [1e-200, 1e-30, 1.0, 1e30, 1e200, 1e306],
}


def exact_cosine(first, second):
    a, b = (tensor.double().numpy().ravel() for tensor in (first, second))
    a, b = a / np.abs(a).max(), b / np.abs(b).max()
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


@pytest.mark.parametrize(("dtype", "scale"), [(dtype, scale) for dtype, scales in SCALES.items() for scale in scales])
def test_cosine_at_every_scale(geometry, dtype, scale):
    first, second = (((torch.rand(40, dtype=torch.float64) - 0.3) * scale).to(dtype) for _ in range(2))
    products = updated(geometry(eps=0.0), first, first, second)[1]
    assert products == pytest.approx([0.0, 1.0, exact_cosine(first, second)], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("small", "large"), [(1e-30, 1e30), (1e-44, 1.0), (1e-30, 1e-30), (1e30, 1e30)])
def test_cosine_of_lengths_far_apart(geometry, dtype, small, large):
    first, second = torch.randn(50).to(dtype) * small, torch.randn(50).to(dtype) * large
    assert updated(geometry(eps=0.0), first, second)[1][1] == pytest.approx(exact_cosine(first, second), abs=1e-6)
