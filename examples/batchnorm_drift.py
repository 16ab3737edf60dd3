"""How fast do batch-norm statistics drift, and what does a higher learning rate do to them?

A small network learns to classify points on rings. Half way through, the learning rate is raised tenfold. The running
statistics of the deeper layers, which evaluation relies on, begin to move several times as fast. Those of the first
layer hardly change, since the data stay the same.

Prints a table and draws ``batchnorm_drift.png``.
"""

import torch
from torch import Tensor, nn

from monitorch import PyTorchInspector
from monitorch.lens import Attribute, LossMetrics
from monitorch.observe import EMAReducer
from monitorch.visualizer import Record
from monitorch.visualizer.record_sink import RecordSink

TICKS, STEPS_PER_TICK, BATCH = 24, 20, 128
LEARNING_RATES = (0.01, 0.1)
LAYERS = ("norm1", "norm2", "norm3")


class Net(nn.Module):
    """Three hidden layers, each with batch norm."""

    def __init__(self):
        super().__init__()
        self.linear1, self.norm1 = nn.Linear(2, 32), nn.BatchNorm1d(32)
        self.linear2, self.norm2 = nn.Linear(32, 32), nn.BatchNorm1d(32)
        self.linear3, self.norm3 = nn.Linear(32, 32), nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the rings."""
        x = self.norm1(self.linear1(x)).relu()
        x = self.norm2(self.linear2(x)).relu()
        return self.head(self.norm3(self.linear3(x)).relu())


def rings(count: int) -> tuple[Tensor, Tensor]:
    """Points on three rings, and which ring each is on."""
    ring, angle = torch.randint(3, (count,)), torch.rand(count) * 2 * torch.pi
    points = torch.stack((angle.cos(), angle.sin()), dim=1) * (ring + 1).unsqueeze(1)
    return points + 0.2 * torch.randn(count, 2), ring


def step_length(after: Tensor, before: Tensor) -> tuple[Tensor]:
    """How far a forward pass moved the statistics."""
    return ((after - before).norm(),)


class Numbers(RecordSink):
    """Keeps all numbers in a dictionary, for the table."""

    def __init__(self):
        super().__init__()
        self.found: dict[tuple[int, str, str], float] = {}

    def write(self, records: list[Record]) -> None:
        """Take the numbers of one tick."""
        self.found |= {(r.epoch, r.tag, r.layer): r.value for r in records if r.statistic == "mean"}


def train(visualizer: object) -> PyTorchInspector:
    """Train with one learning rate, then with the other; one tick is a few steps."""
    torch.manual_seed(0)
    model, loss_fn = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATES[0], momentum=0.9)
    paths = [f"{layer}.running_mean" for layer in LAYERS]
    drift = Attribute(paths, EMAReducer(1.0, alpha=0.2), map_=step_length, difference=True)
    inspector = PyTorchInspector([LossMetrics(loss_fn=loss_fn), drift], module=model, visualizer=visualizer)
    for tick in inspector.range(TICKS):
        optimizer.param_groups[0]["lr"] = LEARNING_RATES[tick >= TICKS // 2]
        for _ in range(STEPS_PER_TICK):
            points, ring = rings(BATCH)
            optimizer.zero_grad()
            loss_fn(model(points), ring).backward()
            optimizer.step()
    return inspector


def main() -> dict[str, float]:
    """Show the drift, and return how much faster each layer's is after the change."""
    numbers = train(Numbers()).visualizer.found
    drift = {
        layer: [numbers[tick, "Running Mean Difference", layer] for tick in range(1, TICKS + 1)] for layer in LAYERS
    }
    print("tick  learning rate  " + "  ".join(f"{layer:>7}" for layer in LAYERS))
    for tick in range(1, TICKS, 2):
        rate = LEARNING_RATES[tick >= TICKS // 2]
        print(f"{tick + 1:4}  {rate:13g}  " + "  ".join(f"{drift[layer][tick]:7.4f}" for layer in LAYERS))
    train("matplotlib").visualizer.save("batchnorm_drift.png")
    middle = TICKS // 2
    faster = {layer: values[middle] / values[middle - 1] for layer, values in drift.items()}
    print("after the change, per step:", ", ".join(f"{layer} x{factor:.1f}" for layer, factor in faster.items()))
    print("figure: batchnorm_drift.png")
    return faster


if __name__ == "__main__":
    main()
