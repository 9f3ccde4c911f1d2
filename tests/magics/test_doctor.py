"""``%distributed doctor`` in a notebook, and its hosts behind a real ssh server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import psutil
import pytest

from jupyter_dtrain.launch.leftovers import MARK
from tests.sshd import SshServer, free_port
from tests.steward.until import runs


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The host a, like this machine, and ``shut``, which has no server."""
    with SshServer(tmp_path_factory.mktemp("sshd"), {"a": {}}) as one:
        one.alias("shut", Port=free_port())
        yield one


def test_this_machine_is_examined_without_a_world(notebook):
    cell = notebook.ok("%distributed doctor")
    [display] = cell.displays

    assert display["data"]["text/plain"].startswith("This machine: no errors")
    assert "<caption>This machine: no errors" in display["data"]["text/html"]


def test_hosts_are_examined_and_findings_have_fixes(notebook, server):
    """An error in a host is a finding: the cell has done its work."""
    cell = notebook.ok(f"%distributed doctor --hosts a:2,shut --ssh-args '{server.args}' --quick")
    [text] = cell.display_texts

    assert text.startswith("This machine and 2 hosts: 1 error, ")
    assert "error    ssh is refused: No ssh server listens where ssh looks for shut." in text
    assert "do:  Start sshd there" in text


def test_a_hostfile_will_do_and_json_is_for_programs(notebook, server, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=2\n")
    cell = notebook.ok(f"%distributed doctor --hostfile {hosts} --ssh-args '{server.args}' --quick --json")
    data = json.loads(cell.out)

    assert (data["ok"], data["hosts"]) == (True, ["a"])
    assert cell.displays == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--hosts a:0", "'a:0' must give a host from 1 to 1024 ranks"),
        ("--hosts a --hostfile b", "Give either hosts or a hostfile, not both."),
        ("--hostfile /no/such/file", "The hostfile /no/such/file cannot be read"),
        ("--hosts a --ssh-args=-N", "ssh's option -N runs no program"),
        ("--interface nope9", "This machine has no interface 'nope9'"),
        ("--host a", "unrecognized arguments"),
        ("--slurm --hosts a:2", "each say where the ranks run: give one of them."),
        ("--slurm --interface lo", "interface is for the launcher 'Hosts over ssh'"),
        ("--hosts a --remove-leftovers", "--remove-leftovers is for this machine alone."),
        ("--slurm --remove-leftovers world", "run `jupyter dtrain doctor --remove-leftovers` in a terminal there."),
        ("-N 2 --partition gpu", "is for the launcher 'Slurm': choose it with slurm."),
        ("--slurm -N 0", "nodes must be a whole number, at least 1"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_words(notebook, line, words):
    cell = notebook.run(f"%distributed doctor {line}")

    assert words in cell.said
    assert "Traceback" not in cell.said


def test_leftovers_are_removed_on_request(notebook):
    """A world is named here, since this user may have other dead ones."""
    world = f"preflight-{uuid.uuid4().hex[:8]}"
    code = (
        "import subprocess as s; "
        "print(s.Popen(['sleep', '120'], stdout=s.DEVNULL, stderr=s.DEVNULL, start_new_session=True).pid)"
    )
    env = os.environ | {MARK: world}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True, timeout=30)
    pid = int(done.stdout)
    try:
        assert world in notebook.ok("%distributed doctor --quick").display_texts[0]
        assert (
            f"this machine: ended process {pid}."
            in notebook.ok(f"%distributed doctor --quick --remove-leftovers {world}").out
        )
        assert not runs(pid)
        again = notebook.ok(f"%distributed doctor --quick --remove-leftovers {world}")
        assert again.lines == ["Worlds that have ended left nothing on this machine."]
    finally:
        if runs(pid):
            psutil.Process(pid).kill()


def test_the_verb_is_completed_and_explained(notebook):
    assert notebook.complete("%distributed doc") == ["doctor"]
    assert {"--hosts", "--hostfile", "--ssh-args", "--slurm", "--partition", "--quick", "--json"} <= set(
        notebook.complete("%distributed doctor --")
    )
    assert "lo" in notebook.complete("%distributed doctor --interface ")
    assert "Examine this machine, or the hosts of a world" in notebook.ok("%distributed doctor -h").out


def test_python_gives_the_same_as_an_object(notebook):
    cell = notebook.ok("import jupyter_dtrain\njupyter_dtrain.doctor(quick=True)")

    assert cell.display_texts[0].startswith("This machine: no errors")
