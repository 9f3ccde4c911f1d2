"""Accumulation over two batches with Accelerate; leaves ``losses`` of this rank and ``weights``."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
features, targets = torch.randn(64, 4), torch.randn(64, 1)
accelerator = Accelerator(gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(features, targets), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for batch, target in loader:
    with accelerator.accumulate(model):
        loss = (model(batch) - target).square().mean() / 2
        losses.append(loss.item())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
weights = [weight.flatten().tolist() for weight in accelerator.unwrap_model(model).parameters()]
