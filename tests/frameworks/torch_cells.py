"""Cells that set PyTorch up."""

from __future__ import annotations

SET_UP_DDP = """
import os, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
rank = dist.get_rank()
torch.manual_seed(0)
data = torch.randn(16, 8)[rank::3]
"""
"""Code for three ranks: a process group, and different data on each."""
