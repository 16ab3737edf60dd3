"""A CNN with a bug that its loss does not show, and a diagnosis that names it.

A network was made for colour images, and is to learn from grey ones. So its first layer is replaced; but the optimizer
was made before that, and still has the layer that is gone. The new one keeps its random weights for ever. Nothing
fails, the loss falls, the network is only worse than it could be. With ``--mended`` the optimizer is made when the
model is complete; ``monitorch compare cnn_planted_bug cnn_mended`` then shows what has changed.

Prints the accuracy and what was found, and writes ``cnn_planted_bug.html`` or ``cnn_mended.html``.
"""

import sys

import torch
from torch import Tensor, nn

import monitorch

STEPS, BATCH, SIZE = 200, 64, 16
SHAPES = ("horizontal bar", "vertical bar", "cross", "frame")


def first_layer(channels: int) -> nn.Conv2d:
    """What takes the images: 1 channel if they are grey, 3 if they have colours."""
    return nn.Conv2d(channels, 4, 4, stride=2, padding=1)


class Net(nn.Module):
    """Three convolutions and a linear layer."""

    def __init__(self, channels: int):
        super().__init__()
        self.stem = first_layer(channels)
        self.body = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(4, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, len(SHAPES))

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the shapes."""
        return self.head(self.body(self.stem(images)).mean(dim=(2, 3)))


def drawings(count: int) -> tuple[Tensor, Tensor]:
    """Noisy grey images of a shape at a random place, and which shape it is."""
    images, shapes = 0.4 * torch.randn(count, 1, SIZE, SIZE), torch.randint(len(SHAPES), (count,))
    places = torch.randint(SIZE - 7, (count, 2)).tolist()
    for (image,), shape, (y, x) in zip(images, shapes.tolist(), places, strict=True):
        part = image[y : y + 7, x : x + 7]
        if shape in (0, 2):
            part[3] += 1.5
        if shape in (1, 2):
            part[:, 3] += 1.5
        if shape == 3:
            part[[0, -1]] += 1.5
            part[1:-1, [0, -1]] += 1.5
    return images, shapes


def main(mended: bool = False) -> monitorch.Watch:
    """Train with the bug or without it, and say what was found."""
    torch.manual_seed(0)
    name = "cnn_mended" if mended else "cnn_planted_bug"
    model, loss_fn = Net(channels=3), nn.CrossEntropyLoss()
    if mended:
        model.stem = first_layer(channels=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        model.stem = first_layer(channels=1)

    with monitorch.watch(model, optimizer, loss_fn=loss_fn, run=name) as watched:
        for _ in range(STEPS):
            images, shapes = drawings(BATCH)
            optimizer.zero_grad()
            loss_fn(model(images), shapes).backward()
            optimizer.step()

    images, shapes = drawings(1000)
    print(f"accuracy: {(model(images).argmax(1) == shapes).float().mean():.1%}")
    print(watched)
    print("report:", watched.report(f"{name}.html"))
    return watched


if __name__ == "__main__":
    main(mended="--mended" in sys.argv[1:])
