"""Oracles, a counter of reads by the host, and real processes for the tests of numbers."""

import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from torch.overrides import TorchFunctionMode

from monitorch.numerical import RunningMeanVar


@pytest.fixture(scope="session")
def assert_moments():
    """Compare moments with the samples behind them, in float64 and in any order of magnitude."""

    def check(found, samples):
        accumulator = found if isinstance(found, RunningMeanVar) else RunningMeanVar(*found[:5], nonfinite=found[5])
        count, mean, var, low, high, nonfinite = accumulator.state()
        finite = [x for x in samples if math.isfinite(x)]
        assert (count, nonfinite) == (len(finite), len(samples) - len(finite))
        assert (low, high) == (min(finite, default=math.inf), max(finite, default=-math.inf))
        scale = max(map(abs, finite), default=0.0)
        expected = math.fsum(finite) / len(finite) if finite else 0.0
        assert abs(mean - expected) <= 1e-12 * scale + 1e-320
        deviation = float(np.std(np.array(finite) / scale)) if scale else 0.0
        assert abs(accumulator.std - deviation * scale) <= 1e-6 * scale + 1e-150
        spread = deviation**2 * scale * scale
        if spread < 1e300:
            assert abs(var - spread) <= 1e-12 * scale * scale + 1e-300
        else:
            assert var > 1e299

    return check


READING = {"cpu", "item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__"}


class HostReads(TorchFunctionMode):
    """Counts the calls that bring numbers to the host."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls[func.__name__] += func.__name__ in READING
        return func(*args, **(kwargs or {}))


@pytest.fixture
def host_reads():
    return HostReads


@pytest.fixture(scope="session", params=[2, pytest.param(3, marks=pytest.mark.slow)], ids="{} ranks".format)
def ranks(request, tmp_path_factory):
    """What every rank of a group of real gloo processes reported."""
    world, folder = request.param, tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("rank_worker.py")
    command = [sys.executable, str(script), str(world), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(world)]
    assert [worker.wait(timeout=600) for worker in workers] == [0] * world
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
