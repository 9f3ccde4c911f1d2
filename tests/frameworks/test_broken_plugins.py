"""A third party's plug-in that raises in every member: the rank goes on, and its cells name each member once."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.plugins.framework import MEMBERS
from jupyter_dtrain.wire.messages import Watching
from tests.session.cells import begin, fail, run, until

PLUGINS = """
from jupyter_dtrain.plugins.framework import ATTRIBUTES, MEMBERS
from jupyter_dtrain.frameworks import Framework

def raising(member):
    def method(self, *args, **kwargs):
        raise {error}(f"no {{member}}")
    return property(method) if member in ATTRIBUTES else method

# A plug-in that cannot prepare gets no other call, so another one has that failure.
Raiser = type("Raiser", (Framework,), {{"name": "raiser"}} | {{
    member: raising(member) for member in MEMBERS if member != "prepare"
}})
Unprepared = type("Unprepared", (Framework,), {{"name": "unprepared", "prepare": raising("prepare")}})

class Unmade(Framework):
    name = "unmade"

    def __init__(self):
        raise {error}("no object")
"""

FIRST = """
import os, subprocess, sys
import jupyter_dtrain
from mpi4py import MPI
rank = MPI.COMM_WORLD.Get_rank()
jupyter_dtrain.log(loss=float(rank))
kept = [rank]
subprocess.run([sys.executable, "-c", "print('by a child')"])
"""
FAILS = """
if rank == 1:
    raise ValueError("a bug")
MPI.COMM_WORLD.Barrier()
"""
NOTICE = re.compile(r"\[jupyter-dtrain\] The plug-in '(\w+)' (?:failed in (\w+)|cannot be loaded): (.*)\n")


STUCK = """
import os, time
from jupyter_dtrain.frameworks import Framework

class Stuck(Framework):
    name = "stuck"

    def after_cell(self):
        while "STUCK" in os.environ:
            time.sleep(1000)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """``install(source, names)``: plug-ins, by name, of a package that ranks and steward find."""

    def make(source: str, names: dict[str, str]) -> None:
        (tmp_path / "broken_plugins.py").write_text(source)
        info = tmp_path / "broken_plugins-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugins\nVersion: 1.0\n")
        lines = [f"{name} = broken_plugins:{kind}" for name, kind in names.items()]
        (info / "entry_points.txt").write_text("\n".join(["[jupyter_dtrain.frameworks]", *lines]) + "\n")
        paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    return make


@pytest.fixture
def broken(launch, install, error):
    """A world of two ranks with the plug-ins, which the steward knows as well."""
    install(PLUGINS.format(error=error), {"raiser": "Raiser", "unprepared": "Unprepared", "unmade": "Unmade"})
    return launch(n=2)


def test_stop_ends_a_plugin_that_never_returns(launch, install):
    """The cell has ended well, the plug-in waits in its end; the next cell is as good as any."""
    install(STUCK, {"stuck": "Stuck"})
    session = launch(n=2, settings=Settings(interrupt_raise=0.3))
    cell = session.run("import os\nos.environ['STUCK'] = 'yes'\nprint('end')", wait=False, view=None)
    until(lambda: all(totals.bytes for totals in cell.totals.values()))
    session.interrupt()

    assert cell.wait(20)
    assert (cell.outcome, cell.busy) == ("interrupted", [])
    assert "The plug-in" not in cell.text(0)
    assert run(session, "del os.environ['STUCK']").outcome == "ok"
    session.stop()


@pytest.mark.parametrize("error", ["RuntimeError", pytest.param("SystemExit", marks=pytest.mark.slow)])
def test_a_plugin_that_raises_in_every_member(broken, error, tmp_path):
    """Cells end well, a failure frees the other rank, the world stops; each member is named at most once."""
    runs = [run(broken, FIRST)]
    runs.append(begin(broken, f"while not os.path.exists({str(tmp_path / 'go')!r}):\n    pass"))
    until(lambda: len(runs[1].samples) == 2)
    (tmp_path / "go").touch()
    options = {"wait": True, "timeout": None, "inputs": {}, "watch": Watching(), "cell": None}
    runs.append(broken._cells.run("x = 1", None, lambda _: None, joins=1, **options))
    outcomes = [one.outcome for one in runs]
    found = broken.info()
    broken.stacks()
    memory = broken.memory()
    steward_log = (Path(broken.request.folder) / "logs" / "steward.log").read_text()
    runs.append(fail(broken, "jupyter_dtrain.broadcast('kept')"))
    runs.append(fail(broken, "raise MemoryError"))
    runs.append(fail(broken, FAILS))
    runs.append(fail(broken, "x"))
    broken.stop()

    assert outcomes == ["ok"] * 3
    assert sorted(runs[0].metrics["loss"]) == [0, 1]
    told = {"unknown": f"{error}: no describe"}
    assert all(memory.ranks.values())
    assert [found[rank].frameworks["raiser"].details for rank in (0, 1)] == [told, told]
    assert f"The plug-in 'raiser' failed in on_host: {error}: no on_host" in runs[3].errors[0].evalue
    assert runs[5].errors[0].waited == "Barrier"
    assert runs[5].errors[1].ename == "ValueError"
    # By contract, an obstacle to recovery is the cell's error.
    assert {one.evalue for one in runs[6].errors.values()} == {
        "no recover" if error == "RuntimeError" else "The plug-in 'raiser' failed in recover: SystemExit: no recover"
    }
    assert steward_log.count(f"The plug-in 'raiser' failed in server: {error}: no server") == 1
    for rank in (0, 1):
        notices = NOTICE.findall("".join(one.text(rank) for one in runs))
        named = Counter((name, member) for name, member, _ in notices)
        assert set(named.values()) == {1}
        assert named.keys() <= {*(("raiser", member) for member in MEMBERS), ("unprepared", "prepare"), ("unmade", "")}
        assert named.keys() >= {
            *(("raiser", member) for member in ASKED),
            ("unprepared", "prepare"),
            ("unmade", ""),
        }
        assert all(f"{error}: no " in words for _, _, words in notices)


ASKED = set(MEMBERS) - {
    # Shown in the place of what it would return; the cell's error.
    *("describe", "recover", "on_host"),
    "configuration",  # the lowest rank alone asks
    # Another plug-in's; only of a plug-in in which a rank waits; only after Stop; the steward's.
    *("prepare", "release", "can_release", "children_ended", "rendezvous", "server"),
    # Only in a profile, whose asker hears of it.
    "recording",
    # Where a cell lasts; only of variables that are compared, set or held, of snapshots, of dead ranks.
    *("part_of", "part_at", "sleeps", "parts", "states", "setting", "stepping", "hold"),
    *("save_values", "misfit", "load_values"),
    *("cannot_heal", "forbids_heal", "forbids_fewer", "bequeath", "inherit", "rejoin"),
}
"""The members that these cells come by."""
