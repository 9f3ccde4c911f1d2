"""The cost of watching a training loop: steps a second in a cell with everything on, compared with torchrun.

Two ranks train one model with DDP: in a cell, through a kernel, with losses, resources, the store and the cell's view;
and in two processes of torchrun that run the same code. Both are up all the time and take short turns, so that what
else the machine does falls on both alike; the cell goes on through all of its turns, with its panel and its log.
"""

from __future__ import annotations

import contextlib
import os
import select
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from .notebook import kernel
from .report import Measurement, summary


class Size(NamedTuple):
    """Steps of one length, and what is asked of them."""

    width: int
    """Of the model's layers."""
    steps: int
    """Steps in one turn, about 0.3 s: it has part in what is done once in a quarter of a second."""
    pairs: int
    """Turns of each."""
    share: float
    """The share of torchrun's speed that must be kept."""
    together: bool = True
    """Whether the ranks train one model with DDP; with gloo, its shortest step takes about 1 ms."""


SIZES = {
    "0.3 ms": Size(64, 1000, 90, 0.95, together=False),
    "1 ms": Size(64, 200, 150, 0.98),
    "10 ms": Size(820, 25, 80, 0.995),
    "100 ms": Size(2600, 3, 50, 0.995),
}
"""How the processes of a turn fall on few processors, and what the host of a virtual machine does meanwhile, make more
of a difference to its speed than anything else (by a tenth and more): so turns are many, and too short for it to
change.
"""

SLACK = 0.01
"""How far the lower end of the median's interval may lie below the share."""

MOST = 1800
"""Seconds that all turns of a cell may take."""

MODEL = """
import time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.set_num_threads(1)

def make(width, together):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    model = DistributedDataParallel(model) if together else model
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

TURNS = """
import pathlib
folder = pathlib.Path({folder!r})
models = {{name: make(width, together) for name, (width, _, _, _, together) in {sizes!r}.items()}}
rank = dist.get_rank()
go, done = open(folder / f"go-{{rank}}"), open(folder / f"done-{{rank}}", "w")
while (asked := go.readline().strip()) != "end":
    steps, name = asked.split(" ", 2)[1:] if " " in asked else (1, next(iter(models)))
    print(train(models[name], int(steps)), file=done, flush=True)
"""


def measure(names: Sequence[str] = tuple(SIZES), pairs: int | None = None) -> Measurement:
    """These sizes, in turns. ``pairs``: the turns of each, by default as many as tell a hundredth."""
    found = Measurement()

    def code(folder: Path) -> str:
        return MODEL + TURNS.format(folder=str(folder), sizes={name: tuple(size) for name, size in SIZES.items()})

    with torchrun(code) as their_turn, cell(code) as our_turn:
        for name in names:
            size = SIZES[name]
            asked = f"go {size.steps} {name}"
            for turn in (their_turn, our_turn):
                turn(asked)
            low = compare(found, name, *alternate(our_turn, their_turn, pairs or size.pairs, asked), size.share)
            found.promise_at_least(f"{name} a step: the same, lower end of the interval", low, size.share - SLACK)
    return found


def compare(found: Measurement, name: str, ours: list[float], theirs: list[float], share: float) -> float:
    """Add the turns of both to ``found``; ours are to make at least ``share`` of the steps of theirs.

    Returns the lower end of the interval in which the median of their ratios lies.
    """
    ratios = sorted(mine / other for mine, other in zip(ours, theirs, strict=True))
    low, high = interval(ratios)
    found.figures |= {
        f"{name} a step: cell, steps/s": summary(ours),
        f"{name} a step: torchrun, steps/s": summary(theirs),
        f"{name} a step: ratio of each pair": summary(ratios, digits=4),
        f"{name} a step: interval of the median, 95 %": [round(low, 4), round(high, 4)],
    }
    found.promise_at_least(f"{name} a step: steps/s in a cell / under torchrun", statistics.median(ratios), share)
    return low


def alternate(ours: Turn, theirs: Turn, pairs: int, asked: str = "go") -> tuple[list[float], list[float]]:
    """What both say when they take turns; who begins changes with each pair."""
    said = rounds({"ours": ours, "theirs": theirs}, pairs, asked)
    return said["ours"], said["theirs"]


def rounds(turns: Mapping[str, Turn], count: int, asked: str = "go") -> dict[str, list[float]]:
    """What all say when they take turns; the order is turned round with each round."""
    said: dict[str, list[float]] = {name: [] for name in turns}
    for index in range(count):
        for name in turns if index % 2 else reversed(list(turns)):
            said[name].append(turns[name](asked))
    return said


@contextlib.contextmanager
def cell(code: Callable[[Path], str], ranks: int = 2, options: str = "") -> Iterator[Turn]:
    """A cell with ``options`` and ``code(folder)`` that waits for its turns; the pipes are in the folder."""
    with tempfile.TemporaryDirectory() as folder, kernel() as notebook:
        turn = Turn(Path(folder), ranks)
        notebook.execute(f"%load_ext jupyter_dtrain\n%distributed start -n {ranks} --env OMP_NUM_THREADS=1")
        wait = (f"%%distributed {options}\n{code(Path(folder))}", MOST)
        running = threading.Thread(target=notebook.execute, args=wait, daemon=True)
        running.start()
        try:
            turn()
            yield turn
        finally:
            turn.end()
            running.join(30)
            notebook.execute("%distributed stop")


@contextlib.contextmanager
def torchrun(
    code: Callable[[Path], str], ranks: int = 2, launcher: Sequence[str] = ("torch.distributed.run", "--standalone")
) -> Iterator[Turn]:
    """Processes with the same code that wait for their turns without taking anything of the machine.

    ``launcher``: a module that takes torchrun's ``--nproc-per-node``, and its first arguments.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(code(Path(folder)))
        turn = Turn(Path(folder), ranks)
        process = subprocess.Popen(
            [sys.executable, "-m", *launcher, "--nproc-per-node", str(ranks), str(script)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            turn()
            yield turn
        finally:
            # The workers are in sessions of their own.
            family = psutil.Process(process.pid).children(recursive=True)
            for member in (*family, process):
                with contextlib.suppress(psutil.Error):
                    member.kill()
            process.wait(30)


class Turn:
    """Let the ranks train once; their steps a second. While they wait they sleep in a pipe."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._go = [_Pipe(folder / f"go-{rank}") for rank in range(ranks)]
        self._done = [_Pipe(folder / f"done-{rank}") for rank in range(ranks)]

    def __call__(self, asked: str = "go") -> float:
        """``asked``: the word that the code gets; the smallest number that comes back."""
        for pipe in self._go:
            os.write(pipe.fd, f"{asked}\n".encode())
        return min(float(pipe.line()) for pipe in self._done)

    def end(self) -> None:
        """There will be no more turns."""
        for pipe in self._go:
            os.write(pipe.fd, b"end\n")


class _Pipe:
    """A named pipe, held open on both sides, so that nobody has to wait for the other to open it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDWR)

    def line(self, timeout: float = 120.0) -> str:
        """The line that comes. Raises :class:`RuntimeError` when nothing comes within ``timeout`` seconds."""
        if not select.select([self.fd], [], [], timeout)[0]:
            raise RuntimeError("the ranks have ended or take too long")
        return os.read(self.fd, 4096).decode()


def interval(ordered: list[float]) -> tuple[float, float]:
    """The median's interval, from the order of the values alone (binomial): at least 95 %, for 6 values or more."""
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
