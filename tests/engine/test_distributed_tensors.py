"""What of a tensor is here; layouts with several processes are tests of their own."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from monitorch.engine.distributed_tensors import (
    OWN,
    SHARED,
    is_distributed,
    local_gradient,
    local_part,
    local_samples,
    part_here,
)

ALL = pytest.mark.parametrize(
    ("function", "part"),
    [(local_part, SHARED), (local_samples, OWN), (local_gradient, OWN)],
    ids=["part", "samples", "gradient"],
)


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@ALL
def test_a_plain_tensor_is_left_as_it_is(function, part):
    tensor = torch.ones(2, 3, requires_grad=True)
    found, found_part = function(tensor)
    assert found is tensor
    assert found_part == part
    assert not is_distributed(tensor)


@ALL
def test_one_that_is_still_to_be_filled_is_waited_for(function, part):
    class Arriving(torch.Tensor):
        def trigger_wait(self):
            return torch.full((2,), 7.0)

    found, found_part = function(torch.zeros(2).as_subclass(Arriving))
    assert found.tolist() == [7.0, 7.0]
    assert found_part == part


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1), Partial()], ids=str)
@ALL
def test_a_distributed_tensor_is_here_in_plain_form(function, part, placement, mesh):
    whole = torch.arange(6.0).reshape(2, 3)
    tensor = DTensor.from_local(whole, mesh, [placement]).requires_grad_()
    assert is_distributed(tensor)
    found, found_part = function(tensor)
    assert type(found) is torch.Tensor
    assert torch.equal(found, whole)
    assert found_part == 0
    assert not found.requires_grad


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Partial()], ids=str)
def test_the_part_that_is_here_needs_no_other_process(placement, mesh, monkeypatch):
    whole = torch.arange(6.0).reshape(2, 3)
    tensor = DTensor.from_local(whole, mesh, [placement]).requires_grad_()
    monkeypatch.setattr(DTensor, "redistribute", None)
    found = part_here(tensor)
    assert type(found) is torch.Tensor
    assert torch.equal(found, whole)
    assert not found.requires_grad
    assert part_here(whole) is whole
