"""Checksums: the same for the same bits, another one if any bit changes, and those of a NumPy twin."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from monitorch.numerical import checksum
from monitorch.numerical.checksum import as_float, checksums
from tests.numerical import checksum_oracle

SIZES = [0, 1, 2, 3, 4095, 4096, 4097, 3 * 4096 + 5, 40 * 4096]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.uint8]


def numbers(size, dtype=torch.float32):
    stream = torch.Generator().manual_seed(size)
    return (torch.randn(size, generator=stream) * 50).to(dtype)


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("dtype", DTYPES)
def test_checksums_are_those_of_numpy(dtype):
    tensors = [numbers(size, dtype) for size in SIZES]
    arrays = [
        tensor.view(torch.uint8).numpy() if size else np.zeros(0) for tensor, size in zip(tensors, SIZES, strict=True)
    ]
    assert checksums(tensors).tolist() == [checksum_oracle.checksum(array) for array in arrays]
    assert as_float(checksums(tensors)).tolist() == [checksum_oracle.shown(array) for array in arrays]


@pytest.fixture
def rows_at_once(monkeypatch):
    def change(at_once):
        monkeypatch.setattr(checksum, "ROWS_AT_ONCE", at_once)
        checksum._plan.cache_clear()

    yield change
    checksum._plan.cache_clear()


@pytest.mark.parametrize("at_once", [{}, {"cpu": 1}, {"cpu": 3}, {"cpu": 1000}])
def test_the_sum_does_not_depend_on_how_much_is_read_at_once(at_once, rows_at_once):
    tensors = [numbers(size) for size in SIZES * 2]
    rows_at_once(at_once)
    assert checksums(tensors).tolist() == [checksum_oracle.checksum(tensor.numpy()) for tensor in tensors]


def test_of_nothing_the_sum_is_zero():
    assert checksums([torch.zeros(0), torch.zeros(3, 0)]).tolist() == [0, 0]


@pytest.mark.parametrize("size", [5, 4096, 20_000])
def test_one_more_tensor_takes_few_operations_on_a_device(size, rows_at_once):
    class Count(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.number += 1
            return func(*args, **(kwargs or {}))

    rows_at_once({})
    found = []
    for count in (2, 12):
        tensors = [numbers(size) for _ in range(count)]
        checksums(tensors)  # makes what is kept
        with Count() as counted:
            checksums(tensors)
        found.append(counted.number)
    assert (found[1] - found[0]) / 10 <= 4


@pytest.mark.parametrize("size", [1, 10, 4097, 10 * 4096])
def test_any_single_bit_of_any_element_changes_the_sum(size):
    whole = numbers(size).view(torch.int32)
    for place in {0, size // 2, size - 1}:
        changed = [whole.clone() for _ in range(32)]
        for bit, copy in enumerate(changed):
            copy[place] ^= torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)
        sums = checksums([whole, *changed])
        assert (sums[1:] != sums[0]).all()
        assert len(set(sums.tolist())) == 33


@pytest.mark.parametrize("far", [1, 4096, 5000])
def test_changes_that_cancel_in_a_plain_sum_do_not_cancel(far):
    tensor = torch.ones(20_000)
    up, down = torch.nextafter(tensor[0], torch.tensor(2.0)), torch.nextafter(tensor[0], torch.tensor(0.0))
    moved, swapped = tensor.clone(), tensor.clone()
    moved[0], moved[far] = up, down
    swapped[0], swapped[far] = down, up
    assert len(set(checksums([tensor, moved, swapped]).tolist())) == 3


def test_zeros_with_a_sign_and_kinds_of_nan_are_told_apart():
    bits = torch.tensor([0, -(1 << 31), 0x7FC00000, 0x7FC00001], dtype=torch.int32)
    assert len(set(checksums(list(bits.view(torch.float32).split(1))).tolist())) == 4


def test_the_sum_depends_neither_on_memory_nor_on_other_tensors():
    tensor = numbers(12_000).reshape(100, 120)
    transposed = tensor.T.contiguous().T
    inside = torch.cat([torch.zeros(7), tensor.flatten()])[7:].reshape(100, 120)
    odd_place = torch.cat([torch.zeros(1), tensor.flatten()]).bfloat16()[1:]
    alone = checksums([tensor]).item()
    assert checksums([numbers(3), transposed, inside, numbers(5000)])[1:3].tolist() == [alone, alone]
    assert checksums([odd_place]).item() == checksums([odd_place.clone()]).item()


def test_neither_tensors_nor_random_numbers_are_touched():
    tensor, state = numbers(9000).requires_grad_(), torch.get_rng_state()
    before, version = tensor.detach().clone(), tensor._version
    assert not checksums([tensor]).requires_grad
    assert torch.equal(tensor, before)
    assert tensor._version == version
    assert torch.equal(torch.get_rng_state(), state)
