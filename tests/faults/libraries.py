"""Cells in which ranks train with TensorFlow and with each library on PyTorch; one rank may raise in the middle.

As in :mod:`.cells`, all ranks run ``meet()``; its value is the number of ranks whose weights are alike in the end.
``meet(fails=True)`` divides by zero at the third batch.
"""

from __future__ import annotations

_BEGIN = """
import logging, os, tempfile, warnings
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))

def fresh():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

def step(net, batch, index, fails):
    if fails and index == 2:
        1 / 0
    return (net(batch[0]) - batch[1]).square().mean()

def alike(parameters):
    mine = torch.cat([one.detach().flatten() for one in parameters])
    all_of_them = [torch.empty_like(mine) for _ in range(last + 1)]
    dist.all_gather(all_of_them, mine)
    return float(sum(torch.equal(mine, one) for one in all_of_them))
"""

_LIGHTNING = """
import lightning
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")

class Module(lightning.LightningModule):
    def __init__(self, fails):
        super().__init__()
        self.layers, self.fails = fresh(), fails

    def training_step(self, batch, index):
        return step(self.layers, batch, index, self.fails)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

def meet(fails=False):
    module = Module(fails)
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, **dict.fromkeys(quiet, False))
    trainer.fit(module, DataLoader(data, batch_size=4))
    return alike(module.parameters())
"""

_ACCELERATE = """
from accelerate import Accelerator

def meet(fails=False):
    accelerator, net = Accelerator(), fresh()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    wrapped, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(data, batch_size=4))
    for index, batch in enumerate(loader):
        accelerator.backward(step(wrapped, batch, index, fails))
        optimizer.step()
        optimizer.zero_grad()
    return alike(net.parameters())
"""

_TRANSFORMERS = """
from transformers import Trainer, TrainingArguments

class Model(nn.Module):
    def __init__(self, fails):
        super().__init__()
        self.layers, self.fails, self.index = fresh(), fails, -1

    def forward(self, x, labels=None):
        self.index += 1
        return {"loss": step(self.layers, (x, labels), self.index, self.fails)}

def meet(fails=False):
    model, pairs = Model(fails), [{"x": x, "labels": y} for x, y in data]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=1, per_device_train_batch_size=4, save_strategy="no", report_to=[],
            logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, ddp_find_unused_parameters=False,
        )
        Trainer(model, arguments, train_dataset=pairs).train()
    return alike(model.parameters())
"""

_DEEPSPEED = """
os.environ["CXX"] = "no-such-compiler"
import deepspeed

def meet(fails=False):
    net = fresh()
    config = {{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {{"stage": {stage}}}}}
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=torch.optim.AdamW(net.parameters(), lr=0.05), config=config
    )
    for index, batch in enumerate(DataLoader(data, batch_size=4)):
        engine.backward(step(engine, batch, index, fails))
        engine.step()
    with deepspeed.zero.GatheredParameters(list(net.parameters())):
        return alike(net.parameters())
"""

_FSDP2 = """
from torch.distributed.fsdp import fully_shard

def meet(fails=False):
    dist.is_initialized() or dist.init_process_group()
    net = fresh()
    for layer in net:
        if list(layer.parameters()):
            fully_shard(layer)
    fully_shard(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for index, batch in enumerate(DataLoader(data, batch_size=4)):
        step(net, batch, index, fails).backward()
        optimizer.step()
        optimizer.zero_grad()
    return alike([one.full_tensor() for one in net.parameters()])
"""

_STAND_IN = """
from jupyter_dtrain.frameworks.horovod import install_shim
install_shim(replace=True)
"""

_HOROVOD = """
import horovod.torch as hvd

def meet(fails=False):
    hvd.init()
    net = fresh()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.05), net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    for index, batch in enumerate(DataLoader(data, batch_size=4)):
        optimizer.zero_grad()
        step(net, batch, index, fails).backward()
        optimizer.step()
    return alike(net.parameters())
"""

_JAX = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def meet(fails=False):
    jax.distributed.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("ranks",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, weights = NamedSharding(mesh, P("ranks")), jnp.zeros(4)
    descend = jax.jit(jax.grad(lambda weights, x, y: jnp.mean((x @ weights - y) ** 2)))
    for index in range(4):
        if fails and index == 2:
            1 / 0
        mine = numpy.random.default_rng(index + 10 * rank).random((4, 5), dtype="float32")
        spread = jax.make_array_from_process_local_data(rows, mine)
        slope = descend(weights, spread[:, :4], spread[:, 4])
        weights = jnp.asarray(weights - 0.05 * numpy.asarray(slope))
    alike = MPI.COMM_WORLD.allgather(numpy.asarray(weights).tobytes())
    return float(sum(one == alike[rank] for one in alike))
"""

_TENSORFLOW = """
import tensorflow as tf
try:
    strategy
except NameError:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf.Variable([1.0, 2.0])

@tf.function
def tensorflow_step():
    def replica():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((weights - float(rank)) ** 2)
        gradient = tape.gradient(loss, weights)
        weights.assign_sub(0.1 * tf.distribute.get_replica_context().all_reduce("SUM", gradient))
    strategy.run(replica)

def meet(fails=False):
    for index in range(4):
        if fails and index == 2:
            1 / 0
        tensorflow_step()
    mine = strategy.run(lambda: tf.identity(weights))
    everything = strategy.gather(tf.reshape(mine, [1, 2]), axis=0)
    return float(sum(bool(tf.reduce_all(row == everything[0])) for row in everything))
"""

MEET = {
    "tensorflow": _TENSORFLOW,
    "lightning": _BEGIN + _LIGHTNING,
    "accelerate": _BEGIN + _ACCELERATE,
    "transformers": _BEGIN + _TRANSFORMERS,
    "deepspeed": _BEGIN + _DEEPSPEED.format(stage=2),
    "deepspeed-zero3": _BEGIN + _DEEPSPEED.format(stage=3),
    "fsdp2": _BEGIN + _FSDP2,
    "horovod": _BEGIN + _HOROVOD,
    "horovod-stand-in": _BEGIN + _STAND_IN + _HOROVOD,
    "jax": _JAX,
}
NEEDS = {name: name.partition("-")[0] for name in MEET} | {"fsdp2": "torch", "horovod-stand-in": "torch"}
"""The module that must be installed."""

CALL = dict.fromkeys(MEET, "backward") | {
    "deepspeed": "all_reduce",
    "deepspeed-zero3": "reduce_scatter_tensor",
    "fsdp2": "forward",
    "horovod": "step",
    "horovod-stand-in": "step",
    "jax": "descend",
    "tensorflow": "tensorflow_step",
}
"""The call in which ranks wait there."""
