"""Accumulation over two batches with Lightning, without a word about devices; leaves ``losses`` and ``weights``."""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.manual_seed(0)
features, targets = torch.randn(64, 4), torch.randn(64, 1)
losses = []


class Model(lightning.LightningModule):
    """Logs what it loses at each step and in the mean of the epoch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch, _):
        """One batch."""
        loss = (self.layers(batch[0]) - batch[1]).square().mean()
        losses.append(loss.item())
        self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        """One batch."""
        self.log("val_loss", (self.layers(batch[0]) - batch[1]).square().mean(), sync_dist=True)

    def on_validation_epoch_end(self):
        """Such a metric needs all batches."""
        self.log("val_batches", float(self.trainer.num_val_batches[0]))

    def configure_optimizers(self):
        """Plain descent."""
        return torch.optim.SGD(self.parameters(), lr=0.05)


loader = DataLoader(TensorDataset(features, targets), batch_size=4)
model = Model()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices="auto" if "get_ipython" in globals() else 2,
    max_epochs=1,
    accumulate_grad_batches=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader, loader)
weights = [weight.flatten().tolist() for weight in model.parameters()]
