"""Hosts for the examination: one ssh server, whose ports count as hosts; and worlds that never were."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import psutil
import pytest

from jupyter_dtrain.launch.leftovers import MARK
from tests.sshd import SshServer, free_port, path_of_tests
from tests.steward.until import runs


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory):
    """A Python without any package."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def old_packages(tmp_path_factory):
    """A folder that says that other versions are installed, as an older installation would."""
    folder = tmp_path_factory.mktemp("old")
    for name, version in (("torch", "1.9.0"), ("ipyparallel", "9.2.99")):
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory, bare_python, old_packages):
    """The hosts a and b, like this machine; ``bare`` lacks the package, ``old`` has others, ``shut`` has no server.

    ``python3`` is this Python on all of them but ``bare``.
    """
    folder = tmp_path_factory.mktemp("sshd")
    ours = tmp_path_factory.mktemp("bin")
    (ours / "python3").symlink_to(sys.executable)
    path = f"{ours}:/usr/bin:/bin"
    hosts = {
        "a": {"PATH": path},
        "b": {"PATH": path},
        "bare": {"PATH": f"{bare_python.parent}:/usr/bin:/bin", "PYTHONPATH": ""},
        "old": {"PATH": path, "PYTHONPATH": f"{old_packages}:{path_of_tests()}"},
        "alone": {"PATH": path, "ForceCommand": ALONE},
    }
    with SshServer(folder, hosts) as one:
        one.alias("shut", Port=free_port())
        one.alias("changed", Port=one.ports["a"], HostKeyAlias="changed")
        one.trust("changed", "other")
        yield one


ALONE = 'exec unshare -n sh -c "ip link set lo up; $SSH_ORIGINAL_COMMAND"'
"""Programs of that host have a network of their own, without a way out: as behind a firewall."""


@pytest.fixture
def orphan(tmp_path):
    """Starts a process with the mark of a dead world: ``orphan(world, *argv) -> process id``. No daemon is above it."""
    started = []

    def start(world, *words):
        code = "import time; time.sleep(120)"
        launch = (
            "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], "
            "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True).pid)"
        )
        answer = subprocess.run(
            [sys.executable, "-c", launch, code, *words],
            env=os.environ | {MARK: world},
            capture_output=True,
            check=True,
            timeout=30,
            text=True,
        )
        started.append(psutil.Process(int(answer.stdout)))
        return started[-1].pid

    yield start
    for process in started:
        if runs(process):
            process.kill()


@pytest.fixture
def world():
    """An id that no world has."""
    return f"preflight-{uuid.uuid4().hex[:8]}"
