"""MPI jobs on hosts that do not come to their end; see ``test_doctor.py`` for those that do."""

from __future__ import annotations

import re
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain.preflight import speed
from jupyter_dtrain.preflight.doctor import doctor, own_interfaces
from jupyter_dtrain.preflight.findings import Speeds
from jupyter_dtrain.preflight.reach import BySsh
from jupyter_dtrain.preflight.speed import measure
from tests.pace import slack
from tests.processes import processes_of, wait_until_gone
from tests.steward.until import until


def job_is_gone():
    """Whether nothing of the job runs any more."""
    return processes_of("jupyter_dtrain.preflight.speed") == []


def test_a_job_that_cannot_start_gives_the_reason(server):
    found = measure(["a", "b"], BySsh(server.args), python="/no/such/bin/python", timeout=20, network="")

    assert isinstance(found, str)
    assert "prted" in found
    assert found.isprintable()


def test_a_module_of_the_users_does_not_stand_in_for_pythons_own(server, monkeypatch, tmp_path):
    """The ranks run in the folder in which the doctor was called."""
    (tmp_path / "random.py").write_text("raise SystemExit('this is mine')")
    monkeypatch.chdir(tmp_path)
    found = measure(["a", "b"], BySsh(server.args), python=sys.executable, timeout=20, network="")

    assert isinstance(found, Speeds), found


def test_a_rank_that_raises_is_named_with_its_error(server, monkeypatch):
    """Not by what MPI says when it ends the job."""
    fails = "from jupyter_dtrain.preflight import speed; speed.time_all = lambda comm: 1 // (comm.size - 2); "
    monkeypatch.setattr(speed, "CODE", f"{fails}speed.main()")
    found = measure(["a", "b"], BySsh(server.args), python=sys.executable, timeout=20, network="")

    assert re.fullmatch(r"the rank on [ab] raised ZeroDivisionError: .* \(in run, line \d+: found = .*\)", found)


def test_a_rank_that_waits_too_long_tells_where(server, monkeypatch):
    """MPI would say that the alarm clock has ended it."""
    waits = "from jupyter_dtrain.preflight import speed; speed.time_all = lambda _: speed.time.sleep(60); "
    monkeypatch.setattr(speed, "CODE", f"{waits}speed.main()")
    found = measure(["a", "b"], BySsh(server.args), python=sys.executable, timeout=25, network="")

    words = r"its ranks had not ended after 14 s \(the rank on [ab] was in \w+, line \d+: \w.*\)"
    assert re.fullmatch(words, found) or found.startswith("There was no answer within 25 s."), found


def test_a_network_that_goes_away_while_the_job_starts_is_not_missed(server, monkeypatch, passing_network):
    """MPI would have chosen it: a container's, for example, which ends meanwhile."""
    if not [one for one in own_interfaces() if one.up and not one.loopback and not one.name.startswith("dt")]:
        pytest.skip("needs a network that stays")
    ends = (
        "import subprocess; from jupyter_dtrain.preflight import speed; ours = speed.time_all; "
        f"speed.time_all = lambda comm: (subprocess.run({passing_network}, capture_output=True), ours(comm))[1]; "
    )
    monkeypatch.setattr(speed, "CODE", f"{ends}speed.main()")
    examined = doctor("a,b", ssh_args=server.args)

    assert isinstance(examined.speeds, Speeds), examined.findings


def test_where_ranks_do_not_reach_each_other_the_words_begin_with_that(server):
    found = measure(["a", "b"], BySsh(server.args), python=sys.executable, timeout=20, network="nosuch0")

    assert "nosuch0" in found
    assert "unable to reach each other" in found


def test_a_job_that_takes_too_long_ends_on_the_hosts_as_well(server, tmp_path, monkeypatch):
    """The deadline passes while MPI starts. It removes its folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    began = time.monotonic()
    found = measure(["a", "b"], BySsh(server.args), python=sys.executable, timeout=0.8, network="")

    assert found.startswith("There was no answer within 0.8 s.")
    assert time.monotonic() - began < 5 + slack()
    until(job_is_gone)
    assert list(tmp_path.iterdir()) == []


def test_a_job_whose_daemons_hang_is_ended_here_and_on_the_hosts(server, tmp_path, monkeypatch):
    """They are stopped, as they hang at times where a rank aborts: neither mpiexec nor its ssh can end them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # The ranks do not end before their daemons are stopped.
    monkeypatch.setattr(speed, "CODE", f"import time; time.sleep(4); {speed.CODE}")
    frozen = []

    def daemons():
        found = [(one, one.info["cmdline"] or [""]) for one in psutil.process_iter(["cmdline"])]
        return [one for one, words in found if Path(words[0]).name == "prted" and str(tmp_path) in " ".join(words)]

    def freeze():
        for one in until(lambda: len(found := daemons()) == 2 and found):
            one.suspend()
            frozen.append(one)

    thread = threading.Thread(target=freeze)
    thread.start()
    found = measure(["a", "b"], BySsh(server.args), python=sys.executable, timeout=8, network="")
    thread.join()

    assert found.startswith("There was no answer within 8 s.")
    assert len(frozen) == 2
    assert wait_until_gone(str(tmp_path)) == []
