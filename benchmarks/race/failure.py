"""A rank fails while the other waits for it: seconds until a next cell runs with the state of before, or never.

The user does what the tool's documentation says and no more: waits a little, presses Stop, has the rank replaced. A
cell is usable when it ends, its all-reduce is right, and the variable of the rank that did not fail is still there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .players import DidNotEnd, Player
from .result import Entry, Row
from .speed import LAUNCHERS, LOST, NOTEBOOKS
from .tools import STATELESS, TOOLS, US, not_installed

DEADLINE = 20.0
"""Seconds after which it counts as never."""
PATIENCE = 4.0
"""Seconds after which the user presses Stop; longer than our ranks need to be released by themselves."""
ROUNDS = 3
"""Of ours, which are quick; a peer that never arrives is asked once."""

SET_UP = """import os, signal, torch, torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group("gloo")
r, W = dist.get_rank(), dist.get_world_size()"""
STATE = "x = 40 + r"
BREAKS = {
    "raise": "raise ValueError('broken')",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSTOP": "os.kill(os.getpid(), signal.SIGSTOP)",
}
BROKEN = """t = torch.ones(1)
if r == 1:
    {breaks}
dist.all_reduce(t)"""
USABLE = """t = torch.ones(1) * (r + 1)
dist.all_reduce(t)
print(f"usable {r} {t.item()} {x if r == 0 else ''}")"""


def ready(name: str, ranks: int, first: Callable[[Player], None] = lambda _: None) -> Player:
    """A player that is not closed yet, whose ranks have a process group and a state; ``first`` comes before these."""
    player = Player(name, ranks).__enter__()
    try:
        player.prepare()
        player.start()
        if name == "nbdistributed":
            time.sleep(LOST)
        player.cell("pass", 75)
        first(player)
        player.variables()
        # nbdistributed makes the group itself.
        player.cell(SET_UP)
        player.cell(STATE)
    except BaseException:
        player.__exit__()
        raise
    return player


def failure() -> list[Row]:
    """Ours alone and several times; then the peers side by side, since they mostly wait."""
    rows = []
    for kind in BREAKS:
        row = Row(f"failure-{kind}", f"one rank of 2: {kind}; to a next cell on all ranks, with the old state", "s")
        row.entries |= {name: Entry(never=STATELESS) for name in LAUNCHERS}
        ours = [_seconds(US, kind) for _ in range(ROUNDS)]
        values = [seconds for seconds in ours if isinstance(seconds, float)]
        problems = [problem for problem in ours if isinstance(problem, str)]
        row.entries[US] = Entry(values, never=problems[0] if problems else "")
        row.note = f"Never: not within {DEADLINE:g} s. Stop is pressed after {PATIENCE:g} s."
        rows.append(row)
    peers = [name for name in NOTEBOOKS if name != US and name not in not_installed()]
    with ThreadPoolExecutor(len(peers) or 1) as pool:
        asked = [
            (row, name, pool.submit(_seconds, name, kind))
            for row, kind in zip(rows, BREAKS, strict=True)
            for name in peers
        ]
        for row, name, answer in asked:
            found = answer.result()
            row.entries[name] = Entry([found]) if isinstance(found, float) else Entry(never=found)
    return rows


def _seconds(name: str, kind: str) -> float | str:
    """Seconds, or why it never arrived."""
    try:
        player = ready(name, 2)
    except Exception as problem:  # noqa: BLE001 — the others go on
        return f"it did not get so far: {' '.join(str(problem).split())[:150]}"
    try:
        began = time.monotonic()
        _play(player, kind, lambda: DEADLINE - (time.monotonic() - began))
        return time.monotonic() - began
    except Exception as problem:  # noqa: BLE001 — the others go on
        return " ".join(str(problem).split())[:200]
    finally:
        player.__exit__()


def _play(player: Player, kind: str, left: Callable[[], float]) -> None:
    broken = player.send(BROKEN.format(breaks=BREAKS[kind]))
    if not broken.wait(PATIENCE):
        player.interrupt()
        broken.wait(min(left(), 12))
    if not broken.ended:
        raise DidNotEnd("the cell does not end, not after Stop either")
    if kind != "raise":
        if not player.replace(dead=kind == "SIGKILL"):
            raise DidNotEnd(f"it replaces no rank: {WORDS[player.name]}")
        _quick(player, SET_UP, left)
    shown = _quick(player, USABLE, left)
    if "usable 0 3.0 40" not in shown or "usable 1 3.0" not in shown:
        raise DidNotEnd(f"the next cell is not right: it says {shown[:120]!r}")


WORDS = {
    "ipyparallel": "its cluster has no way to restart one engine",
    "jupyter-distributed": "a rank that dies has the whole group restarted, which loses the state of all",
    "nbdistributed": "its ranks are only all started anew, which loses the state of all",
}


def _quick(player: Player, code: str, left: Callable[[], float]) -> str:
    sent = player.send(code)
    if not sent.wait(max(0.1, left())):
        raise DidNotEnd(f"the next cell did not end within {DEADLINE:g} s")
    if sent.failed:
        raise DidNotEnd(f"the next cell failed: {sent.text[:150]}")
    return sent.text


assert set(WORDS) | {US} == {name for name, tool in TOOLS.items() if tool.notebook}
