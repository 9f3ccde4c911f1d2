"""The cost of knowing where a step's time goes: steps a second with the looks at the main thread, and without.

The same loop in the same processes takes turns with and without looks, so that nothing else differs. Turns without them
have the looking thread asleep, as in a cell with ``--no-step-time``. Beside that, what it costs that a loop can be
steered between two steps, while nobody does: the time of the calls after a step with the gate and without, in turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from .report import Measurement, summary
from .training import MODEL, SIZES, Turn, cell, interval

PROMISED = {"1 ms": 0.98, "10 ms": 0.995}
"""The share of the speed without looks that must be kept."""
SLACK = 0.01
"""How far the lower end of the interval may lie below that."""

GATE = 1.0
"""Microseconds that a step may cost for being one at which the loop can be steered."""
CALLS = 100_000
"""Steps of one turn that do nothing else."""
GATE_PAIRS = 20
"""Turns of these with the gate and without."""

TURNS = """
import functools, pathlib
import jupyter_dtrain
from jupyter_dtrain.rank.rank_context import rank_home
from jupyter_dtrain.rank.step_time import StepTimer
found, look = [], StepTimer._look
def first(timer, passed):
    found or found.append(timer)
    look(timer, passed)
StepTimer._look = first

def looks(on):
    if found and on:
        found[0]._over.clear()
        found[0]._wanted.set()
    elif found:
        found[0]._wanted.clear()
        found[0]._over.set()

work = rank_home().step_work
gate = work.gate
def calls(how, count):
    work.gate = None if how == "without" else gate
    call = jupyter_dtrain.step if how == "step()" else functools.partial(work._step, 1)
    began = time.perf_counter()
    for _ in range(count):
        call()
    found = (time.perf_counter() - began) / count
    work.gate = gate
    return found

folder = pathlib.Path({folder!r})
models = {{name: make(width, together) for name, (width, _, _, _, together) in {sizes!r}.items()}}
rank = dist.get_rank()
go, done = open(folder / f"go-{{rank}}"), open(folder / f"done-{{rank}}", "w")
while (asked := go.readline().strip()) != "end":
    how, steps, name = asked.split(" ", 2) if " " in asked else ("on", 1, next(iter(models)))
    if name == "calls":
        print(calls(how, int(steps)), file=done, flush=True)
        continue
    looks(how == "on")
    print(train(models[name], int(steps)), file=done, flush=True)
"""


def measure(names: Sequence[str] = tuple(SIZES), pairs: int | None = None) -> Measurement:
    """Steps of these lengths. ``pairs``: the turns of each, by default as many as tell a hundredth."""
    found = Measurement()

    def code(folder: Path) -> str:
        return MODEL + TURNS.format(folder=str(folder), sizes={name: tuple(size) for name, size in SIZES.items()})

    with cell(code) as turn:
        _measure_gate(found, turn, GATE_PAIRS if pairs is None else pairs)
        for name in names:
            size = SIZES[name]
            asked = {how: f"{how} {size.steps} {name}" for how in ("on", "off")}
            for words in asked.values():
                turn(words)
            said: dict[str, list[float]] = {how: [] for how in asked}
            for index in range(pairs or 2 * size.pairs):
                for how in asked if index % 2 else reversed(asked):
                    said[how].append(turn(asked[how]))
            ratios = sorted(on / off for on, off in zip(said["on"], said["off"], strict=True))
            low, high = interval(ratios)
            found.figures |= {
                f"{name} a step: with looks / without": summary(ratios, digits=4),
                f"{name} a step: interval of the median, 95 %": [round(low, 4), round(high, 4)],
            }
            if name in PROMISED:
                share = PROMISED[name]
                found.promise_at_least(f"{name} a step: with looks / without", statistics.median(ratios), share)
                found.promise_at_least(f"{name} a step: the same, lower end of the interval", low, share - SLACK)
    return found


def _measure_gate(found: Measurement, turn: Turn, pairs: int) -> None:
    """What the gate adds to the calls after an optimizer's step, and what ``jupyter_dtrain.step()`` takes."""
    said: dict[str, list[float]] = {how: [] for how in ("with", "without", "step()")}
    for index in range(pairs):
        for how in said if index % 2 else reversed(said):
            said[how].append(turn(f"{how} {CALLS} calls"))
    adds = [(with_it - without) for with_it, without in zip(said["with"], said["without"], strict=True)]
    micro = 1e6
    found.figures |= {
        "after a step, with the gate, us": summary(said["with"], micro, digits=3),
        "after a step, without it, us": summary(said["without"], micro, digits=3),
        "the gate adds, us": summary(adds, micro, digits=3),
        "jupyter_dtrain.step(), us": summary(said["step()"], micro, digits=3),
    }
    found.promise("the gate adds to a step, us", micro * statistics.median(adds), GATE)
    found.promise("jupyter_dtrain.step(), us", micro * statistics.median(said["step()"]), GATE)
