"""An LSTM learns to forecast a wave, with its gradients clipped.

Recurrent layers have parameters with names of their own, such as ``weight_hh_l0``; each gets its own row. Gradients are
shown as they were before clipping (``gradient="before_clip"``); without this option, as the optimizer uses them.

Prints the verdict and writes ``lstm.html``.
"""

import torch
from torch import Tensor, nn

import monitorch

STEPS, BATCH, LENGTH = 150, 64, 40


class Forecaster(nn.Module):
    """Says the next value of each series."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, series: Tensor) -> Tensor:
        """A value for each place ``(batch, place)``."""
        hidden, _ = self.lstm(series.unsqueeze(2))
        return self.head(hidden).squeeze(2)


def waves(count: int) -> Tensor:
    """Sums of two sines with random phases and a little noise ``(count, LENGTH + 1)``."""
    time, (phase1, phase2) = torch.arange(LENGTH + 1), 6.3 * torch.rand(2, count, 1)
    return torch.sin(time / 3 + phase1) + 0.5 * torch.sin(time / 1.3 + phase2) + 0.05 * torch.randn(count, LENGTH + 1)


def main() -> monitorch.Watch:
    """Train, and say how it went."""
    torch.manual_seed(0)
    model, loss_fn = Forecaster(), nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    with monitorch.watch(model, optimizer, loss_fn=loss_fn, run="lstm", gradient="before_clip") as watched:
        for _ in range(STEPS):
            series = waves(BATCH)
            optimizer.zero_grad()
            loss_fn(model(series[:, :-1]), series[:, 1:]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()

    print(watched)
    print("report:", watched.report("lstm.html"))
    return watched


if __name__ == "__main__":
    main()
