"""Several processes (DistributedDataParallel): one run, with the numbers of all of them.

Every process watches; the first one stores the run, with losses and outputs of all batches. Start it with

    torchrun --nproc_per_node 2 examples/ddp.py

The first process prints the verdict and writes ``ddp.html``.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import monitorch

STEPS, BATCH = 200, 32


def main() -> None:
    """Train in each process with data of its own, and say in the first one how it went."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    task = torch.linspace(-1, 1, 8).unsqueeze(1)  # the same in all processes
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    loss_fn, optimizer = nn.MSELoss(), torch.optim.Adam(model.parameters(), lr=3e-3)

    with monitorch.watch(model, optimizer, loss_fn=loss_fn, run="ddp") as watched:
        for _ in range(STEPS):
            inputs = torch.randn(BATCH, 8)
            optimizer.zero_grad()
            loss_fn(model(inputs), inputs @ task).backward()
            optimizer.step()

    if rank == 0:
        print(f"{dist.get_world_size()} processes:", watched)
        print("report:", watched.report("ddp.html"))
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit(f"Start it with: torchrun --nproc_per_node 2 {sys.argv[0]}")
    main()
