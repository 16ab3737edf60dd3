"""Numbers of several processes: real ones."""

import math

import pytest
import torch
import torch.distributed as dist

from monitorch.engine.ranks import exchange, offer
from monitorch.numerical import GeometryComputation, RunningMeanVar, finish_sync_rmv_or_error, start_sync_rmv_or_error
from monitorch.preprocessor import ExplicitCall
from tests.engine.rank_worker import report

pytestmark = pytest.mark.xdist_group("processes")


def samples_of(rank):
    return [10.0 * rank + i for i in range(rank + 1)]


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)], ids="{} ranks".format)
def ranks(request, run_ranks):
    """What every rank of a group of real gloo processes reported."""
    return run_ranks(report, request.param)


@pytest.fixture
def everybody(ranks):
    return [sample for rank in range(len(ranks)) for sample in samples_of(rank)]


def test_moments_of_all_ranks_reach_every_rank(ranks, everybody, assert_moments):
    for found in ranks:
        assert_moments(found["moments"], [*everybody, *[math.nan] * len(ranks)])


def test_a_rank_without_samples_changes_nothing(ranks, everybody, assert_moments):
    for found in ranks:
        assert_moments(found["nothing on rank 0"], everybody[1:])
        assert_moments(found["nothing anywhere"], [])


def test_geometry_is_merged_rank_by_rank(ranks, everybody, assert_moments):
    correlations = [correlation for rank in range(len(ranks)) for correlation in [0.0] + [1.0] * rank]
    for found in ranks:
        norms, products = found["geometry"]
        assert_moments(norms, [2 * sample for sample in everybody])
        assert_moments(products, correlations)


def test_errors_of_a_single_accumulator(ranks):
    for found in ranks:
        assert found["finish alone"] == "finish_sync() needs a start_sync() before it"
        assert "start_sync" in found["start a list"]
        assert "finish_sync" in found["finish a list"]


def test_one_exchange_whatever_the_number_of_preprocessors(ranks):
    (collectives,) = {found["preprocessors"]["collectives"] for found in ranks}
    assert collectives < 12  # also names differ, and lists are gathered


def test_names_are_matched_whatever_their_order(ranks, everybody, assert_moments):
    for found in ranks:
        call, _, _ = found["preprocessors"]["values"]
        for name in ("first", "second"):
            assert call[name] == everybody
            assert_moments(call[f"{name} in place"], everybody)


def test_names_of_one_rank_only_reach_the_others(ranks, assert_moments):
    for found in ranks:
        call, _, norm = found["preprocessors"]["values"]
        for rank in range(len(ranks)):
            assert call[f"only on {rank}"] == samples_of(rank)
            assert_moments(call[f"only on {rank} in place"], samples_of(rank))
        assert_moments(norm["layer"]["a"], [5.0])  # all ranks have the same parameter
        assert_moments(norm["layer"]["b"], [10.0])


def test_in_memory_geometry_is_concatenated(ranks, everybody):
    for found in ranks:
        norms, correlations = found["preprocessors"]["values"][1]["grad"]
        assert norms == everybody
        assert len(correlations) == len(everybody)


def test_a_single_process_has_nobody_to_wait_for():
    call = ExplicitCall("train", "val")
    call.push_running("x", 1.0)
    offer(call)
    exchange()
    start_sync_rmv_or_error([1.0], 0)
    finish_sync_rmv_or_error([1.0])
    assert call.value == {"x": RunningMeanVar(1, 1.0, 0.0, 1.0, 1.0)}


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo"])
def test_a_group_of_one_is_its_own_sum(backend, tmp_path, assert_moments):
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        geometry = GeometryComputation(inplace=True, normalize=False, correlation=True, eps=0.0)
        for tensor in (torch.ones(4), torch.ones(4)):
            geometry.update(tensor)
        geometry.start_sync()
        geometry.finish_sync()
        with pytest.raises(AssertionError, match="start_sync"):
            geometry.finish_sync()
    finally:
        dist.destroy_process_group()
    assert_moments(geometry.norm, [2.0, 2.0])
    assert_moments(geometry.product, [0.0, 1.0])
