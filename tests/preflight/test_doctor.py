"""The examination of hosts behind a real ssh server, with each thing that can be wrong there."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from jupyter_dtrain.cli import main
from jupyter_dtrain.core.errors import BadRequest, StartFailed
from jupyter_dtrain.launch.networks import local_address
from jupyter_dtrain.preflight.doctor import doctor, examine, judge
from jupyter_dtrain.preflight.findings import HERE, Chosen, Scene
from jupyter_dtrain.preflight.networks import ways_to
from jupyter_dtrain.preflight.probe import Facts
from jupyter_dtrain.preflight.reach import BySsh
from jupyter_dtrain.preflight.tcp_check import try_connections
from tests.pace import slack
from tests.processes import processes_of
from tests.steward.until import until

LOOPBACK = Chosen("lo", "127.0.0.1", loopback=True)
BROKEN = ("a", "bare", "old", "shut", "changed")


@pytest.fixture(scope="module")
def broken(server):
    """An examination of hosts of which most are broken, each in its own way."""
    return examine(dict.fromkeys(BROKEN, 1), BySsh(server.args, "python3"), quick=True)


@pytest.fixture(scope="module")
def whole(server):
    """A full examination of two hosts."""
    return doctor("a:2,b:2", ssh_args=server.args)


def about(examination, host, severity="error"):
    """The findings about one host alone."""
    return [one for one in examination.findings if one.where == [host] and one.severity == severity]


def test_two_hosts_that_are_fine_have_no_error(whole):
    assert whole.ok
    assert whole.hosts == ["a", "b"]
    assert [type(one) for one in whole.machines.values()] == [Facts] * 3
    # This user may have dead worlds, such as those of other tests, which are warnings of their own.
    warnings = [one.what for one in whole.findings if one.severity == "warning" and "ead worlds" not in one.what]
    assert warnings == ["a, b are one machine."]
    assert any(one.what == "TCP works from each host to all machines (4 connections tried)." for one in whole.findings)
    assert any(one.what.startswith("All-reduce over all hosts: ") for one in whole.findings)
    assert any("All hosts see the working directory" in one.what for one in whole.findings)
    assert whole.check() is None


def test_all_reduces_between_hosts_are_timed(whole):
    assert whole.timed == ["a", "b"]
    assert 0 < whole.speeds.small < whole.speeds.large < 5
    assert json.loads(whole.to_json())["speeds"]["large"] > 0


def test_each_broken_host_has_one_finding(broken):
    [bare] = about(broken, "bare")
    [shut] = about(broken, "shut")
    [changed] = about(broken, "changed")

    assert bare.what == "The package jupyter_dtrain is missing on bare."
    assert "`python3 -m pip install jupyter-dtrain==" in bare.fix
    assert shut.what.startswith("ssh is refused:")
    assert changed.what.startswith("The key of a host has changed:")
    assert "ssh-keygen" in changed.fix
    # Without torch here, the host that says it has an old one is the only one that has it.
    assert [one for one in about(broken, "a") if not one.what.startswith("torch is missing")] == []
    assert not broken.ok


def test_other_versions_on_a_host_are_named(broken):
    torch = [one for one in about(broken, "old") if "torch" in one.what]
    # A warning where the version here differs in its last number alone.
    told = [*about(broken, "old"), *about(broken, "old", "warning")]
    [ipyparallel] = [one for one in told if "ipyparallel" in one.what]

    assert ipyparallel.what.endswith("; 9.2.99 on old.")
    if "torch" in broken.machines["a"].packages:
        assert torch[0].what.endswith("; 1.9.0 on old.")


def test_a_world_does_not_start_on_broken_hosts(broken):
    with pytest.raises(StartFailed) as caught:
        broken.check()

    assert caught.value.option == "hosts"
    for words in ("missing on bare", "ssh is refused", "key of a host has changed"):
        assert words in str(caught.value)


def test_the_table_is_text_and_html_and_json(broken):
    text = str(broken)
    html = broken._repr_mimebundle_()["text/html"]
    data = json.loads(broken.to_json())

    assert text.startswith("This machine and 5 hosts: ")
    assert max(map(len, text.splitlines())) <= 110
    assert "<th scope='col' style='text-align:left'>what to do</th>" in html
    assert data["ok"] is False
    assert {"severity", "what", "where", "why", "fix"} == set(data["findings"][0])
    assert data["machines"]["a"]["packages"]["ipyparallel"].startswith("9.")
    assert data["machines"]["shut"]["kind"] == "refused"


def test_nothing_of_an_examination_stays(whole, broken, server):
    """No ssh, no listener, no file in the working directory."""
    until(lambda: [one for one in processes_of(str(server.config)) if "sshd" not in one] == [])
    until(lambda: processes_of("main(sys.stdin.readline())") == [])

    assert list(Path.cwd().glob(".dtrain-preflight-*")) == []


def test_a_missing_interpreter_is_one_finding_for_all_hosts(server):
    found = doctor("a,b", ssh_args=server.args, python="/no/such/python", quick=True)
    [one] = found.errors

    assert one.where == ["a", "b"]
    assert one.what.startswith("The Python interpreter is missing: /no/such/python cannot be run there")
    assert "--python" in one.fix


def test_a_host_behind_a_firewall_is_named_with_those_that_cannot_reach_it(server):
    """That host has a network of its own; the connections are refused or lost."""
    if os.getuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs root, unshare and ip for a host with a network of its own")
    chosen = dict.fromkeys([HERE, "a", "alone"], LOOPBACK)
    tried = try_connections(chosen, BySsh(server.args, "python3"), timeout=20)
    failed = {(one.source, one.target): one.failure for one in tried if one.failure}

    assert failed == {
        ("a", "alone"): "Connection refused",
        ("alone", HERE): "Connection refused",
        ("alone", "a"): "Connection refused",
    }
    found = doctor("a,alone", ssh_args=server.args, python="python3", quick=True)
    [one] = [one for one in found.errors if "alone" in one.where]
    assert one.what == "No interface with an address is up on alone."


def test_an_address_that_a_machine_does_not_have_cannot_be_listened_on(server):
    chosen = {HERE: LOOPBACK, "a": Chosen("eth9", "198.51.100.1")}
    [one] = try_connections(chosen, BySsh(server.args, "python3"), timeout=20)

    assert (one.target, one.failure) == ("a", "cannot listen: Cannot assign requested address")


def test_a_listener_that_does_not_come_up_costs_its_share_of_the_time(server):
    began = time.monotonic()
    tried = try_connections({HERE: LOOPBACK, "shut": LOOPBACK}, BySsh(server.args, "python3"), timeout=10)

    assert [(one.target, one.failure.startswith("cannot listen")) for one in tried] == [("shut", True)]
    assert time.monotonic() - began < 10 + slack()


def test_an_interface_that_this_machine_lacks_is_refused(server):
    with pytest.raises(BadRequest, match=r"This machine has no interface 'nope9'\. It can use: .*lo") as caught:
        doctor("a", ssh_args=server.args, python="python3", interface="nope9")

    assert caught.value.option == "interface"


def test_the_interface_that_leads_to_a_host_is_found_through_the_configuration_of_ssh(server):
    """An alias leads to its HostName, and a jump host hides the way."""
    here = doctor(quick=True).machines[HERE].interfaces
    server.alias("jumped", HostName="127.0.0.1", ProxyJump="a")
    server.alias("lost", HostName="no-such-host.invalid")
    found = ways_to(["a", "jumped", "lost"], here, BySsh(server.args))

    assert found == {"a": LOOPBACK, "jumped": None, "lost": None}
    assert local_address("127.0.0.1") == "127.0.0.1"
    assert local_address("") is None


def test_this_machine_alone_can_be_examined():
    found = doctor()

    assert (found.hosts, list(found.machines)) == ([], [HERE])
    assert found.ok
    assert str(found).startswith("This machine: no errors")


def test_nodes_of_slurm_need_a_slurm(tmp_path, monkeypatch, capsys):
    """From Python and from a terminal: one sentence with the fix."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartFailed, match=r"This machine has no Slurm: sbatch, .* cannot be found\. Start ") as caught:
        doctor(slurm=True, nodes=2)

    assert caught.value.option == "slurm"
    assert main(["doctor", "--slurm", "-N", "2"]) == 1
    assert capsys.readouterr().err.startswith("jupyter dtrain: This machine has no Slurm: ")


def test_hosts_and_hostfile_exclude_each_other(tmp_path):
    with pytest.raises(BadRequest, match="not both"):
        doctor("a", hostfile=tmp_path / "hosts")


def test_leftovers_of_a_dead_world_are_found_on_a_host(server, orphan, world):
    """The same machine by three names has them once. The finding of a host has the line that ends them there."""
    pid = orphan(world)
    found = doctor("a,b", ssh_args=server.args, python="python3", quick=True)
    mine = {name: [one.pid for one in facts.leftovers if one.world == world] for name, facts in found.machines.items()}
    told = [one for one in found.findings if "Processes of dead worlds" in one.what and world in one.what]
    del found.machines[HERE]
    [there] = [one for one in judge(Scene(found.machines)) if "Processes of dead worlds" in one.what]

    assert mine == {HERE: [pid], "a": [pid], "b": [pid]}
    assert [one.where for one in told] == [[HERE]]
    assert told[0].fix.startswith("%distributed doctor --remove-leftovers ends them, after")
    assert there.where == ["a"]
    assert there.fix.startswith("`jupyter dtrain doctor --remove-leftovers`, in a terminal there, ends them, after")
