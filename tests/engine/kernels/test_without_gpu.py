"""The kernels for GPUs, where there is none: they compile for one, and the interpreter gets the right numbers."""

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from monitorch.engine import kernels
from monitorch.engine.columns import WIDTH
from monitorch.engine.kernels import fused
from monitorch.engine.kernels.fused_many import ManyGradients, ManySketches, ManyUpdates
from monitorch.engine.kernels.reference import SKETCH
from tests.engine.kernels.without_gpu import INTERPRETED, compiled, pretend
from tests.marks import slow

pytestmark = pytest.mark.skipif(INTERPRETED or not (fused.AVAILABLE or os.environ.get("CI")), reason="needs Triton")

AMPERE, HOPPER, BLACKWELL = 80, 90, 100

OUTPUTS = [((4, 6, 5), -1), ((4, 6, 5), None), ((2, 3, 40, 40), 1), ((30, 17), 1), ((30, 17), None), ((4, 20000), 1)]


def measure_everything(dtype):
    """Call every reader with tensors for which it chooses another kernel."""
    block = torch.zeros(8, WIDTH, dtype=torch.float64)
    for shape, channel_dim in OUTPUTS:
        x = torch.ones(shape, dtype=dtype)
        scratch = torch.zeros(fused.scratch_size(x, channel_dim), dtype=torch.float64)
        fused.OutputReader(x, channel_dim, 0.0, scratch)(x, block, 0)
    x = torch.ones(300, dtype=dtype)
    for previous in (None, x.clone()):
        fused.GeometryReader(x, previous)(x, block, 0, previous is not None)
    fused.SketchReader(x, torch.zeros(2, SKETCH))(x, block, 0, False)
    assert fused.whole_facts(x) is not None
    for eps in (None, 0.0):
        ManyGradients()([x], [x.clone()], [True], eps, block, 0)
        ManyGradients()([x], None, [False], eps, block, 0)
    for previous in (None, [x.float()]):
        ManyUpdates()([x], [x.clone()], previous, [previous is not None], block, 0)
    states = list(torch.zeros(1, 2, SKETCH, dtype=torch.float64))
    many = ManySketches()
    many.keep([x], states)
    many([x], states, [False], block, 0)


@pytest.fixture
def launchers(monkeypatch):
    """All that is launched, one of each kernel with other constants."""
    found = {}

    def note(launcher, *_):
        found[launcher._kernel, launcher._constants] = launcher

    pretend(monkeypatch, note)
    for dtype in (torch.float32, torch.bfloat16):
        measure_everything(dtype)
    return found


def test_every_kernel_is_launched(launchers):
    modules = [
        importlib.import_module(f"{kernels.__name__}.{one.name}") for one in pkgutil.iter_modules(kernels.__path__)
    ]
    known = {name for module in modules for name in vars(module) if name.endswith("_kernel")}
    assert {kernel.fn.__name__ for kernel, _ in launchers} == known


@pytest.mark.parametrize("capability", [HOPPER, *map(slow, (AMPERE, BLACKWELL))])
def test_every_kernel_compiles(capability, launchers):
    for launcher in launchers.values():
        assert compiled(launcher, capability).asm["cubin"]


QUICK = "(test_facts or test_output or test_geometry or test_nothing or test_bound) and not dtype2"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves run")
@pytest.mark.parametrize("chosen", [QUICK, slow(f"not ({QUICK})")], ids=["quick", "others"])
def test_the_interpreter_gets_the_right_numbers(chosen):
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", chosen]
    tests, environment = Path(__file__).with_name("test_fused.py"), {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([*program, tests], env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(done.stdout.split(" passed")[0].split()[-1]) > 20
