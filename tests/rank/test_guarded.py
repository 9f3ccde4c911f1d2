"""What stands in the place of functions of Python, IPython and tqdm: where it fails, the user's call ends as ever."""

from __future__ import annotations

import builtins
import getpass
import pdb  # noqa: T100 — its set_trace is refused
import sys
import warnings
from multiprocessing import context, reduction

import ipykernel.zmqshell  # noqa: F401 — a rank has it
import pytest

from jupyter_dtrain.plugins import patches
from jupyter_dtrain.rank import bars, namespace, tracebacks
from jupyter_dtrain.rank.debugging import RankDebugger
from jupyter_dtrain.rank.prompts import NoAnswer, RankPrompts


@pytest.fixture
def faults(monkeypatch):
    """The faults that were reported."""
    found: list[patches.Fault] = []
    monkeypatch.setattr(patches, "_reported", set())
    patches.report_to(found.append)
    yield found
    patches.report_to(None)


def fail(*_args, **_kwargs):
    raise AttributeError("a fault of ours")


class Shell:
    """As much of IPython's as a refusal needs; nothing says which cell runs."""

    def ask_exit(self):
        raise AssertionError("it has ended")

    def register_magic_function(self, function, kind, name):
        """Register nothing."""


def test_a_question_is_refused_even_where_nothing_says_which_cell_asks(monkeypatch, faults):
    """Nobody waits for a person, and a refusal is no fault."""
    for owner, name in (
        (builtins, "input"),
        (sys, "breakpointhook"),
        (getpass, "getpass"),
        (pdb, "set_trace"),
        (pdb, "post_mortem"),
        (pdb.Pdb, "__init__"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    shell = Shell()
    prompts = RankPrompts(None, None, None)
    prompts.install(shell)
    RankDebugger(prompts, None, None, dict, None).install(shell)

    for ask in (lambda: input("Name? "), breakpoint, lambda: getpass.getpass(prompt="Key? "), pdb.set_trace):
        with pytest.raises((RuntimeError, NoAnswer), match="nobody can answer"):
            ask()
    with pytest.raises(RuntimeError, match="leave a hole in the world"):
        shell.ask_exit()
    assert faults == []


def test_a_loop_goes_on_without_its_bar(monkeypatch, faults):
    """The bar is silent, and the fault is told once for each function of tqdm."""
    std = pytest.importorskip("tqdm.std")
    for name in ("__init__", "display", "close"):
        monkeypatch.setattr(std.tqdm, name, getattr(std.tqdm, name))
    bars._hook(std)
    told = []
    monkeypatch.setattr(bars.ProgressBar, "report", lambda _bar, done, *_: told.append(done))
    monkeypatch.setattr(bars.ProgressBar, "end", lambda _bar, done, *_: told.append(done))
    assert list(std.tqdm(range(3), mininterval=0)) == [0, 1, 2]
    assert (told[0], told[-1], faults) == (0, 3, [])

    monkeypatch.setattr(bars.ProgressBar, "report", fail)
    monkeypatch.setattr(bars.ProgressBar, "end", fail)
    assert list(std.tqdm(range(3), mininterval=0)) == [0, 1, 2]
    assert list(std.tqdm(range(3), "again", mininterval=0)) == [0, 1, 2]
    assert [fault.words.split(" of tqdm")[0] for fault in faults] == [
        "A part of jupyter-dtrain failed inside tqdm.display",
        "A part of jupyter-dtrain failed inside tqdm.close",
    ]


def test_a_bar_of_another_tqdm_stays_tqdms(monkeypatch, faults):
    """Its ``file`` may stand at another place."""
    std = pytest.importorskip("tqdm.std")

    class Tqdm(std.tqdm):
        def __init__(self, iterable=None, total=None, file=None):
            super().__init__(iterable, total=total, file=file)

    made = Tqdm.__init__
    monkeypatch.setattr(std, "tqdm", Tqdm)
    bars.BARS.when_imported(bars._hook)

    assert Tqdm.__init__ is made
    (fault,) = faults
    assert "lacks parts that jupyter-dtrain uses (tqdm.std.tqdm.__init__ takes (self, iterable, total, " in fault.words


def test_a_warning_comes_where_its_line_cannot_be_found(monkeypatch, faults):
    """It may name another line."""
    monkeypatch.setattr(warnings, "warn", warnings.warn)
    monkeypatch.setattr(tracebacks, "_level", fail)
    tracebacks.blame_users()
    with pytest.warns(UserWarning, match="said"):
        warnings.warn("said", stacklevel=2)
    # Warnings are errors in these tests.
    with pytest.raises(UserWarning, match="an error"):
        warnings.warn("an error")  # noqa: B028 — Python counts from here

    assert ["failed inside warn of warnings" in fault.words for fault in faults] == [True]


def test_values_travel_to_other_processes_where_we_cannot_judge_them(monkeypatch, faults):
    """As multiprocessing sends them."""
    pickler = reduction.ForkingPickler
    monkeypatch.setattr(pickler, "reducer_override", lambda _pickler, _obj: NotImplemented, raising=False)
    monkeypatch.setattr(context, "get_spawning_popen", object)
    monkeypatch.setattr(namespace, "_is_of_cell", fail)
    namespace.send_code_along()

    assert pickler.loads(pickler.dumps([fail, Shell])) == [fail, Shell]
    assert ["failed inside " in fault.words for fault in faults] == [True]
