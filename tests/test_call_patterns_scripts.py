"""The ways people call an inspector in training scripts: compiled, recorded, replayed, on several ranks."""

import subprocess
import sys

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

from monitorch.inspector import PyTorchInspector
from monitorch.lens import (
    LossMetrics,
    OutputActivation,
    OutputNorm,
    ParameterGradientActivation,
    ParameterGradientGeometry,
    ParameterNorm,
    ParameterUpdateGeometry,
)
from monitorch.visualizer import MatplotlibVisualizer, PlayerVisualizer, RecorderVisualizer
from monitorch.visualizer.record_sink import RecordSink

# the compiler hides this warning of its own, but cannot where warnings are errors
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
IDS = torch.tensor([[0, 1, 2, 3, 4], [5, 6, 0, 2, 4]])
MICRO_STEPS = 3


class Descent(torch.optim.Optimizer):
    """An optimizer of somebody's own."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter -= 0.1 * parameter.grad


class LanguageModel(nn.Module):
    """A model that computes its own loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.act, self.head = nn.Embedding(7, 4), nn.ReLU(), nn.Linear(4, 7, bias=False)

    def forward(self, ids, targets):
        return nn.functional.cross_entropy(self.head(self.act(self.embed(ids))).flatten(0, 1), targets.flatten())


class Lines(RecordSink):
    """Values by (epoch, tag, layer, statistic)."""

    def __init__(self):
        super().__init__()
        self.values = {}

    def write(self, records):
        self.values |= {(r.epoch, r.tag, r.layer, r.statistic): r.value for r in records}


def record_training(path, backend=None):
    """Two ticks of accumulated training, with an evaluation in between."""
    torch.compiler.reset()
    model = LanguageModel() if backend is None else torch.compile(LanguageModel(), backend=backend)
    optimizer, only = Descent(model.parameters()), {"parameters": ["weight"]}
    lenses = [
        LossMetrics(loss_fn=model),
        OutputActivation(),
        OutputNorm(),
        ParameterGradientGeometry(**only),
        ParameterGradientActivation(**only),
        ParameterUpdateGeometry(optimizer=optimizer, **only),
        ParameterNorm(**only),
    ]
    inspector = PyTorchInspector(
        lenses, module=model, visualizer=RecorderVisualizer(path), is_active_fn=lambda n: model.training
    )
    for _ in range(2):
        for _ in range(MICRO_STEPS):
            (model(IDS, IDS) / MICRO_STEPS).backward()
        optimizer.step()
        optimizer.zero_grad()
        inspector.tick()
        model.eval()
        model(IDS, IDS)
        model.train()


def oracle():
    """The same training in float64, without an inspector."""
    model, values = LanguageModel().double(), {}
    for epoch in (1, 2):
        loss = model(IDS, IDS)
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        values[epoch, "Loss", "Loss", "train_loss mean"] = loss.item()
        values[epoch, "Weight Gradient Norm", "head", "max"] = gradient[1].norm().item()  # the running sum's last
        values[epoch, "Weight Update Norm", "embed", "mean"] = 0.1 * gradient[0].norm().item()
        with torch.no_grad():
            for parameter, step in zip(model.parameters(), gradient, strict=True):
                parameter -= 0.1 * step
        values[epoch, "Weight Norm", "head", "mean"] = model.head.weight.norm().item()
    return values


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_model_with_its_own_loss_is_recorded_while_it_trains(backend, tmp_path):
    record_training(tmp_path / "run.jsonl", backend)
    values = PlayerVisualizer(tmp_path / "run.jsonl", Lines()).playback().visualizer.values
    expected = oracle()
    assert {at: values[at] for at in expected} == pytest.approx(expected, rel=1e-4)
    assert not [at for at in values if at[3].startswith("val_loss")]
    assert {at[2] for at in values if at[1] == "Output Norm"} == {"act"}


def test_recording_is_replayed_as_a_figure_later(tmp_path):
    record_training(tmp_path / "run.jsonl")
    figure = PlayerVisualizer(tmp_path / "run.jsonl", MatplotlibVisualizer()).playback().visualizer.show_fig()
    parts = [figure, *figure.subfigs, *(part for sub in figure.subfigs for part in sub.subfigs)]
    assert {"Loss", "Weight Update Norm", "Output Activations"} <= {part.get_suptitle() for part in parts}
    assert {"act", "head"} <= {axes.get_title() for axes in figure.axes}
    plt.close(figure)


DDP_SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from monitorch.inspector import PyTorchInspector
from monitorch.lens import LossMetrics, OutputNorm
from monitorch.visualizer import RecorderVisualizer

path, meeting = sys.argv[1:]
dist.init_process_group("gloo", init_method=meeting)
torch.manual_seed(0)
model, loss_fn = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), nn.MSELoss()
lenses = [LossMetrics(loss_fn=loss_fn), OutputNorm()]
inspector = PyTorchInspector(lenses, module=model, visualizer=RecorderVisualizer(path))
for epoch in inspector.range(2):
    rank = dist.get_rank()
    loss_fn(model(torch.full((3, 2), 1.0 + rank + epoch)), torch.zeros(3, 2)).backward()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_each_rank_of_a_ddp_run_has_an_inspector_and_the_first_one_shows(tmp_path):
    path, meeting = tmp_path / "run.jsonl", f"file://{tmp_path}/meeting?world_size=2&rank="
    ranks = [subprocess.Popen([sys.executable, "-c", DDP_SCRIPT, path, meeting + str(rank)]) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).double()
    values = PlayerVisualizer(path, Lines()).playback().visualizer.values
    for epoch in range(2):
        outputs = torch.stack([model(torch.full((3, 2), 1.0 + rank + epoch).double()) for rank in range(2)])
        norm, loss = outputs.norm(dim=-1).mean().item(), outputs.pow(2).mean().item()
        assert values[epoch + 1, "Output Norm", "1", "mean"] == pytest.approx(norm, rel=1e-6)
        assert values[epoch + 1, "Loss", "Loss", "train_loss mean"] == pytest.approx(loss, rel=1e-6)
