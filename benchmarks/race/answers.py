"""24 small cells with one right answer each, put to every tool that keeps ranks.

They come from the failure table and from what trials from outside have met. An answer is right where all of it is
right, half where the cell ended and some of it is, and wrong otherwise.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.notebook import Sent

from .failure import ready
from .players import Player
from .result import Entry, Row
from .speed import FIGURE, MATPLOTLIB, NOTEBOOKS
from .tools import not_installed

MOST = 200.0
"""Seconds that a tool may take for all questions, its new starts included; what it does not come to is wrong."""
ENDS = 8.0
"""Seconds within which a cell must have ended."""
REDUCE = "t = torch.ones(1) * (r + 1)\ndist.all_reduce(t)\nprint(f'sum {r} {t.item()}')"
STATE = "print(f'x {x}')"


@dataclass(frozen=True)
class Question:
    """A cell on 2 ranks, whose number is ``r``, with a process group and ``x = 40 + r``."""

    name: str
    code: str
    expects: tuple[str, ...] = ()
    """Patterns that must match, each as often as it stands here; the code, which a traceback shows, matches none."""
    fails: bool = False
    """Whether the cell must end with an error, rather than well."""
    stop_after: float = 0.0
    """Seconds after which Stop is pressed; 0 for never."""
    kinds: tuple[str, ...] = ()
    """The MIME types that must be shown, each as often as it stands here."""
    then: str = STATE
    """A next cell, which must end well: nothing is lost, and nothing of the last cell is left over."""
    then_expects: tuple[str, ...] = ("x 40", "x 41")
    bare: bool = False
    """Whether it is put to ranks that have been started and nothing else."""
    rebuild: bool = False
    """Whether the ranks are of no use afterwards, by the question itself."""


LOADER = """from torch.utils.data import DataLoader
total = sum(int(batch.sum()) for batch in DataLoader(list(range(8)), num_workers=2))
print(f"loaded {r} {total}")"""
ONE = "if r == 1:\n    "
SUMS = ("sum 0 3.0", "sum 1 3.0")

QUESTIONS = (
    Question("state stays", STATE, ("x 40", "x 41")),
    Question("the last expression is shown", "1000 + r", ("1000", "1001")),
    Question("an all-reduce", REDUCE, SUMS),
    Question(
        "the variables of torchrun",
        'print("v " + " ".join(__import__("os").environ.get(n, "-") for n in ("RANK", "LOCAL_RANK", "WORLD_SIZE")))',
        ("v 0 0 2", "v 1 1 2"),
        then="",
        bare=True,
    ),
    Question("indented output", 'print(f"<{r}>\\n    four")', ("<0>", "<1>", "    four\n")),
    Question("standard error", 'import sys\nprint(f"to-err {r}", file=sys.stderr)', ("to-err 0", "to-err 1")),
    Question(
        "the output of a child process",
        'import subprocess\nsubprocess.run(["echo", f"child-{r}"])',
        ("child-0", "child-1"),
    ),
    Question("a shell line", "!echo shell-{r}", ("shell-0", "shell-1")),
    Question(
        "top-level await",
        'import asyncio\nawait asyncio.sleep(0.01)\nprint(f"awaited {r}")',
        ("awaited 0", "awaited 1"),
    ),
    Question(
        "a thread that prints",
        'import threading\nw = threading.Thread(target=lambda: print(f"thread {r}"))\nw.start()\nw.join()',
        ("thread 0", "thread 1"),
    ),
    Question(
        "10,000 lines",
        'for i in range(10_000):\n    print(f"line {i} of {r}")',
        ("line 0 of 0", "line 9999 of 0", "line 9999 of 1"),
    ),
    Question("letters beyond ASCII", 'print(f"grüße ✓ 漢 {r}")', ("grüße ✓ 漢 0", "grüße ✓ 漢 1")),
    Question(
        "HTML",
        'from IPython.display import HTML, display\ndisplay(HTML(f"<b>{r}</b>"))',
        kinds=("text/html", "text/html"),
    ),
    Question(
        "a figure of each rank",
        FIGURE.replace("range(100)", "range(9 + r)"),
        kinds=("image/png", "image/png"),
    ),
    Question(
        "a loader with workers",
        LOADER,
        ("loaded 0 28", "loaded 1 28"),
    ),
    Question("a syntax error", "x = 1 +", ("invalid syntax",), fails=True),
    Question("an error on all ranks", 'raise ValueError("cause" + "-all")', ("cause-all",), fails=True),
    Question("an error on one rank", f'{ONE}raise ValueError("cause" + "-one")', ("cause-one",), fails=True),
    Question("sys.exit on one rank", f"import sys\n{ONE}sys.exit(3)", ("SystemExit",), fails=True),
    Question(
        "input() is refused",
        'input("name? ")',
        (r"(?i)stdin ?not|not support|raw_input|keyboard|EOFError",),
        fails=True,
    ),
    Question(
        "Stop while the ranks sleep", "import time\ntime.sleep(60)", ("KeyboardInterrupt",), fails=True, stop_after=1.0
    ),
    Question(
        "an error while the other rank waits",
        f'{ONE}raise ValueError("cause" + "-wait")\ndist.all_reduce(torch.ones(1) * 100)',
        ("cause-wait",),
        fails=True,
        then=REDUCE,
        then_expects=SUMS,
    ),
    Question(
        "Stop while one rank waits for the other",
        "import time\nif r == 1:\n    time.sleep(60)\ndist.all_reduce(torch.ones(1) * 100)",
        (),
        fails=True,
        stop_after=1.0,
        then=REDUCE,
        then_expects=SUMS,
    ),
    Question(
        "a rank is killed",
        f"{ONE}os.kill(os.getpid(), 9)\ndist.all_reduce(torch.ones(1))",
        ("(?i)SIGKILL|killed|died|signal 9|code -9",),
        fails=True,
        then="",
        rebuild=True,
    ),
)


def correct() -> list[Row]:
    """The score of each tool, and what it did not get right; the tools work side by side."""
    row = Row("correct", f"{len(QUESTIONS)} cells with one right answer: points", "", more_is_better=True)
    row.note = "Right 1, half 0.5, wrong 0."
    names = [name for name in NOTEBOOKS if name not in not_installed()]
    with ThreadPoolExecutor(len(names)) as pool:
        scored = list(zip(names, pool.map(_all, names), strict=True))
    for name, points in scored:
        if isinstance(points, str):
            row.entries[name] = Entry(missing=points)
            continue
        row.entries[name] = Entry([sum(points.values())])
        less = [f"{question} ({'half' if value else 'wrong'})" for question, value in points.items() if value < 1]
        row.note += f" {name}: {', '.join(less) or 'all right'}."
    return [row]


def _all(name: str) -> dict[str, float] | str:
    points: dict[str, float] = {}
    deadline = time.monotonic() + MOST
    player: Player | None = None

    def bare(fresh: Player) -> None:
        points.update({question.name: _points(fresh, question)[0] for question in QUESTIONS if question.bare})

    try:
        for question in QUESTIONS:
            if question.name in points:
                continue
            if time.monotonic() > deadline:
                points[question.name] = 0.0
                continue
            try:
                if player is None:
                    player = ready(name, 2, (lambda _: None) if points else bare)
                    # An import is no part of an answer.
                    player.cell(MATPLOTLIB)
            except Exception as problem:  # noqa: BLE001 — the others go on
                return f"it did not get so far: {' '.join(str(problem).split())[:150]}"
            points[question.name], usable = _points(player, question)
            if question.rebuild or not usable:
                player.__exit__()
                player = None
    finally:
        if player:
            player.__exit__()
    return points


def _points(player: Player, question: Question) -> tuple[float, bool]:
    """The points, and whether the ranks may go on."""
    sent = player.send(question.code)
    if question.stop_after:
        sent.wait(question.stop_after)
        player.interrupt()
    if not sent.wait(ENDS):
        return 0.0, False
    held = [sent.failed == question.fails, *_found(sent, question)]
    usable = True
    if question.then:
        after = player.send(question.then)
        usable = after.wait(ENDS) and not after.failed
        held += [usable, all(_holds(after.text, question.then_expects))]
        usable = usable and held[-1]
    return (1.0 if all(held) else 0.5 if sum(held) * 2 >= len(held) else 0.0), usable


def _found(sent: Sent, question: Question) -> list[bool]:
    shown = [sent.kinds.count(kind) >= question.kinds.count(kind) for kind in set(question.kinds)]
    return [*_holds(sent.text, question.expects), *shown]


def _holds(text: str, expects: tuple[str, ...]) -> list[bool]:
    return [len(re.findall(part, text)) >= expects.count(part) for part in set(expects)]
