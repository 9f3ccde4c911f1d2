"""Accumulation over two batches with Transformers' Trainer; leaves ``losses`` of this rank and ``weights``."""

import tempfile

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

torch.manual_seed(0)
data = [{"features": torch.randn(4), "labels": torch.randn(1)} for _ in range(64)]
losses = []


class Model(nn.Module):
    """Says its loss, as Trainer asks for."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, features, labels=None):
        """The loss with the outputs."""
        outputs = self.layers(features)
        loss = (outputs - labels).square().mean()
        if self.training:
            losses.append(loss.item())
        return {"loss": loss, "logits": outputs}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        num_train_epochs=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=0.05,
        logging_steps=2,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        seed=0,
    )
    trainer = Trainer(Model(), arguments, train_dataset=data, eval_dataset=data)
    trainer.train()
weights = [weight.flatten().tolist() for weight in trainer.model.parameters()]
