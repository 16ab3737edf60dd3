import numpy as np
import pytest
import torch

from monitorch.numerical.norms import as_dense, as_real, l2_norm

SCALES = {
    torch.float16: [6e-8, 1e-3, 1.0, 6e4],
    torch.bfloat16: [1e-38, 1e-30, 1.0, 1e30, 3e38],
    torch.float32: [1e-44, 1e-30, 1e-12, 1.0, 1e18, 1e30, 3e38],
    torch.float64: [5e-324, 1e-200, 1e-30, 1.0, 1e30, 1e200, 1e306],
}
CASES = [(dtype, scale) for dtype, scales in SCALES.items() for scale in scales]


def exact_norm(tensor):
    """In units of the largest number, so that no square over- or underflows."""
    numbers = tensor.double().numpy().ravel()
    unit = np.abs(numbers).max(initial=0.0) or 1.0
    return np.linalg.norm(numbers / unit) * unit


@pytest.mark.parametrize(("dtype", "scale"), CASES)
def test_norm_at_every_scale(dtype, scale):
    tensor = ((torch.rand(40, dtype=torch.float64) - 0.3) * scale).to(dtype)
    norm = l2_norm(tensor)
    assert norm.dtype == torch.float64
    assert norm.item() == pytest.approx(exact_norm(tensor), rel=1e-6, abs=0.0)


@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize("shape", [(7,), (), (0,), (2, 0, 3)])
def test_zero_and_empty_tensors_have_length_zero(dtype, shape):
    assert l2_norm(torch.zeros(shape, dtype=dtype)).item() == 0


@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_number_makes_the_length_bad(dtype, bad):
    assert not l2_norm(torch.tensor([1.0, bad, 2.0], dtype=dtype)).isfinite()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_8_bits_have_a_length(dtype):
    assert l2_norm(torch.tensor([3.0, 4.0]).to(dtype)).item() == 5.0


def test_a_large_tensor_is_exact_enough():
    tensor = torch.full((300_000,), 0.1)
    assert l2_norm(tensor).item() == pytest.approx(exact_norm(tensor), rel=1e-5)


def test_noncontiguous_numbers():
    tensor = torch.randn(6, 8)[::2, 1::3].T
    assert l2_norm(tensor).item() == pytest.approx(exact_norm(tensor.contiguous()), rel=1e-6)


REAL = {
    "complex": (torch.tensor([1 + 2j]), [[1.0, 2.0]]),
    "conjugated": (torch.tensor([1 + 2j]).conj(), [[1.0, -2.0]]),
    "integer": (torch.tensor([1, 2]), [1.0, 2.0]),
    "bool": (torch.tensor([True, False]), [1.0, 0.0]),
    "sparse": (torch.tensor([[0.0, 3.0]]).to_sparse(), [[0.0, 3.0]]),
    "with a graph": (torch.ones(1, requires_grad=True) * 2, [2.0]),
    "half": (torch.ones(1, dtype=torch.float16), [1.0]),
}


@pytest.mark.parametrize(("tensor", "numbers"), REAL.values(), ids=REAL)
def test_any_tensor_becomes_dense_real_numbers(tensor, numbers):
    real = as_real(tensor)
    assert real.tolist() == numbers
    assert real.is_floating_point()
    assert not real.requires_grad
    assert as_dense(tensor).shape == tensor.shape
