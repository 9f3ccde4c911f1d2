"""Fabric as ``fabric run`` starts it, which needs no ``launch()``; leaves ``found``."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

fabric = lightning.Fabric(accelerator="cpu")
places = fabric.global_rank, fabric.world_size
fabric.seed_everything(0, verbose=False)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
model = torch.nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
for features, targets in fabric.setup_dataloaders(DataLoader(data, batch_size=4)):
    optimizer.zero_grad()
    loss = (model(features) - targets).square().mean()
    fabric.backward(loss)
    optimizer.step()
found = places, fabric.all_gather(model.weight.detach().sum()).tolist(), type(fabric.strategy).__name__
print(found)
