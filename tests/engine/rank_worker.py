"""What each rank of the group does that test_ranks.py starts: everything there is to do; it reports what it saw.

Every rank has the samples ``10 * rank, 10 * rank + 1, ...``, rank + 1 of them.
"""

import torch
import torch.distributed as dist
from torch import nn

from monitorch.engine.ranks import exchange
from monitorch.numerical import GeometryComputation, RunningMeanVar, finish_sync_rmv_or_error, start_sync_rmv_or_error
from monitorch.preprocessor import ExplicitCall, GradientGeometry, ParameterNorm


def message_of(function, *args):
    try:
        function(*args)
    except (AssertionError, AttributeError) as error:
        return str(error)
    return None


def synced_moments(samples):
    accumulator = RunningMeanVar()
    for sample in samples:
        accumulator.update(sample)
    accumulator.start_sync()
    accumulator.finish_sync()
    return accumulator.state()


def synced_geometry(samples):
    geometry = GeometryComputation(inplace=True, normalize=False, correlation=True, eps=0.0)
    for sample in samples:
        geometry.update(torch.full((4,), sample))
    geometry.start_sync(dst_rank=0)
    geometry.finish_sync()
    return [accumulator.state() for accumulator in geometry.value]


def preprocessors(rank, samples):
    """Three kinds; names differ in number and order between the ranks."""
    call = ExplicitCall("train", "val")
    geometry = GradientGeometry(correlation=True, normalize=False, inplace=False)
    norm = ParameterNorm(["a", "b"], normalize=False, inplace=True)
    shared = ["first", "second"] if rank else ["second", "first"]
    for name in (*shared, f"only on {rank}"):
        for sample in samples:
            call.push_memory(name, sample)
            call.push_running(f"{name} in place", torch.tensor(sample))
    for sample in samples:
        geometry.process_tensor("grad", torch.tensor([sample, 0.0]))
    module = nn.Module()
    module.a = nn.Parameter(torch.tensor([3.0, 4.0]))
    if rank == 1:
        module.b = nn.Parameter(torch.tensor([6.0, 8.0]))
    norm.process_module("layer", module)
    return [call, geometry, norm]


def readable(value):
    if isinstance(value, dict):
        return {name: readable(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [readable(part) for part in value]
    return value.state() if isinstance(value, RunningMeanVar) else list(value)


def synced_preprocessors(rank, samples):
    collectives = []
    reduce = dist.all_reduce
    dist.all_reduce = lambda *args, **kwargs: (collectives.append(args), reduce(*args, **kwargs))
    parties = preprocessors(rank, samples)
    for party in (*parties, parties[0]):  # two lenses may share one
        party.start_sync(dst_rank=0)
    for party in (*parties, parties[0]):
        party.finish_sync()
    exchange()
    dist.all_reduce = reduce
    return {"collectives": len(collectives), "values": [readable(party.value) for party in parties]}


def report(rank, folder):
    samples = [10.0 * rank + i for i in range(rank + 1)]
    return {
        "moments": synced_moments([*samples, float("nan")]),
        "nothing anywhere": synced_moments([]),
        "nothing on rank 0": synced_moments(samples if rank else []),
        "geometry": synced_geometry(samples),
        "finish alone": message_of(RunningMeanVar().finish_sync),
        "start a list": message_of(start_sync_rmv_or_error, [1.0], 0),
        "finish a list": message_of(finish_sync_rmv_or_error, [1.0]),
        "preprocessors": synced_preprocessors(rank, samples),
    }
