"""A counter of host synchronisations, and modules to hand to preprocessors."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select"}


class HostSyncs(TorchDispatchMode):
    """Counts the operators for which the host would have to wait for an accelerator."""

    def __init__(self):
        super().__init__()
        self.operators, self.waits = Counter(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        moved = name in {"aten::_to_copy", "aten::copy_"} and result.device != args[-1].device
        self.operators[name] += 1
        self.waits += name in WAITING or moved
        return result


@pytest.fixture
def host_syncs():
    return HostSyncs


@pytest.fixture
def module_with():
    """A module with the given parameters."""

    def build(**parameters):
        module = nn.Module()
        for name, tensor in parameters.items():
            module.register_parameter(name, None if tensor is None else nn.Parameter(tensor))
        return module

    return build


@pytest.fixture(params=[torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def dtype(request):
    return request.param


@pytest.fixture
def layer():
    return nn.Linear(2, 2)
