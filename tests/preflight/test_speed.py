"""MPI jobs on hosts that do not come to their end; see ``test_doctor.py`` for those that do."""

from __future__ import annotations

import sys
import time

from jupyter_dtrain.preflight.reach import BySsh
from jupyter_dtrain.preflight.speed import measure
from tests.pace import slack
from tests.processes import processes_of
from tests.steward.until import until


def job_is_gone():
    """Whether nothing of the job runs any more."""
    return processes_of("jupyter_dtrain.preflight.allreduce") == []


def test_a_job_that_cannot_start_gives_the_reason(server):
    found = measure(["a", "b"], BySsh(server.args), python="/no/such/bin/python", timeout=20, interface=None)

    assert isinstance(found, str)
    assert "prted" in found
    assert found.isprintable()


def test_a_job_that_takes_too_long_ends_on_the_hosts_as_well(server, tmp_path, monkeypatch):
    """The deadline passes while MPI starts. It removes its folders."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    began = time.monotonic()
    found = measure(["a", "b"], BySsh(server.args), python=sys.executable, timeout=0.8, interface=None)

    assert found == "There was no answer within 0.8 s."
    assert time.monotonic() - began < 5 + slack()
    until(job_is_gone)
    assert list(tmp_path.iterdir()) == []
