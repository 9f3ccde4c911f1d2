"""The loops of cells can be ended as if they had finished, and nobody sees that before."""

from __future__ import annotations

import ast
import contextlib
import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_dtrain.rank import loops
from jupyter_dtrain.rank.loop_exits import CAN_EXIT, LoopExits
from jupyter_dtrain.rank.scripts import run_script
from tests.rank.acting import STOP, ActingRank, between

ENDED = "The loop ended as asked, and the cell went on below it"
can_exit = pytest.mark.skipif(not CAN_EXIT, reason="before Python 3.11, no loop has an exit")


@pytest.fixture
def rank(tmp_path):
    rank = ActingRank(tmp_path)
    rank.shell.user_ns["seen"] = seen = []
    rank.seen = seen
    yield rank
    assert sys.gettrace() is None
    InteractiveShell.clear_instance()


SOURCES = {
    "for": "for i in range(3):\n    seen.append(i)\nprint\n",
    "last": "for i in range(3):\n    seen.append(i)\n",
    "one line": "for i in range(3): seen.append(i)\n",
    "else": "for i in range(3):\n    seen.append(i)\nelse:\n    seen.append('else')\n",
    "break": "for i in range(3):\n    if i == 1:\n        break\nelse:\n    seen.append('else')\nprint\n",
    "function": "def f():\n    for i in range(3):\n        seen.append(i)\nf()\n",
    "break and return": "def f():\n    for i in range(3):\n        if i == 1:\n            break\n    return 7\nf()\n",
    "return": "def f():\n    for i in range(3):\n        return i\nf()\n",
    "while": "i = 0\nwhile i < 3:\n    i += 1\nprint\n",
    "while in function": "def f(i):\n    while i < 3:\n        i += 1\nf(0)\n",
    "while that is not entered": "i = 5\nwhile i < 3:\n    i += 1\n",
    "while true": "def f(i):\n    while True:\n        i += 1\n        if i > 3: break\n    return i\nf(0)\n",
    "while true that returns": "def f(i):\n    while True:\n        i += 1\n        if i > 3: return\nf(0)\n",
    "nested": "for a in range(2):\n    for b in range(2):\n        seen.append(b)\n    else:\n        seen.append(a)\n",
    "two": "def f(i):\n  if i:\n    for x in range(i):\n        i += 1\n  else:\n    while i < 3: i += 1\nf(0)\nf(2)\n",
    "raises": "def f():\n    for i in range(3):\n        1 / (1 - i)\nf()\n",
    "try": (
        "for a in range(3):\n    try:\n        for b in range(2):\n            1 / (1 - b)\n"
        "    except ZeroDivisionError:\n        continue\n    finally:\n        seen.append(a)\n"
    ),
    "with": (
        "import contextlib\nfor a in range(2):\n    with contextlib.suppress(ValueError):\n        for b in range(2):\n"
        "            raise ValueError\n"
    ),
    "generator": "def g():\n    for i in range(3):\n        yield i\nfor i in g():\n    seen.append(i)\n",
    "class": "class A:\n    for i in range(2):\n        x = i\n",
    "empty": "for i in ():\n    pass\n",
    "several lines": "for i in [\n    1,\n    2,\n]:\n    seen.append(i)\n\n\nseen.append(3)\n",
    "async for": (
        "import asyncio\nasync def g():\n    for i in range(3):\n        yield i\n"
        "async def f():\n    async for i in g():\n        seen.append(i)\nasyncio.run(f())\n"
    ),
    "match": "def f(x):\n    match x:\n        case 1:\n            for i in range(2): seen.append(i)\nf(1)\n",
}


def traced(source, change):
    """The lines that a tracer sees, and what the code did; each statement by itself, as IPython runs a cell."""
    tree = ast.parse(source)
    if change:
        tree = ast.fix_missing_locations(LoopExits().visit(tree))
    seen, lines = [], []

    def trace(frame, event, _):
        if frame.f_code.co_filename != "<traced>":
            return None
        lines.append((frame.f_code.co_name, event, frame.f_lineno))
        return trace

    codes = [compile(ast.Module([node], []), "<traced>", "exec") for node in tree.body]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for code in codes:
            exec(code, names := locals().get("names", {"seen": seen}))  # noqa: S102 — the code to look at
    except ZeroDivisionError:
        seen.append("raised")
    finally:
        sys.settrace(before)
    return lines, seen


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_nobody_sees_an_exit(source):
    """Debuggers, coverage and the table of slow lines see the lines that they would see without."""
    assert traced(source, change=True) == traced(source, change=False)


@can_exit
def test_a_loop_has_an_exit():
    """Else the test above says nothing."""
    tree = LoopExits().visit(ast.parse(SOURCES["for"]))

    assert isinstance(tree.body[0].orelse[0], ast.If)


def test_a_cell_shows_what_it_showed(rank, capsys):
    """A loop at the end of a cell shows nothing, and its last expression does."""
    rank.run("for i in range(2):\n    i\n")
    assert capsys.readouterr().out == ""

    rank.run("for i in range(2):\n    i\ni + 4")
    assert capsys.readouterr().out.endswith("5\n")


ENDS = {
    "a cell's loop": (
        "for step in range(1, 9):\n    hook(step)\n    seen.append(step)\nseen.append('below')\n",
        [1, 2, "below"],
    ),
    "the last of a cell": ("for step in range(1, 9):\n    seen.append(step)\n    hook(step)\n", [1, 2, 3]),
    "one line": ("for step in range(1, 9): seen.append(step); hook(step)\nseen.append('below')", [1, 2, 3, "below"]),
    "the last of a function": (
        (
            "def train():\n    for step in range(1, 9):\n        hook(step)\n        seen.append(step)\n"
            "train()\nseen.append('below')\n"
        ),
        [1, 2, "below"],
    ),
    "all loops of a function": (
        (
            "for epoch in range(3):\n    for step in range(1, 4):\n        hook(step)\n        seen.append(step)\n"
            "    seen.append('epoch')\nseen.append('below')\n"
        ),
        [1, 2, "below"],
    ),
    "those of the functions around": (
        (
            "def epoch():\n    for step in range(1, 9):\n        hook(step)\n        seen.append(step)\n"
            "    return 'epoch'\n"
            "def train():\n    for _ in range(3):\n        seen.append(epoch())\n        seen.append('not this')\n"
            "    return 'below'\nseen.append(train())\n"
        ),
        [1, 2, "epoch", "below"],
    ),
    "a while": (
        "step = 0\nwhile step < 9:\n    step += 1\n    hook(step)\n    seen.append(step)\nseen.append('below')\n",
        [1, 2, "below"],
    ),
    "a while without end": (
        (
            "step = 0\nwhile True:\n    step += 1\n    hook(step)\n    seen.append(step)\n    if step > 9: break\n"
            "seen.append('below')\n"
        ),
        [1, 2, "below"],
    ),
    "a with in it is left": (
        (
            "import contextlib\nfor step in range(1, 9):\n    with contextlib.ExitStack() as stack:\n"
            "        stack.callback(seen.append, 'left')\n        hook(step)\n        seen.append(step)\n"
            "seen.append('below')\n"
        ),
        [1, "left", 2, "left", 3, "left", "below"],
    ),
    "a finally in it is run": (
        (
            "for step in range(1, 9):\n    try:\n        hook(step)\n    finally:\n        seen.append(step)\n"
            "    seen.append('not this')\nseen.append('below')\n"
        ),
        [1, "not this", 2, "not this", 3, "below"],
    ),
    "a loop in a with": (
        (
            "import contextlib\nfor epoch in range(3):\n    with contextlib.ExitStack() as stack:\n"
            "        stack.callback(seen.append, 'left')\n        for step in range(1, 9):\n            hook(step)\n"
            "            seen.append(step)\n        seen.append('evaluated')\n    seen.append('not this')\n"
            "seen.append('below')\n"
        ),
        [1, 2, "evaluated", "left", "below"],
    ),
    "an else is run": (
        "for step in range(1, 9):\n    hook(step)\n    seen.append(step)\nelse:\n    seen.append('else')\n",
        [1, 2, "else"],
    ),
    "a loop that has ended by itself": (
        (
            "for step in range(1, 9):\n    if hook(step) or step == 3: break\n"
            "for other in range(2):\n    seen.append(other)\n"
        ),
        [0, 1],
    ),
    "no loop over what the steps have made": (
        (
            "def train():\n    made = []\n    for step in range(1, 9):\n        hook(step)\n        made.append(step)\n"
            "    return made\nfor one in train():\n    seen.append(one)\n"
        ),
        [1, 2],
    ),
    "a loop over a generator that steps": (
        (
            "def train():\n    for step in range(1, 9):\n        hook(step)\n        yield step\n"
            "for one in train():\n    seen.append(one)\nseen.append('below')\n"
        ),
        [1, 2, "below"],
    ),
    "a loop around a library's function": (
        (
            "import functools\nfor step in range(1, 9):\n    functools.reduce(lambda _, one: hook(one), [step], None)\n"
            "    seen.append(step)\nseen.append('below')\n"
        ),
        [1, 2, "below"],
    ),
    "timed": (
        "%%time\nfor step in range(1, 9):\n    hook(step)\n    seen.append(step)\nseen.append('below')",
        [1, 2, "below"],
    ),
    "await": (
        (
            "import asyncio\nasync def train():\n    for step in range(1, 9):\n        await asyncio.sleep(0)\n"
            "        hook(step)\n        seen.append(step)\nawait train()\nseen.append('below')\n"
        ),
        [1, 2, "below"],
    ),
}


@can_exit
@pytest.mark.parametrize(("code", "seen"), ENDS.values(), ids=ENDS)
def test_loops_end_as_if_they_had_finished(rank, code, seen):
    """The statements of guards and those below a loop are run; no other of the loop."""
    acted = rank.run(code, at_3=STOP)

    assert acted.text == ENDED
    assert rank.seen == seen


LIBRARY = "def fit(step):\n    for number in range(1, 9):\n        step(number)\n"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import a_library\nfor _ in range(3):\n    a_library.fit(hook)\n", "its loop is in a library"),
        ("import our_module\nour_module.fit(hook)\n", "its loop is in an imported module"),
        (
            "step = 0\nwhile True:\n    step += 1\n    hook(step)\n    if step > 7: 1 / 0\n",
            "its loop is a while True without a break",
        ),
        ("[hook(step) for step in range(1, 9)]\n", "its steps stand in no loop"),
    ],
)
def test_a_loop_that_cannot_be_ended_alone_goes_on(rank, tmp_path, tmp_path_factory, monkeypatch, code, why):
    """Nothing is changed: what stands below it would be lost with the cell. The words say what ends that."""
    for folder, name in ((tmp_path_factory.mktemp("libraries"), "a_library"), (tmp_path, "our_module")):
        (folder / f"{name}.py").write_text(LIBRARY)
        monkeypatch.syspath_prepend(folder)

    with contextlib.suppress(ZeroDivisionError):
        rank.run(f"{code}seen.append('below')\n", at_3=STOP)

    [acted] = rank.done[:1]
    assert (acted.ok, acted.text) == (
        False,
        f"{why}, so it cannot be ended alone; %distributed interrupt ends the cell",
    )
    assert rank.seen == ["below"] * ("while" not in code)


@can_exit
def test_a_scripts_loop_has_an_exit(rank, tmp_path):
    """As ``%distributed run`` runs it."""
    script = tmp_path / "train.py"
    script.write_text("for step in range(1, 9):\n    hook(step)\n    seen.append(step)\nseen.append('below')\n")
    rank.shell.user_ns["run_script"] = run_script

    assert rank.run(f"run_script({str(script)!r})", at_3=STOP).text == ENDED
    assert rank.seen == [1, 2, "below"]


@can_exit
def test_a_debugger_goes_on_as_before(rank):
    """The trace function that was there sees the lines of all loops, and stays."""
    lines = []

    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith("<ipython-input"):
            return None
        lines.append((event, frame.f_lineno)) if event == "line" else None
        return trace

    rank.shell.user_ns["trace"] = trace
    code = (
        "import sys\ndef train():\n    for step in range(1, 9):\n        hook(step)\n        seen.append(step)\n"
        "    seen.append('below')\nsys.settrace(trace)\ntrain()\nheld = sys.gettrace() is trace\nsys.settrace(None)\n"
    )

    assert rank.run(code, at_2=STOP).text == ENDED

    assert rank.seen == [1, "below"]
    assert rank.shell.user_ns["held"]
    assert lines[-4:] == [("line", 4), ("line", 6), ("line", 9), ("line", 10)]


@can_exit
def test_an_error_in_the_last_line_leaves_no_trace_function(rank):
    """The frame is left before its loop could be ended."""
    with pytest.raises(ZeroDivisionError):
        rank.run("def train():\n    for step in range(1, 9):\n        hook(step) or 1 / 0\ntrain()\n", at_1=STOP)

    assert sys.gettrace() is None


def test_a_chain_of_conditions_takes_no_cell(rank):
    """Each elif stands in the else of the one before it: deeper than functions may call each other."""
    chain = "if step == 0: pass\n" + "".join(f"elif step == {one}: pass\n" for one in range(1, 900))
    tree = ast.parse(chain)

    assert LoopExits().visit(tree) is tree


@can_exit
def test_a_cell_is_read_once(rank, monkeypatch):
    """However many steps and lines of it are looked at."""
    parsed = []
    monkeypatch.setattr(
        loops, "_parsed", lambda code, lines, real=loops._parsed: parsed.append(code) or real(code, lines)
    )
    rank.run(
        "for step in range(1, 9):\n    try:\n        hook(step)\n        seen.append(step)\n        seen.append(step)\n"
        "    finally: seen.append(0)\n",
        at_2=between("step"),
        at_3=between("step"),
        at_4=STOP,
    )

    assert rank.done[2].text == ENDED
    assert len(parsed) == len(set(parsed))
