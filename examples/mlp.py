"""The first thing to try: an MLP that learns to tell three spirals apart, with the lines of monitorch around it.

``preflight`` looks for mistakes before the first step, ``watch`` records the training, and ``print(watched)`` says how
it went. The loop itself is any loop of PyTorch, with a validation loss after each epoch.

Prints the verdict and writes ``mlp.html``, a report that opens in any browser.
"""

import math

import torch
from torch import Tensor, nn

import monitorch

EPOCHS, BATCH = 12, 64


def spirals(count: int) -> tuple[Tensor, Tensor]:
    """Points on three arms of a spiral, and which arm each is on."""
    arm, radius = torch.randint(3, (count,)), 0.2 + torch.rand(count)
    angle = arm * 2 * math.pi / 3 + 3 * radius
    points = torch.stack((angle.cos(), angle.sin()), dim=1) * radius.unsqueeze(1)
    return 1.5 * points + 0.05 * torch.randn(count, 2), arm


def main() -> monitorch.Watch:
    """Train, and say how it went."""
    torch.manual_seed(0)
    (points, arms), (new_points, new_arms) = spirals(2048), spirals(512)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=3e-3)

    print("before training:", monitorch.preflight(model, (points[:BATCH], arms[:BATCH]), loss_fn, optimizer))

    with monitorch.watch(model, optimizer, loss_fn=loss_fn, run="mlp") as watched:
        for _ in range(EPOCHS):
            model.train()
            for batch in torch.randperm(len(points)).split(BATCH):
                optimizer.zero_grad()
                loss_fn(model(points[batch]), arms[batch]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                scores = model(new_points)
                loss_fn(scores, new_arms)  # in eval mode this is the validation loss
                watched.log(accuracy=(scores.argmax(1) == new_arms).float().mean())

    print("after training:", watched)
    print("report:", watched.report("mlp.html"))
    return watched


if __name__ == "__main__":
    main()
