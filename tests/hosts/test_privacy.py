"""The files of a world on another host are for this user alone, and no key is in a place that tells it to others."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain import Session
from tests.hosts.launching import left, start
from tests.hosts.network import Host, Network
from tests.steward.until import steward_of, until

pytestmark = pytest.mark.slow

HIDDEN = "zebra-hidden-value"
"""The value of a variable of ``--env``."""
OF_OTHERS = ("prted.", "profile/startup", "profile/log", "slots")
"""How paths in a world's folder begin that MPI and IPython make with the user's umask, and the name of a socket. They
lie in a folder that is closed to others."""
KEYS_FILE = "profile/engine.json"
"""The one file with the keys of a host's ranks, below the scratch folder."""


@pytest.fixture(scope="module")
def world(network: Network) -> Iterator[Session]:
    """Two ranks on each host, made under a umask that lets others read, after a cell with output."""
    before = os.umask(0o022)
    try:
        session = start(network, env={"SECRET_TOKEN": HIDDEN})
    finally:
        os.umask(before)
    session.run("print('spooled')", view=None)
    yield session
    session.stop()
    until(lambda: left(network) == [])


def entries(host: Host, world: str) -> dict[str, tuple[str, str]]:
    """The permissions and the kind of all that the world has in memory and among the temporary files of a host."""
    script = f"find /dev/shm /tmp -path '*/dtrain-{world}-*' -printf '%m %y %p\\n'"
    lines = host.run(["sh", "-c", script]).stdout.splitlines()
    return {path: (mode, kind) for mode, kind, path in (line.split(" ", 2) for line in lines)}


def keys(session: Session) -> list[str]:
    """The keys of ipyparallel's channels, CurveZMQ's own ones too, and of the steward's."""
    folder = Path(session.request.folder)
    files = [folder / "profile" / "security" / "ipcontroller-engine.json", folder / "steward.json"]
    told = [json.loads(file.read_text()) for file in files]
    return [value for one in told for name, value in one.items() if name == "key" or "curve" in name]


def test_folders_and_files_on_a_host_are_for_this_user_alone(world: Session, network: Network) -> None:
    """0700 and 0600, under a umask that would allow more; the spools, the keys and the logs are among them."""
    for host in network.hosts:
        found = entries(host, world.request.id)
        tops = [path for path in found if path.count("/") == 2 + path.startswith("/dev/")]
        own = {
            path: one
            for path, one in found.items()
            if not any(path.startswith(tuple(f"{top}/{begin}" for begin in OF_OTHERS)) for top in tops)
        }
        names = {path.rpartition("/")[2] for path in own}

        assert len(tops) == 2
        assert {"engine.json", "rank-0.log" if host.name == "gpu1" else "rank-2.log", "slot_holder.py"} <= names
        assert any(name.endswith(".jsonl") for name in names)
        assert {path: one for path, one in own.items() if one not in {("700", "d"), ("600", "f")}} == {}


def test_no_key_is_in_a_log_a_command_line_or_an_environment(world: Session, network: Network) -> None:
    """Neither on a host nor here. One closed file on each host has the keys of its ranks."""
    secrets = keys(world)
    assert len(secrets) >= 3
    for host in network.hosts:
        files = [path for path, (_, kind) in entries(host, world.request.id).items() if kind == "f"]
        having = {path for path in files for secret in secrets if _holds(host, path, secret)}
        assert [path.endswith(f"/{KEYS_FILE}") for path in having] == [True]
        pids = [pid for pid in host.processes() if _told(pid, "environ")]
        told = {pid: _told(pid, "cmdline") + _told(pid, "environ") for pid in pids}
        assert len(told) >= 4
        assert any(HIDDEN.encode() in words for words in told.values()), "the ranks have the variables of --env"
        assert not [pid for pid, words in told.items() for secret in secrets if secret.encode() in words]
        assert not [pid for pid in pids if HIDDEN.encode() in _told(pid, "cmdline")]
        assert not [path for path in files if _holds(host, path, HIDDEN)]
    steward = steward_of(world)
    here = b"".join(_told(one.pid, "cmdline") for one in (steward, *steward.children(recursive=True)))
    logs = [file.read_text(errors="replace") for file in (Path(world.request.folder) / "logs").rglob("*.log")]
    assert b"ssh" in here
    assert logs
    assert not [secret for secret in (*secrets, HIDDEN) if secret.encode() in here or secret in "".join(logs)]


def _holds(host: Host, path: str, text: str) -> bool:
    # The text goes over standard input: grep itself must not show it.
    return host.run(["grep", "-q", "-F", "-f", "-", path], input=text, check=False).returncode == 0


def _told(pid: int, kind: str) -> bytes:
    with contextlib.suppress(OSError, psutil.Error):
        return Path(f"/proc/{pid}/{kind}").read_bytes()
    return b""
