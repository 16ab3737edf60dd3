"""One process of a layout: trains, watched and not, and reports what it was shown."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from monitorch import PyTorchInspector
from monitorch.engine.meeting import Meeting
from monitorch.lens import (
    LossMetrics,
    OutputActivation,
    OutputGradientGeometry,
    OutputNorm,
    ParameterCond,
    ParameterFacts,
    ParameterGradientActivation,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
    Routing,
    SignalToNoise,
    UpdateRatio,
)
from tests.training_reality.distributed.cases import LAYOUTS, QUICK
from tests.training_reality.distributed.training import (
    DETOUR_STEP,
    RATE,
    STEPS,
    TICKS,
    VARIANTS,
    Loss,
    batch,
    new_model,
)

DEVICE = "cpu"
"""Where to train; on a GPU all processes share it."""

LINES = {"inplace": False, "line_aggregation": ["mean", "std", "min", "max", "median"], "range_aggregation": None}
OTHER_LENSES = (
    *(LossMetrics, OutputActivation, OutputGradientGeometry, ParameterCond),
    *(ParameterGradientActivation, ParameterGradientGeometry, ParameterNorm),
)


def ddp(model):
    return DistributedDataParallel(model, find_unused_parameters=True)


def fsdp(model):
    for part in (model.columns, model.rows):
        fully_shard(part)
    return fully_shard(model)


def hsdp(model):
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model.columns, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model, mesh=None):
    plan = {
        "norm": SequenceParallel(),
        "columns": ColwiseParallel(input_layouts=Shard(1)),
        "rows": RowwiseParallel(),
        "extra": ColwiseParallel(output_layouts=Replicate()),
        "last": ColwiseParallel(output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh or init_device_mesh(DEVICE, (dist.get_world_size(),)), plan)


def two_dimensional(model):
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("data", "tensor"))
    tensor_parallel(model, mesh["tensor"])
    return fully_shard(model, mesh=mesh["data"])


PARALLEL = {"ddp": ddp, "fsdp": fsdp, "hsdp": hsdp, "tp": tensor_parallel, "fsdp+tp": two_dimensional}


class Run:
    """One training in one layout."""

    def __init__(self, layout, variant, *, watched=True):
        self.data_rank, self.tensor_rank = divmod(dist.get_rank(), layout.tensor_ranks)
        self.layout, self.variant = layout, variant
        torch.compiler.reset()
        counters.clear()
        self.model = PARALLEL[layout.key](new_model(variant.dtype, checkpointed=variant.checkpointed).to(DEVICE))
        self.called = torch.compile(self.model, backend="aot_eager") if variant.compiled else self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10, enabled=variant.scaled)
        self.loss = Loss()
        self.inspector = self.watch() if watched else None
        self.shown = []

    def watch(self):
        lenses = [
            LossMetrics(loss_fn=self.loss, loss_fn_inplace=False, loss_line=LINES["line_aggregation"], loss_range=None),
            OutputNorm(include=(nn.Linear, nn.LayerNorm), comparison_plot=False, **LINES),
            OutputActivation(warning_plot=False),
            OutputGradientGeometry(**LINES),
            ParameterGradientGeometry(**LINES),
            ParameterGradientActivation(warning_plot=False),
            ParameterUpdateGeometry(self.optimizer, **LINES),
            UpdateRatio(self.optimizer, **LINES),
            SignalToNoise(self.optimizer),
            ParameterFacts(self.optimizer),
            ParameterNorm(comparison_plot=False),
            Routing("last", top_k=1),
        ]
        known = {"optimizer": self.optimizer, "grad_scaler": self.scaler, "gradient": self.variant.gradient}
        told = known if self.variant.told else {}
        return PyTorchInspector(lenses, module=self.called, visualizer="dummy", on_error="raise", **told)

    def train(self):
        for step in range(STEPS):
            self.optimizer.zero_grad()
            for part in range(self.variant.micro_batches):
                is_last = part == self.variant.micro_batches - 1
                with contextlib.nullcontext() if is_last or self.layout.key != "ddp" else self.model.no_sync():
                    self.backward(step, part)
            self.step()
            if (step + 1) % (STEPS // TICKS) == 0:
                self.evaluate()
                self.tick()
        self.graphs, self.breaks = counters["stats"]["unique_graphs"], counters["graph_break"].total()
        return self

    def tick(self):
        if self.inspector is not None:
            self.inspector.tick_epoch()
            self.shown.append([(r.tag, r.layer, r.statistic, r.value) for r in self.inspector.records()])

    def backward(self, step, part):
        x, y = self.batch(step * self.variant.micro_batches + part, self.data_rank)
        x = x.chunk(self.layout.tensor_ranks, dim=1)[self.tensor_rank].contiguous()
        used = self.layout.key == "ddp" and step == DETOUR_STEP and self.data_rank == 0
        self.scaler.scale(self.loss(self.called(x, used), y)).backward()

    def batch(self, number, rank):
        return [whole.to(DEVICE) for whole in batch(number, rank, self.variant.dtype)]

    def step(self):
        if self.variant.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.variant.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    @torch.no_grad()
    def evaluate(self):
        """Leaves some parameters gathered where they are sharded."""
        x, _ = self.batch(0, 0)
        self.called.eval()(x.chunk(self.layout.tensor_ranks, dim=1)[self.tensor_rank].contiguous())
        self.called.train()

    def weights(self):
        return [p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in self.model.parameters()]


def numbers(layout, pace):
    return {name: compared(layout, VARIANTS[name]) for name in layout.variants_on(DEVICE, pace)}


def compared(layout, variant):
    """What the inspector has shown, and whether training has noticed it."""
    watched, bare = (Run(layout, variant, watched=watched).train() for watched in (True, False))
    same = torch.allclose if variant.compiled else torch.equal
    pairs = zip(watched.weights(), bare.weights(), strict=True)
    untouched = all(same(*pair) for pair in pairs) and watched.breaks == bare.breaks
    return {"shown": watched.shown, "untouched": untouched, "graphs": watched.graphs}


def count_collectives(depth, lenses):
    """How many collectives a tick takes: of its own, and of the group that training uses."""
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(3, 3) for _ in range(depth))).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    all_lenses = [OutputNorm(include=nn.Linear), *(kind() for kind in OTHER_LENSES), ParameterUpdateGeometry(optimizer)]
    inspector = PyTorchInspector(all_lenses[:lenses], module=model, optimizer=optimizer, visualizer="dummy")
    model(torch.ones(2, 3, device=DEVICE)).sum().backward()
    optimizer.step()
    own = []
    with CommDebugMode() as counter, pytest.MonkeyPatch.context() as patch:
        reduce = Meeting.reduce
        patch.setattr(Meeting, "reduce", lambda *args: own.append(1) or reduce(*args))
        inspector.tick_epoch()
    return len(own), counter.get_total_counts()


def poisoned():
    """What is left out, by tag: in the second of two steps one rank has a number that is none."""
    model, loss_fn = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to(DEVICE)), Loss()
    lenses = [LossMetrics(loss_fn=loss_fn), OutputNorm(), OutputGradientGeometry(), ParameterGradientGeometry()]
    inspector = PyTorchInspector(lenses, module=model, visualizer="dummy", on_error="raise")
    for step in range(2):
        x = torch.ones(2, 3, device=DEVICE)
        x[0, 0] = torch.nan if step and dist.get_rank() else 1.0
        loss_fn(model(x), torch.zeros_like(x)).backward()
    inspector.tick_epoch()
    return {r.tag: r.nonfinite for r in inspector.records() if r.statistic.endswith("mean")}


def deaths():
    """Death rates of neurons that are active on the first rank, nowhere, on both ranks, and on the second rank."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(DEVICE))
    with torch.no_grad():
        model.module[0].weight.copy_(torch.eye(4))
        model.module[0].bias.zero_()
    lenses = [OutputActivation(warning_plot=False, exact_death=exact) for exact in (False, True)]
    inspector = PyTorchInspector(lenses, module=model, visualizer="dummy", on_error="raise")
    model(torch.tensor([[[1.0, 0, 1, 0]], [[0.0, 0, 1, 1]]], device=DEVICE)[dist.get_rank()])
    inspector.tick_epoch()
    return [record.value for record in inspector.records() if record.statistic == "death_rate"]


def second_moments():
    """What Adam keeps of gradients, with DDP and with fully_shard: the last of some steps, by layout and parameter."""
    found = {}
    for key in ("ddp", "fsdp"):
        model = PARALLEL[key](new_model(torch.float64).to(DEVICE))
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        lens = SignalToNoise(optimizer)
        inspector = PyTorchInspector([lens], module=model, optimizer=optimizer, visualizer="dummy", on_error="raise")
        for step in range(STEPS):
            x, y = (whole.to(DEVICE) for whole in batch(step, dist.get_rank(), torch.float64))
            optimizer.zero_grad()
            Loss()(model(x), y).backward()
            optimizer.step()
            inspector.tick_epoch()
        records = [record for record in inspector.records() if record.lens == "SignalToNoise"]
        found[key] = {record.layer: record.value for record in records if record.statistic == "mean"}
    return found


class Replicated(nn.Module):
    """A replicated layer before a cut one: its gradient is still to be summed up; a vector; and a loss of its own."""

    def __init__(self, mesh):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.columns, self.vector = nn.LayerNorm(4), nn.Linear(4, 6, bias=False), nn.Identity()
        for name, parameter in list(self.norm.named_parameters()):
            whole = distribute_tensor(parameter.detach(), mesh, [Replicate()])
            self.norm.register_parameter(name, nn.Parameter(whole))
        weight = distribute_tensor(self.columns.weight.detach(), mesh, [Shard(0)])
        self.columns.weight = nn.Parameter(weight)

    def forward(self, x):
        x = self.columns(self.norm(x))
        return {"loss": x.square().mean() + self.vector(x.mean(0)).sum()}


def placements():
    """Numbers of DTensors by hand, eager and compiled."""
    mesh, found = init_device_mesh(DEVICE, (dist.get_world_size(),)), []
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    for compiled in (False, True):
        model = Replicated(mesh).to(DEVICE)
        called = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        lenses = [LossMetrics(), OutputNorm(include=nn.Identity), OutputGradientGeometry()]
        inspector = PyTorchInspector(lenses, module=called, visualizer="dummy", on_error="raise")
        called(distribute_tensor(x, mesh, [Replicate()]))["loss"].backward()
        inspector.tick_epoch()
        found.append({f"{r.tag} {r.layer}": r.value for r in inspector.records() if r.statistic.endswith("mean")})
    return found


def report(rank, folder, *, device, pace):
    """All that there is to find in a group of this size; ``pace`` says which variants, see ``Layout.variants_on``."""
    global DEVICE
    DEVICE = device
    layouts = [layout for layout in LAYOUTS if layout.processes == dist.get_world_size()]
    found = {layout.key: numbers(layout, pace) for layout in layouts}
    if dist.get_world_size() == 2 and pace == QUICK:
        found["collectives"] = [count_collectives(*case) for case in ((2, 1), (2, 9), (12, 1), (12, 9))]
        found["poisoned"] = poisoned()
        found["deaths"] = deaths()
        if DEVICE == "cpu":
            found["placements"] = placements()
            found["second moments"] = second_moments()
    dist.barrier()
    return found
