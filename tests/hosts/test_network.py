"""The hosts that other tests run on: each is a machine of its own, its cable can fail, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.hosts import network as module
from tests.hosts.enclosure import wait_for
from tests.hosts.network import ROOT, Network
from tests.pace import slack


def ssh(network, name, words, *options):
    """A command's end on a host."""
    command = [*network.ssh(name, *options), words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)


def test_hosts_answer_over_ssh_with_their_own_names(network):
    for host in network.hosts:
        assert ssh(network, host.name, "hostname").stdout == f"{host.name}\n"


def test_hosts_have_homes_and_temporary_folders_of_their_own(network, tmp_path):
    own = ["~", "/tmp", "/var/tmp", "/dev/shm", "/run"]
    files = [f"{folder}/of-gpu1" for folder in own]
    (tmp_path / "here").touch()
    ssh(network, "gpu1", f"touch {' '.join(files)}")

    for name, found in (("gpu1", len(files)), ("gpu2", 0)):
        assert len(ssh(network, name, f"ls {' '.join(files)} {tmp_path}/here").stdout.split()) == found
    assert not [file for file in files if Path(file).expanduser().exists()]


def test_hosts_cannot_change_the_files_of_this_machine(network):
    """A test may delete on a host what it likes, as root, too."""
    names = [str(ROOT), "/usr", "/etc", "/var"]
    tried = "; ".join(f"touch {name}/of-a-host && echo {name} can be written" for name in names)

    ended = ssh(network, "gpu1", tried)
    assert ended.stdout == ""
    assert ended.stderr.count("Read-only file system") == len(names)


def test_hosts_share_a_folder_where_one_is_named(able, tmp_path):
    with Network(hosts=1, shared=tmp_path) as network:
        assert ssh(network, "gpu1", f"echo there > {tmp_path}/word").returncode == 0

    assert (tmp_path / "word").read_text() == "there\n"


def test_a_process_of_a_host_is_found_from_here(network):
    with network["gpu1"].popen(["sh", "-c", "echo $$; exec sleep 60"], stdout=subprocess.PIPE) as started:
        inside = int(started.stdout.readline())
        process = psutil.Process(network["gpu1"].pid_here(inside))
        wait_for(lambda: process.name() == "sleep", "It is another process")
        process.kill()

    with pytest.raises(ProcessLookupError, match=f"gpu1 has no process {inside}"):
        network["gpu1"].pid_here(inside)


def test_hosts_have_the_same_python_and_package(network):
    code = f"cd /; PYTHONPATH={ROOT} {sys.executable} -c 'import jupyter_dtrain; print(jupyter_dtrain.__version__)'"
    answers = [ssh(network, host.name, code) for host in network.hosts]

    assert answers[0].stdout, answers[0].stderr
    assert answers[0].stdout == answers[1].stdout


def test_hosts_know_each_others_names_and_this_machine(network):
    listed = ssh(network, "gpu1", "getent hosts gpu1 gpu2 notebook").stdout.split()

    assert listed == [network["gpu1"].address, "gpu1", network["gpu2"].address, "gpu2", network.address, "notebook"]


def test_a_host_sees_its_own_processes_only(network):
    with network["gpu1"].popen(["sleep", "60"]) as sleep:
        wait_for(network["gpu1"].processes, "No process came up")

        assert "sleep 60" in ssh(network, "gpu1", "ps axo args").stdout
        assert "sleep 60" not in ssh(network, "gpu2", "ps axo args").stdout
        assert any(psutil.Process(pid).name() == "sleep" for pid in network["gpu1"].processes())
        for child in psutil.Process(sleep.pid).children():
            child.kill()
    wait_for(lambda: not network["gpu1"].processes(), "The process stays")


def test_a_wrong_host_key_is_refused(network):
    right = network.known_hosts.read_text()
    network.known_hosts.write_text(right.replace(network["gpu2"].public_key, network["gpu1"].public_key))

    try:
        ended = ssh(network, "gpu2", "true")
    finally:
        network.known_hosts.write_text(right)
    assert ended.returncode == 255
    assert "Host key verification failed" in ended.stderr


def test_a_host_that_is_cut_off_does_not_answer_until_it_joins_again(network):
    network["gpu2"].cut()
    try:
        began = time.monotonic()
        ended = ssh(network, "gpu2", "true", "-o", "ConnectTimeout=1")
        took = time.monotonic() - began
    finally:
        network["gpu2"].join()

    assert ended.returncode == 255
    assert "timed out" in ended.stderr or "No route to host" in ended.stderr
    assert took < 3 + slack()
    assert ssh(network, "gpu2", "hostname", "-o", "ConnectTimeout=10").stdout == "gpu2\n"


def test_a_bad_cable_delays_and_loses_and_a_restored_one_does_not(network):
    def seconds():
        began = time.monotonic()
        with socket.create_connection((network["gpu1"].address, 22), 10):
            return time.monotonic() - began

    network["gpu1"].impair(delay=0.05)
    delayed = seconds()
    text = "x" * 1_000_000
    words = ["cat"]
    network["gpu1"].impair(delay=0.001, loss=0.01)
    through = subprocess.run(
        [*network.ssh("gpu1"), *words], input=text, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    network["gpu1"].impair(loss=1.0)
    lost = ssh(network, "gpu1", "true", "-o", "ConnectTimeout=1").returncode
    network["gpu1"].restore()

    assert delayed >= 0.1
    assert through == text
    assert lost == 255
    assert min(seconds() for _ in range(9)) < delayed


def test_a_blocked_port_swallows_what_is_sent_to_it(network):
    code = "import socket; s = socket.create_server(('', 5000)); print('up', flush=True); s.accept(); s.accept()"
    with network["gpu2"].popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == "up\n"
        socket.create_connection((network["gpu2"].address, 5000), 10).close()
        network["gpu2"].impair(block=(5000,))

        with pytest.raises(TimeoutError):
            socket.create_connection((network["gpu2"].address, 5000), 1)
        assert ssh(network, "gpu2", "true").returncode == 0
        network["gpu2"].restore()
        socket.create_connection((network["gpu2"].address, 5000), 10).close()


def test_a_folder_is_hidden_and_a_file_replaced_on_one_host_alone(network):
    network["gpu2"].hide(ROOT / "docs")
    network["gpu2"].replace(ROOT / "README.md", "none")
    words = f"ls {ROOT}/docs; cat {ROOT}/README.md"

    assert ssh(network, "gpu2", words).stdout == "none"
    assert ssh(network, "gpu1", words).stdout.endswith((ROOT / "README.md").read_text())
    assert (ROOT / "README.md").read_text() != "none"


def test_frames_are_captured(network, tmp_path):
    with network["gpu1"].captured(tmp_path / "frames"):
        assert ssh(network, "gpu1", "echo a-word-that-only-this-test-knows").returncode == 0
    frames = (tmp_path / "frames").read_bytes()

    assert b"SSH-2.0-" in frames
    assert b"a-word-that-only-this-test-knows" not in frames


def test_nothing_is_left_when_the_hosts_go(able):
    with Network(hosts=2) as network:
        sleep = network["gpu1"].popen(["sleep", "60"])
        network["gpu2"].impair(delay=0.01)
        wait_for(network["gpu1"].processes, "No process came up")
        inside = [pid for host in network.hosts for pid in host.processes()]
        assert network.link in psutil.net_if_addrs()
    sleep.wait(10)

    assert network.link not in psutil.net_if_addrs()
    assert not network.folder.exists()
    assert not [pid for pid in inside if psutil.pid_exists(pid)]


def test_nothing_is_left_when_their_maker_is_killed(able, tmp_path):
    code = (
        "import sys, time; from tests.hosts.network import Network; network = Network(1).__enter__(); "
        "network['gpu1'].impair(delay=0.01); "
        "print(network.link, network.switch.pid, network['gpu1']._inside.pid, flush=True); time.sleep(60)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as maker:
        link, *pids = maker.stdout.readline().split()
        assert link in psutil.net_if_addrs()
        maker.send_signal(signal.SIGKILL)

    wait_for(lambda: link not in psutil.net_if_addrs(), f"{link} is still there")
    wait_for(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids), "Processes are still there")


def test_a_missing_program_is_named(able, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PATH", str(tmp_path))

    assert module.why_not() == "hosts as network namespaces need ip, nsenter, sshd, ssh, ssh-keygen, tcpdump, unshare"
