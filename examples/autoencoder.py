"""An autoencoder squeezes signals of 64 numbers through 3, and a lens says how many directions its layers use.

Each signal is a bump with a random place, width and height. ``lenses=["standard", SpectralNorm()]`` adds the spectrum
of weights to what ``watch`` looks at anyway. Its stable rank is the number of directions that matter in a weight: few
around the code of three numbers, more further out. ``watched.records()`` has all numbers of the last tick.

Prints the error, the ranks and the verdict, and writes ``autoencoder.html``.
"""

import torch
from torch import Tensor, nn

import monitorch
from monitorch.lens import SpectralNorm

STEPS, BATCH, LENGTH, CODE = 300, 64, 64, 3


class Autoencoder(nn.Module):
    """Two networks, and few numbers between them."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(LENGTH, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, CODE)
        )
        self.decoder = nn.Sequential(
            nn.Linear(CODE, 32), nn.GELU(), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, LENGTH)
        )

    def forward(self, signals: Tensor) -> Tensor:
        """The signals, as far as the code tells them."""
        return self.decoder(self.encoder(signals))


def bumps(count: int) -> Tensor:
    """Signals ``(count, LENGTH)`` with about unit variance."""
    place, width, height = torch.rand(3, count, 1)
    distance = (torch.linspace(0, 1, LENGTH) - place) / (0.05 + 0.15 * width)
    return (1 + 2 * height) * torch.exp(-distance.square() / 2)


def main() -> monitorch.Watch:
    """Train, and say how it went."""
    torch.manual_seed(0)
    model, loss_fn = Autoencoder(), nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    held_out = bumps(256)
    before = loss_fn(model(held_out), held_out).item()

    lenses = ["standard", SpectralNorm()]
    with monitorch.watch(model, optimizer, loss_fn=loss_fn, lenses=lenses, run="autoencoder") as watched:
        for _ in range(STEPS):
            signals = bumps(BATCH)
            optimizer.zero_grad()
            loss_fn(model(signals), signals).backward()
            optimizer.step()

    print(f"error: {before:.3f} before, {loss_fn(model(held_out), held_out).item():.3f} after")
    ranks = {record.layer: record.value for record in watched.records() if record.tag == "Weight Stable Rank"}
    print("stable ranks:", ", ".join(f"{layer} {rank:.1f}" for layer, rank in ranks.items()))
    print(watched)
    print("report:", watched.report("autoencoder.html"))
    return watched


if __name__ == "__main__":
    main()
