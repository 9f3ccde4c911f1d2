"""IPython in a real terminal."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import sys

import pexpect
import psutil
import pytest

from jupyter_dtrain.launch.worlds import list_worlds
from tests.magics.notebook import plain
from tests.session.cells import until

PROMPT = "In \\[\\d+\\]: "
PATIENCE = 30


class Terminal:
    """A terminal with IPython in it."""

    def __init__(self, folder, **env):
        self.folder = str(folder)
        self.process = pexpect.spawn(
            sys.executable,
            ["-m", "IPython", "--simple-prompt", "--no-banner", "--no-confirm-exit", "--colors=NoColor"],
            cwd=str(folder),
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40", **env},
            encoding="utf-8",
            timeout=PATIENCE,
            dimensions=(40, 120),
            # Tests that run under nohup would hand down that this signal is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        self.process.delaybeforesend = None
        self.process.expect(PROMPT)
        self.raw = ""

    def send(self, code):
        """Type a cell, which may have several lines, as one input."""
        self.process.sendline(f"get_ipython().run_cell({code!r});")

    def prompt(self):
        """Wait for the prompt; what stood between."""
        self.process.expect(PROMPT)
        self.raw = self.process.before
        return plain(self.raw).replace("\r\n", "\n")

    def run(self, code):
        """Run a cell; the text that it shows."""
        self.send(code)
        return self.prompt().partition("\n")[2]

    def pids(self):
        """The process ids of the ranks of its world."""
        return {int(pid) for pid in re.findall(r"^ *\d+ +\S+ +\d+ +\S+ +(\d+)", self.run("%distributed"), re.MULTILINE)}

    def close(self):
        """Leave it as a user does; a test that failed may have left it in no state for that, so its world is ended."""
        if self.process.isalive():
            self.process.sendline("exit")
            self.process.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=5)
        self.process.close(force=True)
        for world in list_worlds():
            if world.cwd == self.folder:
                os.kill(world.steward, signal.SIGTERM)


@pytest.fixture(scope="module")
def opened(home, long_hold, tmp_path_factory):
    """A terminal with two ranks, for this module."""
    terminal = Terminal(tmp_path_factory.mktemp("terminal"))
    assert terminal.run("%load_ext jupyter_dtrain").strip() == ""
    started = terminal.run("%distributed start -n 2")
    assert "World 'world' is up: 2 ranks" in started
    yield terminal
    terminal.close()


def test_a_cell_prints_and_shows_results(opened):
    """Lines have labels, as in a notebook."""
    said = opened.run("%%distributed\nimport os\nprint('hello')\nint(os.environ['RANK'])")

    assert [line for line in said.splitlines() if line] == ["[0-1] hello", "[0] 0", "[1] 1"]


def test_a_cell_can_be_typed_line_by_line(opened):
    """Blank lines end it, as they end any cell magic."""
    for line in ("%%distributed", "print('typed', 6 * 7)", "", ""):
        opened.process.sendline(line)

    assert "[0-1] typed 42" in opened.prompt()


def test_status_is_a_table_of_text(opened):
    """Terminals have no HTML."""
    said = opened.run("%distributed")

    assert "rank  node" in said
    assert "<table" not in said
    assert len(opened.pids()) == 2


def test_a_progress_bar_is_redrawn_in_one_line(opened):
    """The full bar is left, and what is printed stands on lines of its own."""
    pytest.importorskip("tqdm")
    said = opened.run(
        "%%distributed\nimport time\nfrom tqdm import tqdm\n"
        "for step in tqdm(range(10), ncols=60):\n    time.sleep(0.1)\nprint('done')"
    )
    redrawn = opened.raw.count("\r\x1b[K")
    left = [line.split("\r")[-1] for line in said.splitlines()]

    assert redrawn >= 2
    assert said.count("\n") <= 3 + redrawn
    assert any(line.startswith("[0] 100%|") for line in left)
    assert "[0-1] done" in left


def test_a_run_that_prints_nothing_says_how_it_goes(opened):
    """Its time, its step and its loss, in one line that is redrawn, and erased at the end."""
    opened.send(
        "%%distributed\nimport jupyter_dtrain, time, pathlib\nstep = 0\nwhile not pathlib.Path('enough').exists():\n"
        "    jupyter_dtrain.log(loss=0.5, step=step)\n    step += 1\n    time.sleep(0.05)"
    )
    opened.process.expect(r"Run \d+: \d+\.\d s, step \d+, loss 0\.5")
    pathlib.Path(opened.folder, "enough").touch()
    opened.prompt()

    assert re.search(r"\r\x1b\[KRun \d+ on ranks 0-1: ok, ", opened.raw)


def test_an_error_shows_the_lines_of_the_cell(opened):
    """It shows no frame of this package."""
    said = opened.run("%%distributed\nx = 1\nraise ValueError('bad shape')")

    assert "ValueError on ranks 0-1" in said
    assert "----> 2 raise ValueError('bad shape')" in said
    assert "jupyter_dtrain" not in said


def test_a_cell_in_the_background_prints_when_it_has_output(opened):
    """It does so even while the prompt waits."""
    opened.run(
        "%%distributed --no-wait\nimport pathlib, time\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\nprint('later')"
    )
    opened.run("open('go', 'w').close()")
    opened.process.sendline("")
    opened.process.expect("\\[0-1\\] later")
    opened.process.sendline("'synchronised'")
    opened.process.expect("Out.*synchronised")

    assert opened.prompt() is not None


def test_control_c_interrupts_the_ranks_and_variables_stay(opened):
    """The prompt comes back."""
    opened.send("%%distributed\nstage = 'kept'\nimport time\nprint('in', flush=True)\ntime.sleep(600)")
    opened.process.expect("\\[0-1\\] in")
    opened.process.sendintr()
    said = opened.prompt()

    assert "KeyboardInterrupt on ranks 0-1" in said
    assert "[0-1] 'kept'" in opened.run("%%distributed\nstage")


def test_a_terminal_under_control_s_holds_up_neither_the_ranks_nor_an_interrupt(opened):
    """The terminal shows the output of the meantime as soon as it takes text again."""
    opened.run("import os, pathlib; [os.remove(name) for name in ('end', 'done', '0', '1') if os.path.exists(name)]")
    opened.send(
        "import threading, time, jupyter_dtrain.session as session\n"
        "def press():\n"
        "    while not pathlib.Path('end').exists(): time.sleep(0.01)\n"
        "    session.current().interrupt()\n"
        "    while session.current().last_run.unfinished: time.sleep(0.01)\n"
        "    pathlib.Path('done').touch()\n"
        "threading.Thread(target=press).start()"
    )
    opened.prompt()
    opened.send(
        "%%distributed\nimport os, pathlib, time\nfor n in range(300):\n    print('line', n, 'x' * 1000, flush=True)\n"
        "    time.sleep(0.01)\npathlib.Path(os.environ['RANK']).touch()\ntime.sleep(600)"
    )
    opened.process.expect("line 20 ")
    opened.process.send("\x13")
    # More than a terminal and its buffers take.
    until(lambda: all(pathlib.Path(opened.folder, rank).exists() for rank in "01"))
    pathlib.Path(opened.folder, "end").touch()
    until(pathlib.Path(opened.folder, "done").exists, PATIENCE / 2)
    opened.process.send("\x11")
    said = opened.prompt()
    lines = re.findall(r"\[([\d-]+)\] line (\d+)", said)

    assert "KeyboardInterrupt on ranks 0-1" in said
    for rank in "01":
        assert [int(number) for ranks, number in lines if rank in ranks] == list(range(21, 300))


def test_auto_mode_runs_plain_lines_on_the_ranks(opened):
    """Typed with one press of the return key; and so is the line that ends it."""
    said = []
    for line in ("%distributed auto on", "6 * 7", "%distributed auto off", "6 * 7"):
        opened.process.sendline(line)
        said.append(opened.prompt())

    assert "[0-1] 42" in said[1]
    assert "Plain cells run in the notebook again" in said[2]
    assert "[0-1]" not in said[3]
    assert "42" in said[3]


def test_a_question_of_the_ranks_is_answered_where_it_stands(opened):
    """Once for both; a password is not shown."""
    opened.send("%%distributed\nimport getpass\nprint('I am', input('name? '), len(getpass.getpass('key: ')))")
    opened.process.expect_exact("ranks 0-1: name? ")
    opened.process.sendline("Ada")
    opened.process.expect_exact("ranks 0-1: key: ")
    opened.process.sendline("hidden")
    said = opened.prompt()

    assert "[0-1] I am Ada 6" in said
    assert "hidden" not in said


def test_a_debugger_of_one_rank_asks_all(opened):
    """Answers are one table, and the cell goes on."""
    opened.send(
        "%%distributed\nimport os\nrank = int(os.environ['RANK'])\nx = rank + 40\n"
        "if rank == 1: breakpoint()\nprint('went on', x)"
    )
    opened.process.expect_exact("rank 1 (Pdb) ")
    said = plain(opened.process.before)
    table = ""
    while "rank 0 | has ended the cell\nrank 1 | 41\n" not in table:
        opened.process.sendline("@all p x")
        opened.process.expect_exact("rank 1 (Pdb) ")
        table = plain(opened.process.before).replace("\r\n", "\n")
        said += table
    opened.process.sendline("c")
    said += opened.prompt()

    assert "went on 40" in said
    assert "[1] went on 41" in said


DIES = """
import os, pathlib, signal, threading, time
def die():
    while not pathlib.Path("die").exists(): time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=die, daemon=True).start()
"""


@pytest.mark.parametrize("end", ["Ctrl-C", "death"])
def test_a_half_typed_line_is_no_input_of_the_next_prompt(opened, end):
    """Neither where the person stops the cell nor where the rank that has asked dies."""
    dies = DIES if end == "death" else ""
    opened.send(f"%%distributed -r 1\n{dies}\ninput('half? ')")
    opened.process.expect_exact("rank 1: half? ")
    opened.process.send("kept = 'no")
    opened.process.expect_exact("kept = 'no")
    if end == "death":
        pathlib.Path(opened.folder, "die").touch()
    else:
        opened.process.sendintr()
    opened.prompt()
    opened.process.sendline("40 + 2")

    assert re.search(r"Out\[\d+\]: 42", opened.prompt())
    if end == "death":
        assert "2 ranks" in opened.run("%distributed restart")


@pytest.mark.parametrize(
    "end",
    [
        "exit",
        pytest.param("exit in auto mode", marks=pytest.mark.slow),
        pytest.param("end of input", marks=pytest.mark.slow),
    ],
)
def test_leaving_the_terminal_leaves_no_process(home, tmp_path, end):
    """``exit`` or Ctrl-D."""
    terminal = Terminal(tmp_path)
    terminal.run("%load_ext jupyter_dtrain")
    terminal.run("%distributed start -n 2")
    ranks = [psutil.Process(pid) for pid in terminal.pids()]
    if end == "exit in auto mode":
        terminal.run("%distributed auto on")
    if end.startswith("exit"):
        terminal.process.sendline("exit")
    else:
        terminal.process.sendeof()
    terminal.process.expect(pexpect.EOF)
    _, alive = psutil.wait_procs(ranks, timeout=PATIENCE)
    terminal.close()

    assert len(ranks) == 2
    assert alive == []


@pytest.mark.slow
def test_a_terminal_whose_window_is_closed_leaves_its_world_to_the_lease(home, tmp_path):
    """It is killed before it can say anything, as in a crash."""
    terminal = Terminal(tmp_path, JUPYTER_DTRAIN_KEEP_ALIVE="2")
    terminal.run("%load_ext jupyter_dtrain")
    terminal.run("%distributed start -n 1")
    ranks = [psutil.Process(pid) for pid in terminal.pids()]
    terminal.process.kill(signal.SIGHUP)
    terminal.process.expect(pexpect.EOF)
    at_first = [rank for rank in ranks if rank.is_running()]
    _, alive = psutil.wait_procs(ranks, timeout=PATIENCE)
    terminal.close()

    assert len(at_first) == 1
    assert alive == []
