"""Worlds in jobs of a scheduler, on real hosts: programs named as PBS names its own run the job's script on a host.

No PBS runs here: these programs answer in the form of its manual.
"""

from __future__ import annotations

import contextlib
import os
import shlex

import psutil
import pytest

from jupyter_dtrain import BadRequest, Session, StartFailed
from jupyter_dtrain.core.errors import WorldLost
from tests.hosts.launching import PATIENCE, SETTINGS, left, values
from tests.steward.until import until

QSUB = """#!/bin/sh
folder={folder}
[ -e "$folder/refuses" ] && {{ echo "qsub: Unknown queue" >&2; exit 32; }}
[ -e "$folder/mumbles" ] && {{ echo submitted; exit; }}
echo "$@" > "$folder/options"
for script; do :; done
echo Q > "$folder/state"
{host} sh -s < "$script" > /dev/null 2>&1 3>&- &
echo $! > "$folder/script"
echo 12.server
"""
QSTAT = """#!/bin/sh
folder={folder}
[ -e "$folder/state" ] || {{ echo "qstat: Unknown Job Id 12" >&2; exit 153; }}
[ -e "$folder/busy" ] || echo R > "$folder/state"
echo "Job Id: 12.server"
echo "    job_state = $(cat "$folder/state")"
echo "    exec_host = gpu1/0*2+gpu2/0*2"
echo "    comment = Not Running: Not enough free nodes available"
"""
QDEL = """#!/bin/sh
echo "$@" >> {folder}/deleted
rm -f {folder}/state
kill $(cat {folder}/script)
"""


WHERE = "import os, socket; socket.gethostname(), os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE']"


@pytest.fixture
def pbs(network, tmp_path, monkeypatch):
    """A folder for what the scheduler knows: ``busy`` keeps jobs in the queue, ``refuses`` refuses them.

    With ``mumbles`` a job gets no number.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    host = shlex.join(network["gpu1"].command(["setsid"]))
    for name, text in (("qsub", QSUB), ("qstat", QSTAT), ("qdel", QDEL)):
        (programs / name).write_text(text.format(folder=shlex.quote(str(tmp_path)), host=host))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def start(network, **options):
    """A world in a job."""
    arguments = {"n": 4, "scheduler": "pbs", "ssh_args": f"-F {network.ssh_config}", "settings": SETTINGS}
    return Session.start(**arguments | options)


def gone(network):
    """Nothing is left on the hosts."""
    try:
        until(lambda: left(network) == [])
    except AssertionError:
        told = {pid: " ".join(psutil.Process(pid).cmdline()) for host in network.hosts for pid in host.processes()}
        raise AssertionError(f"{left(network)}: {told}") from None


def holds(network):
    """The processes of the job's script."""
    return [pid for pid in network["gpu1"].processes() if "sh -s" in " ".join(psutil.Process(pid).cmdline())]


@pytest.mark.slow
def test_a_world_runs_on_the_hosts_of_a_job(network, pbs):
    (pbs / "busy").touch()
    said = []

    def say(text):
        said.append(text)
        if "waits" in text:
            (pbs / "busy").unlink(missing_ok=True)

    with start(network, job="-l select=2:ncpus=2 -q gpu", progress=say) as session:
        run = session.run(
            "import os, socket; (socket.gethostname(), os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'])"
        )
        found = values(run)
        assert len(holds(network)) == 1
        with pytest.raises(BadRequest, match="A scheduler has chosen the hosts of this world"):
            session.sync(pbs / "options")
    assert found == {0: ("gpu1", "0", "4"), 1: ("gpu1", "1", "4"), 2: ("gpu2", "0", "4"), 3: ("gpu2", "1", "4")}
    assert any("job 12 waits in PBS: Not Running: Not enough free nodes available" in text for text in said)
    assert (pbs / "options").read_text().startswith("-l select=2:ncpus=2 -q gpu ")
    assert (pbs / "deleted").read_text() == "12\n"
    gone(network)


@pytest.mark.slow
def test_a_job_that_is_deleted_ends_its_world_with_the_reason(network, pbs):
    """The scheduler ends what runs there; here, the session and the other host's ranks are left."""
    session = start(network)
    run = session.run("import time; print('begun', flush=True); time.sleep(60)", wait=False, view=None)
    until(lambda: all(totals.lines for totals in run.totals.values()))
    (pbs / "state").unlink()
    for pid in network["gpu2"].processes():
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).terminate()
    assert run.wait(PATIENCE)

    assert set(run.outcomes.values()) == {"lost"}
    assert all("PBS's job 12 is over: PBS no longer knows it" in words for words in run.lost.values())
    with pytest.raises(WorldLost):
        session.run("1", view=None)
    gone(network)


@pytest.mark.parametrize(
    ("file", "options", "words"),
    [
        ("refuses", {}, "PBS refuses the job: qsub: Unknown queue"),
        ("mumbles", {}, "PBS has given the job no number: 'submitted'."),
        ("none", {"n": 5}, "The job has 4 slots, too few for 5 ranks."),
    ],
)
def test_a_start_that_cannot_be_says_why_and_leaves_no_job(network, pbs, file, options, words):
    (pbs / file).touch()
    with pytest.raises(StartFailed) as caught:
        start(network, **options)

    assert words in str(caught.value)
    assert not (pbs / "state").exists()
    gone(network)
