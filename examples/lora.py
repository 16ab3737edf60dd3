"""LoRA by hand: a frozen network is adapted to new data by small matrices beside its layers.

First a network is trained, as somebody else would have done. Then its weights are frozen, and each layer gets two thin
matrices, ``down`` and ``up``. ``up`` begins at zero, so at the first step only ``up`` has a gradient; that is how LoRA
works, and no problem. Frozen weights have no gradients and do not move, and the report shows it.

Prints what is trained, the error before and after and the verdict, and writes ``lora.html``.
"""

import torch
from torch import Tensor, nn

import monitorch

STEPS, BATCH, WIDTH, RANK = 200, 64, 64, 4


class LoRA(nn.Module):
    """A frozen linear layer, and a change of it that has a low rank."""

    def __init__(self, frozen: nn.Linear):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """What the layer says, and what was learned since."""
        return self.frozen(x) + self.up(self.down(x))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loss_fn: nn.Module, task: Tensor) -> None:
    """Learn a function of eight numbers."""
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, 8)
        optimizer.zero_grad()
        loss_fn(model(inputs), (inputs @ task).tanh()).backward()
        optimizer.step()


def main() -> monitorch.Watch:
    """Train the whole network on one task, then adapt it to another."""
    torch.manual_seed(0)
    first = torch.randn(8, 2) / 2
    second = first + 0.5 * torch.randn(8, 2) / 2  # much like the first
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 2))
    loss_fn = nn.MSELoss()
    train(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss_fn, first)

    for index in (0, 2, 4):
        model[index] = LoRA(model[index])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    inputs = torch.randn(1000, 8)
    before = loss_fn(model(inputs), (inputs @ second).tanh()).item()
    optimizer = torch.optim.Adam(trained, lr=3e-3)
    with monitorch.watch(model, optimizer, loss_fn=loss_fn, run="lora") as watched:
        train(model, optimizer, loss_fn, second)

    total = sum(parameter.numel() for parameter in model.parameters())
    print(f"trained: {sum(parameter.numel() for parameter in trained):,} of {total:,} parameters")
    print(f"error: {before:.3f} before, {loss_fn(model(inputs), (inputs @ second).tanh()).item():.3f} after")
    print(watched)
    print("report:", watched.report("lora.html"))
    return watched


if __name__ == "__main__":
    main()
