"""The cost of watching a training loop on a CUDA device, compared with torchrun: time, device memory and copies.

One rank trains in a cell, through a kernel, with losses, resources, the store and the cell's view; and one process of
torchrun runs the same code. Both share a device, are up all the time and take short turns, as in :mod:`.training`. Each
turn is told what a step has to compute. It ends when the device has done its work, so a step's time is the device's.
Then each says what it holds on the device, and what a profiler has seen of copies to the device in some steps: the
difference is ours.

One rank is enough, and needs no second device: what is watched is each rank's own loop.
"""

from __future__ import annotations

from pathlib import Path

from .report import Measurement
from .training import Turn, alternate, cell, compare, torchrun

SIZES = {"1 ms": (10, 60, 40, 0.97), "10 ms": (100, 12, 24, 0.99), "100 ms": (1000, 3, 10, 0.99)}
"""Units of work in one step, steps in one turn, turns of each, the share of torchrun's speed that must be kept.

Torchrun's process measures a unit, once for both: a step takes about what its name says on whichever device there is.
"""

CODE = """
import json, os, pathlib, time
import torch
from torch import nn

torch.cuda.set_device(0)
device = torch.device("cuda", 0)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
data = torch.randn(64, 256, device=device)
work = torch.randn(1024, 1024, device=device) / 32

def train(products, steps):
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(data) - data).square().mean()
        for _ in range(products):
            work @ work
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    return steps / (time.perf_counter() - began)

def copies(steps):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        train(1, steps)
    return sum(event.name.startswith("Memcpy HtoD") for event in profiler.events())
"""

TURNS = """
def unit(count=1000):
    train(count, 1)
    return max(1, round(1e-4 * count * train(count, 1)))

folder = pathlib.Path({folder!r})
go, done = open(folder / "go-0"), open(folder / "done-0", "w")
while True:
    asked = go.readline().split()
    if asked[0] == "end":
        break
    if asked[0] == "go":
        said = train(*map(int, asked[1:])) if asked[1:] else unit()
    elif asked[0] == "held":
        time.sleep(2.5)  # the newest losses are read once a second
        torch.cuda.synchronize()
        said = torch.cuda.memory_allocated()
    else:
        said = copies(50)
    print(said, file=done, flush=True)
"""


def measure() -> Measurement:
    """All sizes, in turns; then memory and copies."""
    found = Measurement()

    def code(folder: Path) -> str:
        return CODE + TURNS.format(folder=str(folder))

    with torchrun(code, ranks=1) as their_turn, cell(code, ranks=1) as our_turn:
        unit = int(their_turn())
        for name, (units, steps, pairs, share) in SIZES.items():
            compare(found, name, *alternate(our_turn, their_turn, pairs, f"go {units * unit} {steps}"), share)
        both: list[Turn] = [our_turn, their_turn]
        held, copied = ([int(turn(asked)) for turn in both] for asked in ("held", "copies"))
    found.figures |= {"bytes on the device: cell, torchrun": held, "copies to the device in 50 steps": copied}
    found.promise("bytes of device memory that we hold", held[0] - held[1], 0)
    found.promise("copies to the device, a step, that are ours", (copied[0] - copied[1]) / 50, 0)
    return found
