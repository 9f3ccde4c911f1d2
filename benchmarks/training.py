"""What it costs a training loop to be watched: steps a second in a cell with everything on, against torchrun.

Two ranks train one model with DDP: in a cell, through a kernel, with losses, resources, the store and the cell's view;
and in two processes of torchrun that run the same code. Both worlds are up all the time and take turns, so that what
else the machine does falls on both alike.
"""

from __future__ import annotations

import contextlib
import os
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from .notebook import kernel
from .report import Measurement, summary

SIZES = {"1 ms": (64, 2000, 40, 0.97), "10 ms": (820, 300, 40, 0.99)}
"""Width of the model, steps in one turn, turns of each, the share of torchrun's speed that must be kept.

How the processes of a turn fall on few processors makes more of a difference to its speed than anything else, and
stays for the turn (by a tenth and more): so there are many.
"""

MODEL = """
import time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.set_num_threads(1)

def make(width):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3), torch.randn(32, width)

def train(made, steps):
    model, optimizer, data = made
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
    dist.barrier()
    return steps / (time.perf_counter() - began)
"""

TORCHRUN = """
import sys, pathlib
folder, width, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rank = dist.get_rank()
made = make(width)
train(made, steps // 10)
go, done = open(folder / f"go-{rank}"), open(folder / f"done-{rank}", "w")
while go.readline():
    print(train(made, steps), file=done, flush=True)
"""


def measure() -> Measurement:
    """Both sizes, in turns."""
    found = Measurement()
    for name, (width, steps, pairs, share) in SIZES.items():
        ours, theirs = _alternate(width, steps, pairs)
        ratios = sorted(mine / other for mine, other in zip(ours, theirs, strict=True))
        low, high = _interval(ratios)
        found.figures |= {
            f"{name} a step: cell, steps/s": summary(ours),
            f"{name} a step: torchrun, steps/s": summary(theirs),
            f"{name} a step: ratio of each pair": summary(ratios, digits=4),
            f"{name} a step: interval of the median, 95 %": [round(low, 4), round(high, 4)],
        }
        found.promise_at_least(f"{name} a step: steps/s in a cell / under torchrun", statistics.median(ratios), share)
    return found


def _alternate(width: int, steps: int, pairs: int) -> tuple[list[float], list[float]]:
    """Steps a second in the cell and under torchrun, pair by pair; who begins changes with each."""
    ours, theirs = [], []
    with torchrun(width, steps) as turn, kernel() as notebook:

        def cell() -> float:
            messages = notebook.execute(f"%%distributed\nspeed = train(made, {steps})\nprint(f'speed {{speed}}')")
            text = "".join(m["content"]["text"] for m in messages if m["msg_type"] == "stream")
            return float(text.split("speed ")[1].split()[0])

        notebook.execute("%load_ext jupyter_dtrain\n%distributed start -n 2")
        notebook.execute(f"%%distributed\n{MODEL}\nmade = make({width}); train(made, {steps // 10});")
        for pair in range(pairs):
            if pair % 2:
                ours.append(cell())
            theirs.append(turn())
            if not pair % 2:
                ours.append(cell())
        notebook.execute("%distributed stop")
    return ours, theirs


@contextlib.contextmanager
def torchrun(width: int, steps: int) -> Iterator[_Turn]:
    """Two processes that wait for their turn without taking anything of the machine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(MODEL + TORCHRUN)
        turn = _Turn(folder)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
        process = subprocess.Popen(
            [*command, name, str(width), str(steps)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield turn
        finally:
            # The workers are in sessions of their own.
            family = psutil.Process(process.pid).children(recursive=True)
            for member in (*family, process):
                with contextlib.suppress(psutil.Error):
                    member.kill()
            process.wait(30)


class _Turn:
    """Let torchrun's ranks train once; their steps a second. While they wait they sleep in a pipe."""

    def __init__(self, folder: Path) -> None:
        self._go = [_Pipe(folder / f"go-{rank}") for rank in range(2)]
        self._done = [_Pipe(folder / f"done-{rank}") for rank in range(2)]

    def __call__(self) -> float:
        for pipe in self._go:
            os.write(pipe.fd, b"\n")
        return min(float(pipe.line()) for pipe in self._done)


class _Pipe:
    """A named pipe, held open on both sides, so that nobody has to wait for the other to open it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDWR)

    def line(self, timeout: float = 120.0) -> str:
        """What comes, which is one line. Raises :class:`RuntimeError` when nothing comes within ``timeout`` seconds."""
        if not select.select([self.fd], [], [], timeout)[0]:
            raise RuntimeError("torchrun's ranks have ended or take too long")
        return os.read(self.fd, 4096).decode()


def _interval(ordered: list[float]) -> tuple[float, float]:
    """Of the median, by the order of the values alone (binomial): at least 95 %, for 6 values or more."""
    size = len(ordered)
    below, rank = 0.0, 0
    chances = [_binomial(size, hits) for hits in range(size + 1)]
    while below + chances[rank] <= 0.025:
        below += chances[rank]
        rank += 1
    return ordered[max(0, rank - 1)], ordered[min(size - 1, size - rank)]


def _binomial(size: int, hits: int) -> float:
    chance = 0.5**size
    for index in range(hits):
        chance *= (size - index) / (index + 1)
    return chance
