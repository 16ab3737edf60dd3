"""Memory that lasts is made where it may stay."""

import pytest
import torch

from monitorch.engine import allocation
from monitorch.engine.allocation import MOST_COPIES, Allowance, is_capturing, lasting, memory_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_lasting_tensor_is_what_was_asked_for(in_graph):
    tensor = lasting(lambda: torch.full((2, 3), 7.0), CPU, in_graph=in_graph)
    assert tensor.tolist() == [[7.0] * 3] * 2


def test_nothing_is_captured_on_a_cpu():
    assert not is_capturing(CPU)


GPU = torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("memory", "taken", "size", "fits"),
    [
        (1 << 40, {}, MOST_COPIES, True),
        (1 << 40, {}, MOST_COPIES + 1, False),
        (1 << 40, {CPU: MOST_COPIES - 10}, 10, True),
        (1 << 40, {CPU: MOST_COPIES - 10}, 11, False),
        (1 << 40, {GPU: MOST_COPIES - 10}, 11, False),  # all devices together
        (1000, {}, 10, True),
        (1000, {}, 11, False),
        (1000, {CPU: 4}, 7, False),
        (1000, {GPU: 9}, 10, True),  # each device has its own memory
    ],
)
def test_copies_may_take_so_much_together_and_a_share_of_their_device(memory, taken, size, fits, monkeypatch):
    monkeypatch.setattr(allocation, "memory_of", lambda device: memory)
    allowance = Allowance()
    for device, held in taken.items():
        allowance.hold(device, held, device)
    assert allowance.has_room(size, CPU) is fits


def test_what_an_owner_holds_counts_once():
    allowance = Allowance()
    for owner, size, device in (("a", 5, CPU), ("b", 7, CPU), ("a", 2, CPU), ("b", 3, GPU)):
        allowance.hold(owner, size, device)
    assert dict(allowance.taken) == {CPU: 2, GPU: 3}


def test_the_memory_of_the_host():
    assert memory_of(CPU) > 1 << 28
    assert memory_of(torch.device("meta")) == memory_of(CPU)
