"""Worlds in jobs of a scheduler, on real hosts: programs named as its own run the job's script on a host.

No PBS, Grid Engine or LSF runs here: these programs answer in the form of their manuals.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain import Session, StartFailed
from jupyter_dtrain.core.errors import WorldLost
from tests.hosts.launching import PATIENCE, SETTINGS, left, values
from tests.pace import slack
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
SGE_QSTAT = """#!/bin/sh
echo "<?xml version='1.0'?><job_info><queue_info>"
if [ -e {folder}/state ]; then
    for host in gpu1 gpu1 gpu2 gpu2; do
        echo "<job_list state='running'><JB_job_number>12</JB_job_number><state>r</state>"
        echo "<queue_name>all.q@$host</queue_name><master>SLAVE</master><slots>1</slots></job_list>"
    done
fi
echo "</queue_info><job_info/></job_info>"
"""
LSF_BJOBS = """#!/bin/sh
[ -e {folder}/state ] || {{ echo "Job <12> is not found" >&2; exit 255; }}
echo "RUN^2*gpu1:2*gpu2^-^-^-"
"""
SGE_QSUB = QSUB.replace("echo 12.server", """echo 'Your job 12 ("dtrain-world") has been submitted'""")
# bsub reads the script, whose copy the host gets.
LSF_BSUB = QSUB.replace("for script; do :; done", 'script="$folder/job"; cat > "$script"').replace(
    "echo 12.server", "echo 'Job <12> is submitted to default queue <normal>.'"
)
PROGRAMS = {
    "pbs": {"qsub": QSUB, "qstat": QSTAT, "qdel": QDEL},
    "sge": {"qsub": SGE_QSUB, "qstat": SGE_QSTAT, "qdel": QDEL},
    "lsf": {"bsub": LSF_BSUB, "bjobs": LSF_BJOBS, "bkill": QDEL},
}
HOSTS = ["gpu1", "gpu2"]
EXAMINES = "examining the nodes"
SOON = 8.0
"""Seconds for the end of a wait on a busy machine; the examination would last longer."""


WHERE = "import os, socket; socket.gethostname(), os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE']"


@pytest.fixture
def install(network, tmp_path, monkeypatch):
    """Installs the programs of a scheduler, and gives the folder for what it knows.

    The file ``busy`` keeps jobs in the queue, ``refuses`` refuses them. With ``mumbles`` a job gets no number.
    """

    def make(kind):
        programs = tmp_path / "programs"
        programs.mkdir()
        host = shlex.join(network["gpu1"].command(["setsid"]))
        for name, text in PROGRAMS[kind].items():
            (programs / name).write_text(text.format(folder=shlex.quote(str(tmp_path)), host=host))
            (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        return tmp_path

    return make


@pytest.fixture
def pbs(install):
    """The folder of a PBS."""
    return install("pbs")


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
        copied = session.sync(pbs / "options")
        seen = values(session.run(f"open({str(pbs / 'options')!r}).read()"))
    assert found == {0: ("gpu1", "0", "4"), 1: ("gpu1", "1", "4"), 2: ("gpu2", "0", "4"), 3: ("gpu2", "1", "4")}
    assert any("job 12 waits in PBS: Not Running: Not enough free nodes available" in text for text in said)
    options = (pbs / "options").read_text()
    assert options.startswith("-l select=2:ncpus=2 -q gpu ")
    assert [(one.host, one.files, one.words) for one in copied.hosts] == [(host, 1, "copied") for host in HOSTS]
    assert seen == dict.fromkeys(range(4), options)
    for host in network.hosts:
        host.run(["rm", "-rf", f"/tmp/{pbs.parts[2]}"])
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


@pytest.mark.parametrize(
    "kind", ["pbs", pytest.param("sge", marks=pytest.mark.slow), pytest.param("lsf", marks=pytest.mark.slow)]
)
def test_a_broken_host_ends_the_start_with_its_finding(network, install, kind):
    """The reason names the host, and says why it matters and what to do. No rank has started, and the job is gone."""
    folder = install(kind)
    said = []
    with network["gpu2"].without_package(), pytest.raises(StartFailed) as caught:
        start(network, scheduler=kind, progress=said.append)

    reason = caught.value.reason
    assert "did not start. The package jupyter_dtrain is missing on gpu2. A rank cannot start without it" in reason
    assert caught.value.cure.startswith("Install it there: `")
    assert any(EXAMINES in text for text in said)
    assert not any("ranks have" in text for text in said)
    assert (folder / "deleted").read_text() == "12\n"
    assert not (folder / "state").exists()
    gone(network)


@pytest.mark.slow
def test_a_job_outlives_a_start_that_its_hosts_fail(network, pbs, monkeypatch):
    """Inside an existing job the finding is the same; nobody deletes that job, and none is submitted."""
    (pbs / "nodes").write_text("gpu1\ngpu2\n")
    monkeypatch.setenv("PBS_NODEFILE", str(pbs / "nodes"))
    with network["gpu2"].without_package(), pytest.raises(StartFailed, match="is missing on gpu2"):
        start(network, n=None)

    assert not (pbs / "options").exists()
    assert not (pbs / "deleted").exists()
    gone(network)


@pytest.mark.slow
def test_a_job_that_is_deleted_during_the_examination_is_the_reason(network, pbs):
    """And not its hosts, which answer no more."""
    deleted = []

    def say(text):
        if EXAMINES in text and not deleted:
            deleted.append(text)
            (pbs / "state").unlink()

    with network["gpu2"].without_package(), pytest.raises(StartFailed) as caught:
        start(network, progress=say)

    assert "PBS's job 12 is over: PBS no longer knows it" in caught.value.reason
    assert "gpu2" not in caught.value.reason
    gone(network)


@pytest.mark.slow
def test_a_stop_ends_the_examination_and_its_job(network, pbs):
    """At once, although a host does not answer."""
    interpreter = Path(sys.executable).resolve()
    gpu2 = network["gpu2"]
    gpu2.replace(interpreter, "#!/bin/sh\nexec sleep 100\n")
    began = []

    def say(text):
        if EXAMINES in text and not began:
            began.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            start(network, progress=say)
        seconds = time.monotonic() - began[0]
        until(lambda: (pbs / "deleted").exists() and not (pbs / "state").exists())
    finally:
        gpu2.run(["umount", str(interpreter)])

    assert seconds < SOON + slack()
    gone(network)
