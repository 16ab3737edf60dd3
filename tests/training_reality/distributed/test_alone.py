"""A script in which only the first process watches: started by torchrun, and ended as Python ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from monitorch.store import list_runs

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.slow]
ROOT = Path(__file__).parents[3]

SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import monitorch
from monitorch.engine import meeting

meeting.PATIENCE = 1.0
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))
optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
if dist.get_rank() == 0 or "everybody" in sys.argv:
    monitorch.watch(model, optimizer, loss_fn=loss_fn, run="mine", tick_every=4)
for step in range(12):
    x = torch.randn(8, 3)
    optimizer.zero_grad()
    loss_fn(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
group = dist.new_group()
dist.all_reduce(torch.ones(1), group=group)
if "destroys" in sys.argv:
    dist.destroy_process_group()
elif "one" in sys.argv and dist.get_rank() == 1:
    os._exit(0)  # without a watch, too, torch sometimes aborts here while the other process goes on
"""


@pytest.mark.parametrize("ending", ["ends", "destroys"])
@pytest.mark.parametrize(("who", "warnings"), [("one", 1), ("everybody", 0)])
def test_a_script_trains_to_its_end_whoever_watches(who, warnings, ending, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [*launch, "script.py", who, ending]
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("MonitorchWarning") == warnings
    (run,) = list_runs(tmp_path / "monitorch_runs")
    assert (run.name, run.status) == ("mine", "finished")
