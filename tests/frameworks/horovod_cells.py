"""Cells with ``import horovod.torch as hvd``: for the stand-in in ``make test``, for Horovod in ``make horovod``."""

from __future__ import annotations

import ast

PATIENCE = 120
STAND_IN = "from jupyter_dtrain.frameworks.horovod import install_shim\ninstall_shim(replace=True)\n"
"""Comes before :data:`BEGIN` where a test means the stand-in, even if Horovod is installed."""
BEGIN = """
import os
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import horovod.torch as hvd

hvd.init()
rank = hvd.rank()

def fresh():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))

def train(net, optimizer, steps, fails_at=None, passes=1):
    generator = torch.Generator().manual_seed(rank + 1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            x = torch.randn(16, 10, generator=generator)
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean() / passes
            if fails_at == step and rank == 1:
                raise RuntimeError("one of them")
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

def distributed(net, **options):
    return hvd.DistributedOptimizer(sgd(net), named_parameters=net.named_parameters(), **options)

def apart(one, other):
    return max(float((a - b).abs().max()) for a, b in zip(one.parameters(), other.parameters(), strict=True))
"""

CALLS = {
    "hvd.allreduce(torch.tensor([1.0, 2.0]) * (rank + 1)).tolist()": [[1.5, 3.0]] * 2,
    "hvd.allreduce(torch.tensor([1, 2]) * (rank + 1)).tolist()": [[1, 3]] * 2,
    "hvd.allreduce(torch.tensor([3.0]) * rank, op=hvd.Max, postscale_factor=2.0).tolist()": [[6.0]] * 2,
    "hvd.allreduce(torch.ones(2) * rank, compression=hvd.Compression.fp16).tolist()": [[0.5, 0.5]] * 2,
    "[t.tolist() for t in hvd.grouped_allreduce([torch.ones(1), torch.ones(2)], op=hvd.Sum)]": [[[2.0], [2.0, 2.0]]]
    * 2,
    "hvd.synchronize(hvd.allreduce_async_(torch.ones(1) * rank, average=False)).tolist()": [[1.0]] * 2,
    "in_place(hvd.allreduce_, torch.ones(2), op=hvd.Sum)": [(True, [2.0, 2.0])] * 2,
    "in_place(hvd.broadcast_, torch.tensor([rank, 5]), 1)": [(True, [1, 5])] * 2,
    "[t.tolist() for t in hvd.synchronize(hvd.grouped_allreduce_async_([torch.ones(2), torch.ones(1)], op=hvd.Sum))]": [
        [[2.0, 2.0], [2.0]]
    ]
    * 2,
    "hvd.allgather(torch.full((rank + 1, 2), rank)).tolist()": [[[0, 0], [1, 1], [1, 1]]] * 2,
    "hvd.broadcast(torch.tensor([rank]), 1).tolist()": [[1]] * 2,
    "hvd.alltoall(torch.arange(4) + 10 * rank).tolist()": [[0, 1, 10, 11], [2, 3, 12, 13]],
    "[t.tolist() for t in hvd.alltoall(torch.arange(3) + 10 * rank, splits=torch.IntTensor([1, 2]))]": [
        [[0, 10], [1, 1]],
        [[1, 2, 11, 12], [2, 2]],
    ],
    "hvd.alltoall(torch.arange(4), splits=[1, 1])[0].tolist()": [[0, 0], [1, 1]],
    "[t.tolist() for t in hvd.synchronize(hvd.alltoall_async(torch.arange(4)))]": [
        [[0, 1, 0, 1], [2, 2]],
        [[2, 3, 2, 3], [2, 2]],
    ],
    "hvd.reducescatter(torch.arange(3.0) * (rank + 1), op=hvd.Sum).tolist()": [[0.0, 3.0], [6.0]],
    "hvd.reducescatter(torch.arange(3.0) * (rank + 1), prescale_factor=4.0).tolist()": [[0.0, 6.0], [12.0]],
    "twice(hvd.allreduce_async(torch.ones(1)))": [([1.0], None)] * 2,
    "type(hvd.synchronize(hvd.grouped_allreduce_async([torch.ones(1)]))).__name__": ["tuple"] * 2,
    "hvd.broadcast_object({'rank': rank}, 1)": [{"rank": 1}] * 2,
    "hvd.broadcast_object(lambda: rank, 1)()": [1] * 2,
    "hvd.allgather_object(rank)": [[0, 1]] * 2,
    "hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()": [
        (0, 2, 0, 2, 0, 1),
        (1, 2, 1, 2, 0, 1),
    ],
    "gradient(lambda x: hvd.allreduce(x * (rank + 1), op=hvd.Sum))": [[2.0, 2.0], [4.0, 4.0]],
    "gradient(lambda x: hvd.grouped_allreduce([x, x * 3], op=hvd.Sum)[rank])": [[4.0, 4.0]] * 2,
    "gradient(lambda x: hvd.allgather(x).square())": [[2.0, 2.0]] * 2,
    "gradient(lambda x: hvd.broadcast(x, 1))": [[0.0, 0.0], [1.0, 1.0]],
    "gradient(lambda x: hvd.alltoall(x) * (rank + 1))": [[1.0, 2.0]] * 2,
    "gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum) * (rank + 1))": [[2.0, 4.0]] * 2,
    "gradient(lambda x: hvd.reducescatter(x, prescale_factor=4.0) * (rank + 1))": [[4.0, 8.0]] * 2,
}
"""The values that each rank gets. Their gradients, by ``horovod/torch/mpi_ops.py``: ``HorovodAllgather.backward`` and
``HorovodBroadcast.backward`` divide by the ranks, ``HorovodReducescatter.backward`` multiplies those of a sum."""
GRADIENT = """
def gradient(function):
    x = torch.ones(2, requires_grad=True)
    (function(x) * 1.0).sum().backward()  # Horovod takes contiguous tensors only
    return x.grad.tolist()

def twice(handle):
    return hvd.synchronize(handle).tolist(), hvd.synchronize(handle)

def in_place(function, tensor, *args, **kwargs):
    result = function(tensor, *args, **kwargs)
    return result is tensor, tensor.tolist()
"""


def every_call():
    """A cell whose value is the list of the values of :data:`CALLS`."""
    return f"{GRADIENT}\n[{', '.join(f'({call})' for call in CALLS)}]"


def play(session, code, **options):
    """Run a cell; the run, and the value of its last expression by rank."""
    run = session.run(code, view=None, timeout=PATIENCE, **options)
    return run, {rank: ast.literal_eval(result.data["text/plain"]) for rank, result in run.results.items()}
