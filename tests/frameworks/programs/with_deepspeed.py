"""Accumulation with DeepSpeed, ZeRO stage 2, two groups of parameters; leaves ``losses`` and ``weights``."""

import deepspeed
import torch
from torch import nn

torch.manual_seed(0)
features, targets = torch.randn(64, 4), torch.randn(64, 1)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
engine, *_ = deepspeed.initialize(
    model=net,
    optimizer=torch.optim.AdamW(
        [{"params": [net[0].weight, net[2].weight]}, {"params": [net[0].bias, net[2].bias], "weight_decay": 0.0}],
        lr=0.05,
    ),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 2},
        "steps_per_print": 1000,
    },
)
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
losses = []
for batch, target in zip(features[rank::size].split(4), targets[rank::size].split(4), strict=True):
    loss = (engine(batch) - target).square().mean()
    losses.append(loss.item())
    engine.backward(loss)
    engine.step()
weights = [weight.flatten().tolist() for weight in net.parameters()]
