"""How quick the tools are: a start, a cell, a world that does nothing, and how the first two grow with the ranks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import psutil

from .players import DidNotEnd, Player, carrying, program
from .result import Entry, Row, exponent
from .tools import LIMITS, TOOLS, not_installed

NOTEBOOKS = [name for name, tool in TOOLS.items() if tool.notebook]
LAUNCHERS = [name for name, tool in TOOLS.items() if tool.function]
PAUSE = 4.0
"""Seconds between what can be done before a start and the start, where it is called warm."""
SLOW = ("Ray Train", "torchrunx", "nbdistributed")
"""Tools of which one start takes ten seconds and up to a minute: they start once, at 4 ranks."""
ONLY_AT_4 = "it is measured at 4 ranks only: a start takes many seconds"
QUICK = 5.0
"""Seconds: tools that take less start :data:`STARTS` times for a row, the others once."""
STARTS = 3
LEAST = 5
"""Cells of each kind and tool, at the least."""
LOST = 5.0
"""Seconds after which nbdistributed's ranks are reached; it loses the first cell that comes straight after a start."""

MATPLOTLIB = """import matplotlib
matplotlib.use("agg")
from matplotlib.figure import Figure
from IPython.display import Image, display
import io
"""
FIGURE = """figure = Figure(figsize=(4, 3))
figure.subplots().plot(range(100))
made = io.BytesIO()
figure.savefig(made, format="png")
display(Image(made.getvalue()))"""
CELLS = {"empty": "pass", "100kB": 'print("x" * 100_000)', "figure": FIGURE}
TITLES = {"empty": "an empty cell", "100kB": "a cell whose ranks each print 100 kB", "figure": "a cell with a figure"}


def in_turns(
    contestants: dict[str, Callable[[], float]],
    seconds: float,
    most: int,
    enough: Callable[[list[float]], bool] = bool,
) -> dict[str, Entry]:
    """Values of all, one each in turn, so that what else the machine does falls on all alike.

    Every contestant has an equal share of ``seconds``: the quick get more values, up to ``most``. ``enough(values)``
    says whether one that has used up its share has enough of them. One that fails keeps the values that it has,
    and is asked no more.
    """
    share = seconds / max(1, len(contestants))
    used = dict.fromkeys(contestants, 0.0)
    entries = {name: Entry() for name in contestants}
    running = set(contestants)
    while running:
        for name in [name for name in contestants if name in running]:
            entry = entries[name]
            began = time.monotonic()
            try:
                entry.values.append(contestants[name]())
            except Exception as problem:  # noqa: BLE001 — the others go on
                running.discard(name)
                if not entry.values:
                    entry.missing = _brief(problem)
            used[name] += time.monotonic() - began
            count = len(entry.values)
            spent = used[name] >= share * (1 - 1 / (count + 1)) and enough(entry.values)
            if spent or count >= most:
                running.discard(name)
    return entries


def _brief(problem: Exception) -> str:
    words = " ".join(str(problem).split())
    return f"it failed: {words[:200] or type(problem).__name__}"


def start() -> list[Row]:
    """From the request for ranks to the first cell done."""
    rows = []
    for ranks, state in ((2, "cold"), (2, "warm"), (4, "cold"), (4, "warm"), (4, "torch"), (8, "cold"), (8, "warm")):
        contestants = {}
        left_out = {}
        for name in [*NOTEBOOKS, *LAUNCHERS, "torchrun", "mpiexec"]:
            if name in SLOW and ranks != 4:
                left_out[name] = Entry(missing=ONLY_AT_4)
            elif name in SLOW and state != "cold":
                left_out[name] = Entry(missing="see cold: it starts once, as a start takes many seconds")
            elif state == "warm" and not TOOLS[name].prepares:
                left_out[name] = Entry(missing="it has nothing to prepare: see cold")
            else:
                contestants[name] = _one_start(name, ranks, state)
        title = {
            "cold": "start to the first cell done, in a fresh kernel",
            "warm": f"start to the first cell done, {PAUSE:g} s after the tool was loaded",
            "torch": "start to the first cell done, which imports PyTorch",
        }[state]
        found = in_turns(contestants, 0, STARTS, lambda values: len(values) >= STARTS or min(values) > QUICK)
        note = (
            "jupyter-distributed's kernel is its ranks, so its figure has the start of a kernel in it, and the others' "
            f"have not. A launcher's cell is a launch. A tool that takes more than {QUICK:g} s starts once."
        )
        rows.append(Row(f"start-{ranks}-{state}", f"{title}, {ranks} ranks", "s", found | left_out, note))
    return rows


def _one_start(name: str, ranks: int, state: str) -> Callable[[], float]:
    code = "import torch" if state == "torch" else "pass"

    def run() -> float:
        if name in LIMITS:
            return program(name, ranks, f"{code}\nfrom mpi4py import MPI" if name == "mpiexec" else code)[0]
        with Player(name, ranks) as player:
            if state == "warm":
                player.prepare()
                time.sleep(PAUSE)
            began = time.perf_counter()
            if state != "warm":
                player.prepare()
            player.start()
            first = player.cell(code, 75)
            while "Timeout waiting for responses" in first.text:
                first = player.cell(code, 75)
            return time.perf_counter() - began

    return run


def cells() -> list[Row]:
    """Cells of three kinds on worlds that are all alive. Worlds of 4 ranks are first measured while they are idle."""
    rows = []
    for ranks, seconds in ((2, 7.0), (4, 10.0), (8, 11.0), (32, 13.0)):
        with contextlib.ExitStack() as alive:
            names = [name for name in NOTEBOOKS if ranks == 4 or name not in SLOW]
            players, missing = worlds(alive, names, ranks)
            slow = [name for name in NOTEBOOKS if name not in names and name not in not_installed()]
            missing |= {name: Entry(missing=ONLY_AT_4) for name in slow}
            if ranks == 4:
                rows += _idle(players, missing)
            for name, player in list(players.items()):
                try:
                    player.cell(MATPLOTLIB)
                    for code in CELLS.values():
                        player.cell(code)
                except DidNotEnd as problem:
                    missing[name] = Entry(missing=_brief(problem))
                    del players[name]
            for kind, code in CELLS.items():
                contestants = {name: _one_cell(player, code) for name, player in players.items()}
                found = in_turns(contestants, seconds, most=200, enough=lambda values: len(values) >= LEAST)
                rows.append(Row(f"cell-{kind}-{ranks}", f"{TITLES[kind]}, {ranks} ranks", "s", found | missing))
    return rows


def _one_cell(player: Player, code: str) -> Callable[[], float]:
    return lambda: player.cell(code).seconds


def worlds(alive: contextlib.ExitStack, names: Sequence[str], ranks: int) -> tuple[dict[str, Player], dict[str, Entry]]:
    """A world of each tool, and the reasons of those that have none."""
    players, missing = {}, {}
    for name in names:
        if name in not_installed():
            continue
        try:
            player = alive.enter_context(Player(name, ranks))
            player.prepare()
            player.start()
            if name == "nbdistributed":
                time.sleep(LOST)
            player.cell("pass", 75)
            players[name] = player
        except Exception as problem:  # noqa: BLE001 — the others go on
            missing[name] = Entry(missing=_brief(problem))
    return players, missing


def _idle(players: dict[str, Player], missing: dict[str, Entry]) -> list[Row]:
    """What worlds take while nothing runs, the notebooks' kernels included."""
    note = (
        f"One look over 10 s, once all worlds are up, the last of them for {PAUSE:g} s. They share libraries, whose "
        "memory counts in parts. Processes include the notebook's kernel."
    )
    rows = [
        Row("idle-processes", "an idle world of 4: processes", "", dict(missing), note),
        Row("idle-memory", "an idle world of 4: memory (PSS)", "MiB", dict(missing), note),
        Row("idle-cpu", "an idle world of 4: processor, of one core", "%", dict(missing), note),
    ]
    time.sleep(PAUSE)
    before = {name: _taken(player) for name, player in players.items()}
    time.sleep(10)
    for name, player in players.items():
        processes, memory, seconds = _taken(player)
        found = (processes, memory, (seconds - before[name][2]) / 10 * 100)
        for row, value in zip(rows, found, strict=True):
            row.entries[name] = Entry([value])
    return rows


def _taken(player: Player) -> tuple[int, float, float]:
    processes = carrying(player.mark)
    memory, seconds = 0.0, 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory += process.memory_full_info().pss / 2**20
            times = process.cpu_times()
            seconds += times.user + times.system
    return len(processes), memory, seconds


def growth(rows: Sequence[Row]) -> list[Row]:
    """How a start and an empty cell grow with the ranks, from the rows of these."""
    made = []
    for kind, title in (("start-{}-cold", "a cold start"), ("cell-empty-{}", "an empty cell")):
        found = Row(f"growth-{kind.split('-')[0]}", f"{title}: exponent of its growth with the ranks", "")
        for name in TOOLS:
            points = [
                (ranks, row.entries[name].median)
                for ranks in (2, 4, 8, 32)
                for row in rows
                if row.name == kind.format(ranks) and row.entries.get(name) and row.entries[name].values
            ]
            known = [(ranks, median) for ranks, median in points if median]
            if len(known) > 1:
                found.entries[name] = Entry([exponent([n for n, _ in known], [median for _, median in known])])
        found.note = "0: it takes as long for many ranks as for few. 1: twice the ranks take twice as long."
        made.append(found)
    return made
