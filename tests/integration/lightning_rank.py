"""One of several processes that Lightning trains together: ``lightning_rank.py FOLDER``."""

import json
import logging
import sys
from pathlib import Path

import torch

from monitorch.integration.lightning import MonitorchCallback
from tests.integration.test_lightning import EVERY_STEP, Regression, fit


class Synced(Regression):
    """Logs means over all processes."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.losses.append((self.trainer.global_step + 1, float(loss.detach())))
        self.log("mean", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), sync_dist=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    model, callback = Synced(), MonitorchCallback(folder=folder / "runs", **EVERY_STEP)
    trainer = fit(model, folder, callback, train=32, validate=16, strategy="ddp", devices=2, accumulate_grad_batches=2)
    noted = {"losses": model.losses, "norms": model.norms, "steps": trainer.global_step}
    lines = {name: trainer.logger.line(name) for name in ("mean", "val_loss", "norm")}
    (folder / f"{trainer.global_rank}.json").write_text(json.dumps(noted | lines))
