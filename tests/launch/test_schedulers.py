"""Jobs of PBS, Grid Engine and LSF, as programs show them that print in the form of the schedulers' manuals."""

from __future__ import annotations

import os
import time

import pytest

from jupyter_dtrain import BadRequest
from jupyter_dtrain.launch import options
from jupyter_dtrain.launch.batch import schedulers
from jupyter_dtrain.launch.batch.launcher import BatchOptions, place
from jupyter_dtrain.launch.batch.schedulers import Job, Unanswered

PBS = """Job Id: 12.server
    Job_Name = dtrain-world
    job_state = R
    exec_host = gpu1/0*8+gpu2/0
\t*8
    comment = Job run at Tue Nov 24
    Resource_List.walltime = 01:00:00
    resources_used.walltime = 00:10:00
"""
SGE = """<?xml version='1.0'?>
<job_info><queue_info>
<job_list state="running"><JB_job_number>12</JB_job_number><state>r</state>
<queue_name>all.q@gpu1</queue_name><master>MASTER </master><slots>1</slots></job_list>
<job_list state="running"><JB_job_number>12</JB_job_number><state>r</state>
<queue_name>all.q@gpu1</queue_name><master>SLAVE </master><slots>1</slots></job_list>
<job_list state="running"><JB_job_number>12</JB_job_number><state>r</state>
<queue_name>all.q@gpu2</queue_name><master>SLAVE </master><slots>1</slots></job_list>
<job_list state="running"><JB_job_number>13</JB_job_number><state>r</state>
<queue_name>all.q@gpu3</queue_name><master>MASTER </master><slots>1</slots></job_list>
</queue_info><job_info>
<job_list state="pending"><JB_job_number>14</JB_job_number><state>qw</state><queue_name></queue_name></job_list>
<job_list state="pending"><JB_job_number>15</JB_job_number><state>Eqw</state><queue_name></queue_name></job_list>
</job_info></job_info>
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a program on PATH that prints: ``program(name, output, errors="", code=0)``."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def make(name, output, errors="", code=0):
        (tmp_path / "output").write_text(output)
        (tmp_path / "errors").write_text(errors)
        script = f"#!/bin/sh\ncat {tmp_path}/output; cat {tmp_path}/errors >&2; exit {code}\n"
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)

    return make


def test_pbs_tells_hosts_and_time(program):
    program("qstat", PBS)
    job = schedulers.ask_pbs("12")

    assert (job.state, job.hosts) == ("runs", {"gpu1": 8, "gpu2": 8})
    assert job.ends - time.time() == pytest.approx(50 * 60, abs=5)


@pytest.mark.parametrize(
    ("where", "hosts"),
    [
        ("gpu1/0+gpu1/1+gpu2/0", {"gpu1": 2, "gpu2": 1}),
        ("gpu1/0-7+gpu2/4", {"gpu1": 8, "gpu2": 1}),
        ("gpu1.site.org/3*4", {"gpu1.site.org": 4}),
    ],
)
def test_each_pbs_has_its_own_form_of_hosts(program, where, hosts):
    """OpenPBS gives the number of slots, Torque each slot or a range of them."""
    program("qstat", f"Job Id: 1\n    job_state = R\n    exec_host = {where}\n")

    assert schedulers.ask_pbs("1").hosts == hosts


def test_pbs_says_why_a_job_waits_and_that_it_is_over(program):
    program("qstat", "Job Id: 1\n    job_state = Q\n    comment = Not Running: Not enough free nodes available.\n")
    assert schedulers.ask_pbs("1") == Job("waits", reason="Not Running: Not enough free nodes available")
    program("qstat", "", "qstat: Unknown Job Id 1.server\n", 153)
    assert schedulers.ask_pbs("1").state == "over"
    program("qstat", "", "qstat: cannot connect to server\n", 111)
    with pytest.raises(Unanswered, match="cannot connect to server"):
        schedulers.ask_pbs("1")


@pytest.mark.parametrize(
    ("number", "state", "hosts"),
    [
        ("12", "runs", {"gpu1": 1, "gpu2": 1}),
        ("13", "runs", {"gpu3": 1}),
        ("14", "waits", {}),
        ("15", "over", {}),
        ("16", "over", {}),
    ],
)
def test_grid_engine_has_an_entry_for_each_slot(program, number, state, hosts):
    """The master's own entry is no slot of a parallel job."""
    program("qstat", SGE)
    job = schedulers.ask_sge(number)

    assert (job.state, job.hosts) == (state, hosts)


@pytest.mark.parametrize(
    ("line", "job"),
    [
        ("RUN^8*gpu1:8*gpu2^-^-^-", Job("runs", {"gpu1": 8, "gpu2": 8})),
        ("RUN^gpu1^-^-^-", Job("runs", {"gpu1": 1})),
        ("PEND^-^-^Not enough slots;^-", Job("waits", reason="Not enough slots")),
        ("EXIT^gpu1^-^-^TERM_RUNLIMIT", Job("over", reason="TERM_RUNLIMIT")),
        ("DONE^gpu1^-^-^-", Job("over", reason="its state is DONE")),
    ],
)
def test_lsf_tells_all_in_a_line(program, line, job):
    program("bjobs", f"{line}\n")

    assert schedulers.ask_lsf("1") == job


def test_lsf_knows_how_long_a_job_may_run(program):
    program("bjobs", "RUN^gpu1^1:30 L^-^-\n")

    assert schedulers.ask_lsf("1").ends - time.time() == pytest.approx(90 * 60, abs=5)


def test_a_missing_or_silent_scheduler_is_named(program, monkeypatch):
    monkeypatch.setattr(schedulers, "PATIENCE", 0.5)
    with pytest.raises(Unanswered, match="This machine has no qstat"):
        schedulers.run(["qstat"])
    program("qstat", "")
    with pytest.raises(Unanswered, match="has given no answer"):
        schedulers.run(["sleep", "60"])


def test_the_slots_of_ones_own_job_are_known(tmp_path, monkeypatch):
    nodes = tmp_path / "nodes"
    nodes.write_text("gpu1\ngpu1\ngpu2\n")
    monkeypatch.setenv("PBS_NODEFILE", str(nodes))
    assert schedulers.SCHEDULERS["pbs"].slots() == {"gpu1": 2, "gpu2": 1}
    assert place(None, BatchOptions(scheduler="pbs")).size == 3
    nodes.write_text("gpu1 8 all.q@gpu1 UNDEFINED\ngpu2 4 all.q@gpu2 UNDEFINED\n")
    monkeypatch.setenv("PE_HOSTFILE", str(nodes))
    assert schedulers.SCHEDULERS["sge"].slots() == {"gpu1": 8, "gpu2": 4}
    monkeypatch.setenv("LSB_MCPU_HOSTS", "gpu1 8 gpu2 4")
    assert schedulers.SCHEDULERS["lsf"].slots() == {"gpu1": 8, "gpu2": 4}
    with pytest.raises(BadRequest, match="This job has 12 slots, too few for 13 ranks"):
        place(13, BatchOptions(scheduler="lsf"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"scheduler": "pbs"}, "Say how many ranks the job has room for with -n."),
        ({"scheduler": "pbs", "job": "'"}, "cannot be split"),
        ({"scheduler": "pbs", "job": "job.sh", "n": 2}, "'job.sh' is no option of a job"),
        ({"scheduler": "moon", "n": 2}, "scheduler must be pbs, sge or lsf, not 'moon'."),
        ({"job": "-q gpu"}, "job is for the launcher 'PBS, Grid Engine or LSF': choose it with scheduler."),
    ],
)
def test_a_request_that_cannot_be_is_refused_in_words(values, words):
    def request():
        asked = options.check(values)
        asked.launcher.place(asked.world.n, asked.launcher_options)

    with pytest.raises(BadRequest) as caught:
        request()

    assert words in str(caught.value)


def test_launchers_share_options_of_ssh():
    """Both worlds are reached by ssh."""
    asked = options.check({"scheduler": "pbs", "n": 2, "ssh_args": "-p 2222"})

    assert asked.launcher.name == "batch"
    assert asked.launcher_values["ssh_args"] == "-p 2222"
    assert "ssh_args" in options.schema("batch")["properties"]
    assert "ssh_args" in options.schema("hosts")["properties"]
