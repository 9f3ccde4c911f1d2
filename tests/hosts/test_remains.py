"""What a dead world has left on another host, whose watch was killed: the doctor finds it, and removes it there."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import psutil
import pytest

from jupyter_dtrain.preflight.doctor import Examination, doctor
from jupyter_dtrain.preflight.probe import Facts
from tests.hosts.launching import PATIENCE, left, start
from tests.hosts.network import Network
from tests.steward.until import steward_of, until

REMOVE = "from jupyter_dtrain.cli import main; raise SystemExit(main(['doctor', '--quick', '--remove-leftovers']))"
"""The line that a finding about a host gives for a terminal there."""


def look(network: Network) -> Examination:
    """A quick examination of both hosts."""
    return doctor("gpu1:2,gpu2:2", ssh_args=f"-F {network.ssh_config}", quick=True)


def folders(found: Examination, host: str) -> list[str]:
    """The paths of the folders that dead worlds have left on a host."""
    facts = found.machines[host]
    assert isinstance(facts, Facts)
    return [one.path for one in facts.folders]


@pytest.mark.slow
def test_folders_of_a_dead_world_are_found_on_its_hosts_and_removed_there(network: Network) -> None:
    """Those of a world that lives stay, and so does a folder that only has such a name."""
    node = network["gpu2"]
    session = start(network, "gpu2:2")
    living = start(network, "gpu1:1,gpu2:1")
    world = session.request.id
    node.run(["mkdir", "-m", "700", f"/tmp/dtrain-{world}-named"])
    before = node.temporary_files()
    steward = steward_of(session)
    guard = steward.parent()
    assert guard is not None
    # The watch first: without it nothing removes its folders.
    victims = [pid for pid in node.processes() if _world(pid) == world]
    for process in (guard, steward):
        process.kill()
    for pid in sorted(victims, key=lambda pid: "watch" not in _command(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not [pid for pid in node.processes() if _world(pid) == world], PATIENCE)
    assert node.temporary_files() == before

    found = look(network)
    removed = node.run([sys.executable, "-c", REMOVE], capture_output=True).stdout
    again = look(network)
    told = [one for one in found.findings if "have left folders" in one.what and world in one.what]

    assert len(folders(found, "gpu2")) == 2
    assert all(f"/dtrain-{world}-" in path for path in folders(found, "gpu2"))
    assert folders(found, "gpu1") == []
    assert len(told) == 1
    assert f"Dead worlds ({world}) have left folders on gpu2: " in told[0].what
    assert told[0].fix.startswith("`jupyter dtrain doctor --remove-leftovers`, in a terminal there, removes them")
    assert [line for line in removed.splitlines() if line.startswith("this machine: ")] == [
        f"this machine: removed {path}." for path in folders(found, "gpu2")
    ]
    assert folders(again, "gpu2") == []
    gone = {path.rpartition("/")[2] for path in folders(found, "gpu2")}
    assert set(before) - set(node.temporary_files()) == gone
    assert living.run("6 * 7", view=None).results[1].data["text/plain"] == "42"
    living.stop()
    node.run(["rmdir", f"/tmp/dtrain-{world}-named"])
    until(lambda: left(network) == [], PATIENCE)


def _world(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).environ().get("DTRAIN_WORLD", "")
    return ""


def _command(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""
