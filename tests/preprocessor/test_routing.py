"""Which experts are chosen, from all that routers return; shares, entropy and dropped tokens against NumPy."""

import numpy as np
import pytest
import torch

from monitorch.engine.ranks import merged
from monitorch.errors import SkippedSample
from monitorch.preprocessor.routing import ExpertShares, chosen_experts

TOKENS, EXPERTS, CHOSEN = 12, 5, 2
LOGITS = torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(0))
WEIGHTS, INDICES = LOGITS.softmax(-1).topk(CHOSEN)
FIRST = torch.nn.functional.one_hot(INDICES[:, 0], EXPERTS)
BOTH = torch.zeros_like(LOGITS).scatter(1, INDICES, 1.0)
DROPPING = FIRST * (torch.cumsum(FIRST, 0) <= 2)
HIDDEN = torch.zeros(TOKENS, 64)


def counted(indices):
    indices = np.asarray(indices).ravel()
    return np.bincount(indices[(indices >= 0) & (indices < EXPERTS)], minlength=EXPERTS)


TWO, ONE = counted(INDICES), counted(INDICES[:, 0])
KEPT = DROPPING.sum(0).numpy()
SOME = INDICES.clone()
SOME[3], SOME[5, 1] = -1, EXPERTS

RETURNED = {
    "logits, weights, indices": ([LOGITS, WEIGHTS, INDICES], None, TWO, 0),
    "the option does not matter then": ([LOGITS, WEIGHTS, INDICES], 1, TWO, 0),
    "indices of one": ([LOGITS, WEIGHTS[:, :1], INDICES[:, :1]], None, ONE, 0),
    "32-bit indices": ([LOGITS, INDICES.int()], None, TWO, 0),
    "more tensors": ([LOGITS, WEIGHTS, INDICES, HIDDEN], None, TWO, 0),
    "sequences": ([LOGITS.view(3, 4, -1), WEIGHTS.view(3, 4, -1), INDICES.view(3, 4, -1)], None, TWO, 0),
    "sequences, flat indices": ([LOGITS.view(3, 4, -1), INDICES], None, TWO, 0),
    "indices of all": ([LOGITS, LOGITS.sort().indices], None, np.full(EXPERTS, TOKENS), 0),
    "indices that are none": ([LOGITS, SOME], None, counted(SOME), 1 / TOKENS),
    "mask, weight, logits": ([FIRST, WEIGHTS[:, :1], LOGITS], None, ONE, 0),
    "mask that drops tokens": ([DROPPING, WEIGHTS[:, :1], LOGITS], None, KEPT, 1 - KEPT.sum() / TOKENS),
    "mask of booleans": ([BOTH.bool(), LOGITS], None, TWO, 0),
    "mask without scores": ([WEIGHTS[:, :1], DROPPING[:, None], LOGITS[:, :1]], None, KEPT, 1 - KEPT.sum() / TOKENS),
    "mask of sequences": ([FIRST.view(3, 4, -1), LOGITS.view(3, 4, -1)], None, ONE, 0),
    "logits": ([LOGITS], CHOSEN, TWO, None),
    "logits in half precision": ([LOGITS.bfloat16()], EXPERTS, np.full(EXPERTS, TOKENS), None),
    "more than there are": ([LOGITS], 99, np.full(EXPERTS, TOKENS), None),
    "scores and logits": ([LOGITS * BOTH, LOGITS], CHOSEN, counted((LOGITS * BOTH).topk(CHOSEN).indices), None),
    "order and gates, flat": ([torch.arange(24), torch.arange(24), torch.ones(24), LOGITS], CHOSEN, TWO, None),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_routers_return(name):
    tensors, top_k, counts, dropped = RETURNED[name]
    routing = ExpertShares()
    routing.process_router("gate", tensors, top_k)
    shares = counts / counts.sum()
    entropy = -np.sum(shares[shares > 0] * np.log(shares[shares > 0])) / np.log(EXPERTS)
    assert np.array_equal(routing.counts()["gate"], counts)
    found = routing.value["gate"]
    assert found["entropy"].mean == pytest.approx(entropy, abs=1e-12)
    assert (found["dropped"].mean if "dropped" in found else None) == pytest.approx(dropped, abs=1e-12)


@pytest.mark.parametrize(
    ("tensors", "top_k", "text"),
    [
        ([], 1, "a number for each token and expert"),
        ([INDICES], 1, "a number for each token and expert"),
        ([LOGITS[0]], 1, "a number for each token and expert"),
        ([LOGITS[:, :1]], 1, "a number for each token and expert"),
        ([LOGITS[:0]], 1, "no tokens"),
        ([LOGITS], None, "pass top_k="),
        ([LOGITS, INDICES[:5]], None, "pass top_k="),
        ([LOGITS, INDICES[:, :0]], None, "pass top_k="),
        ([LOGITS, LOGITS.to(torch.complex64)], None, "pass top_k="),
    ],
)
def test_what_is_no_router_is_left_out(tensors, top_k, text):
    with pytest.raises(SkippedSample, match=text):
        chosen_experts(tensors, top_k)


def test_numbers_of_a_tick_come_from_all_passes():
    routing = ExpertShares(most_shown=EXPERTS)
    for chosen in (0, 0, 3):
        indices = torch.full((4, 1), chosen)
        routing.process_router("gate", [LOGITS[:4], indices], None)
    assert routing.shares() == {
        "gate": {f"expert {number}": share for number, share in enumerate([8 / 12, 0, 0, 4 / 12, 0])}
    }
    assert routing.load() == {"gate": {"largest": pytest.approx(5 * 8 / 12), "smallest": 0}}
    assert routing.unused() == {"gate": {"unused": 3}}
    assert routing.value["gate"]["entropy"].max_ == 0


def test_layers_with_many_experts_have_no_line_for_each():
    routing = ExpertShares(most_shown=EXPERTS - 1)
    routing.process_router("gate", [LOGITS, INDICES], None)
    assert routing.shares() == {}
    assert routing.load()["gate"]["largest"] == TWO.max() / TWO.mean()


def test_where_all_tokens_are_dropped_the_entropy_is_not_known():
    routing = ExpertShares()
    routing.process_router("gate", [torch.zeros_like(FIRST), LOGITS], None)
    found = routing.value["gate"]
    assert (found["entropy"].count, found["entropy"].nonfinite, found["dropped"].mean) == (0, 1, 1)
    assert routing.shares() == routing.load() == routing.unused() == {}


def test_counts_of_processes_add_up():
    parts = [ExpertShares(), ExpertShares()]
    for part, half in zip(parts, (slice(0, 6), slice(6, None)), strict=True):
        part.process_router("gate", [LOGITS[half], INDICES[half]], None)
    whole = ExpertShares()
    whole.merge_ranks(merged({rank: part.payload() for rank, part in enumerate(parts)}))
    assert np.array_equal(whole.counts()["gate"], TWO)
    assert whole.value["gate"]["entropy"].count == 2
