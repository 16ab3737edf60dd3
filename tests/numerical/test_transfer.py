"""Tensors reach their receivers in order and shape, packed by device and dtype."""

import pytest
import torch

from monitorch.numerical.waiting import HostCopy


def test_each_receiver_gets_its_tensor_in_order():
    received = []
    tensors = [torch.arange(6.0).reshape(2, 3), torch.tensor(7.0), torch.zeros(0), torch.ones(1, 1)]
    HostCopy([(received.append, tensor) for tensor in tensors]).deliver()
    assert len(received) == len(tensors)
    for found, sent in zip(received, tensors, strict=True):
        torch.testing.assert_close(found, sent)


def test_what_is_changed_after_the_start_arrives_as_it_was():
    received, tensor = [], torch.ones(3)
    transfer = HostCopy([(received.append, tensor), (received.append, torch.ones(1))])
    tensor.zero_()
    transfer.deliver()
    assert received[0].tolist() == [1.0, 1.0, 1.0]


def test_dtypes_are_kept_apart():
    received = {}
    parcels = [
        (lambda t, n=n: received.__setitem__(n, t), torch.ones(2, dtype=n)) for n in (torch.float32, torch.float64)
    ]
    HostCopy(parcels).deliver()
    assert {dtype: tensor.dtype for dtype, tensor in received.items()} == {d: d for d in (torch.float32, torch.float64)}


@pytest.mark.parametrize("times", [1, 2])
def test_delivering_again_does_nothing(times):
    received = []
    transfer = HostCopy([(received.append, torch.ones(1))])
    for _ in range(times):
        transfer.deliver()
    assert len(received) == 1


def test_nothing_to_bring_is_fine():
    HostCopy([]).deliver()
