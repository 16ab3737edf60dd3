"""PyTorch Lightning: a callback is the only line that is new.

Steps, losses, logged numbers, validation and clipping are those of the Trainer.

Prints the verdict and writes ``lightning_fit.html``. Needs ``pip install 'monitorch[lightning]'``.
"""

import lightning as L  # noqa: N812 - Lightning's own habit
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from monitorch import Watch
from monitorch.integration.lightning import MonitorchCallback


class Classifier(L.LightningModule):
    """An MLP that learns which quadrant a point is in."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
        self.loss_fn = nn.CrossEntropyLoss()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        points, quadrants = batch
        loss = self.loss_fn(self.net(points), quadrants)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Loss and accuracy on points that were not trained with."""
        points, quadrants = batch
        scores = self.net(points)
        self.log("val_loss", self.loss_fn(scores, quadrants))
        self.log("val_accuracy", (scores.argmax(1) == quadrants).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def data(count: int, *, shuffle: bool) -> DataLoader:
    """Points, and which quadrant each is in."""
    points = torch.randn(count, 2)
    return DataLoader(TensorDataset(points, (points[:, 0] > 0) + 2 * (points[:, 1] > 0)), 32, shuffle=shuffle)


def main() -> Watch | None:
    """Fit, and say how it went."""
    L.seed_everything(0, verbose=False)
    model = Classifier()
    callback = MonitorchCallback(run="lightning_fit", loss_fn=model.loss_fn)
    trainer = L.Trainer(
        max_epochs=6, gradient_clip_val=1.0, callbacks=[callback], logger=False, enable_checkpointing=False
    )
    trainer.fit(model, data(1024, shuffle=True), data(256, shuffle=False))

    watched = callback.watched
    if watched is not None:
        print(watched)
        print("report:", watched.report("lightning_fit.html"))
    return watched


if __name__ == "__main__":
    main()
