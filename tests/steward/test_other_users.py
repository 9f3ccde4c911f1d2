"""Another user of the host reads nothing of a world, changes nothing in it, and reaches none of its servers."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain.rank.plugins import Plugins
from tests.steward.until import child_named, family, state_of

ROOT = Path(__file__).parents[2]

HIDDEN = "correct-horse-0b7d"
STRANGER = 65534
"""The user ``nobody``, whom every system has, and who owns nothing."""


BECOME = """
import encodings.idna, json, os, socket, stat, sys
user = int(sys.argv.pop(1))
if user != os.geteuid():
    os.setgroups([]), os.setresgid(user, user, user), os.setresuid(user, user, user)
"""
"""It imports first: that user may not be allowed to read this Python."""


def run_as(user: int, code: str, *args: object) -> str:
    """The output of ``code`` as that user, in a folder and an environment that give nothing away."""
    ended = subprocess.run(
        [sys.executable, "-I", "-c", BECOME + code, str(user), *map(str, args)],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module", autouse=True)
def able() -> None:
    """Only root may become another user."""
    if os.geteuid() != 0:
        pytest.skip("acting as another user needs root")


@pytest.fixture(scope="module")
def session(launch):
    """A world in folders whose parents every user may enter, made under the usual umask."""
    folder = Path(tempfile.mkdtemp(prefix="open-"))
    folder.chmod(0o755)
    before = os.umask(0o022)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
            patch.setenv("JUPYTER_DATA_DIR", str(folder / "data"))
            session = launch(n=2, env={"SECRET_TOKEN": HIDDEN})
            session.run("secret = 'my-own-source'; print('spooled')", view=None)
            yield session
            session.stop()
    finally:
        os.umask(before)
        shutil.rmtree(folder)


def belongings(session) -> list[str]:
    """All files, folders and sockets of the world, and what its processes hold open of their own."""
    request = session.request
    tops = [Path(top) for top in (request.folder, request.sockets, request.scratch, request.spool, request.store)]
    found = {str(path) for top in tops for path in [top, *top.rglob("*")]}
    for process in family(session):
        held = [file.path for file in process.open_files()] + [area.path for area in process.memory_maps()]
        found |= {path for path in held if path.startswith(("/tmp/", "/dev/shm/", "/var/tmp/"))}
    software = {Path(word).resolve() for word in (sys.prefix, ROOT)}  # it may lie among the temporary files
    return sorted(path for path in found if Path(path).exists() and software.isdisjoint(Path(path).resolve().parents))


READ = """
for path in json.load(open(sys.argv[1])):
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            os.listdir(path)
        elif stat.S_ISSOCK(kind):
            socket.socket(socket.AF_UNIX).connect(path)
        else:
            open(path, "rb").read(1)
    except OSError:
        continue
    print(path)
"""
"""Prints the paths that it may read or connect to."""


def test_no_file_and_no_socket_is_open_to_another_user(session) -> None:
    """The test looks at the run-time folder, the spool, the store, shared memory and temporary files."""
    paths = belongings(session)
    given = Path(tempfile.mkstemp()[1])
    given.write_text(json.dumps(paths))
    given.chmod(0o644)
    try:
        mine, theirs = run_as(0, READ, given), run_as(STRANGER, READ, given)
    finally:
        given.unlink()
    sockets = [path for path in paths if stat.S_ISSOCK(Path(path).stat().st_mode)]

    assert len(sockets) > 20, sockets
    assert set(paths) - set(mine.splitlines()) <= set(sockets)  # no process listens on some yet
    assert theirs == ""


def test_no_socket_is_without_a_file(session) -> None:
    """A unix socket with an abstract name would be open to every user."""
    inodes = set()
    for process in family(session):
        links = [str(entry.readlink()) for entry in Path(f"/proc/{process.pid}/fd").iterdir() if entry.is_symlink()]
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    mine = [row for row in rows if row[6] in inodes]

    assert len(mine) > 20
    assert [row[7] for row in mine if len(row) > 7 and row[7].startswith("@")] == []


LOOK = """
LOOKS = dict.fromkeys(("cmdline", "environ", "maps", "io", "stack"), lambda path: open(path).read())
LOOKS |= {"fd": os.listdir, "cwd": os.readlink, "root": os.readlink}
for pid in sys.argv[2:]:
    for part, look in LOOKS.items():
        path = f"/proc/{pid}/{part}"
        try:
            seen = look(path)
        except OSError:
            continue
        if part != "cmdline" or sys.argv[1] in seen or "my-own-source" in seen:
            print(path)
"""
"""Prints what it sees of processes, beside their harmless command lines."""


def test_processes_show_another_user_nothing(session) -> None:
    """No value of --env, and no source, in a command line; all else is closed."""
    pids = [process.pid for process in family(session)]

    assert "/environ" in run_as(0, LOOK, HIDDEN, *pids)
    assert run_as(STRANGER, LOOK, HIDDEN, *pids) == ""


CALL = """
for port in sys.argv[2:]:
    with socket.create_connection(("127.0.0.1", int(port)), 30) as one:
        one.settimeout(30)
        try:
            one.sendall(bytes.fromhex(sys.argv[1]))
            print(port, one.recv(100).hex() or "closed")
        except ConnectionError:
            print(port, "closed")
"""
"""Says the same at each port, and prints the answer."""


def ports(process: psutil.Process) -> list[int]:
    """The TCP ports on which the process listens."""
    found = process.net_connections(kind="tcp")
    return sorted({one.laddr.port for one in found if one.status == psutil.CONN_LISTEN})


def servers(session, part: str) -> list[psutil.Process]:
    """The steward's children that run the module ``part``."""
    return [one for one in family(session)[0].children() if any(part in word for word in one.cmdline())]


def closed(numbers: list[int]) -> str:
    """The output of a stranger who gets no answer."""
    return "".join(f"{port} closed\n" for port in numbers)


def test_another_user_starts_no_server(session) -> None:
    """The steward hears the first connection to its addresses, and turns it away; then one of its own user's."""
    found = ports(family(session)[0])

    assert len(found) == 1 + len(Plugins.load().servers())
    assert run_as(STRANGER, CALL, "00", *found) == closed(found)
    assert servers(session, "torch.store") + servers(session, "jax.coordinator") == []


PING = struct.pack("=BIBI", 0, 0x3C85F7CE, 13, 4711)
"""Bytes for a store of torch: a client's greeting, and a ping, which the store answers with the ping's number."""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_s_store_answers_this_user_alone(session) -> None:
    """Another user's connections are closed, though it writes before they are; a group is still set up."""
    session.run("import os; port = os.environ['MASTER_PORT']", view=None)
    port = int(session["port"][0])

    assert run_as(0, CALL, PING.hex(), port) == f"{port} {struct.pack('=I', 4711).hex()}\n"
    assert run_as(STRANGER, CALL, PING.hex(), port) == closed([port])
    assert session.run(SET_UP_TORCH, view=None).outcome == "ok"


SET_UP_TORCH = "import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier()"
SET_UP_JAX = """
import jax, numpy
from jax.experimental import multihost_utils
jax.config.update("jax_platforms", "cpu")
jax.distributed.initialize()
count = len(jax.devices())
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_jax_s_coordinator_hears_ranks_alone(session) -> None:
    """The coordinator ignores other users and lines without the secret, and a live world goes on."""
    session.run(SET_UP_JAX, view=None)
    coordinator = child_named(session, "jax.coordinator")
    found = ports(coordinator)
    meeting = [port for port in found if port in ports(family(session)[0])]
    ending = json.dumps({"meeting": "x", "rank": 0, "size": 1, "comes": True}).encode() + b"\n"

    assert len(found) == 2  # where they meet, and JAX's own
    assert run_as(STRANGER, CALL, ending.hex(), *found) == closed(found)
    assert run_as(0, CALL, ending.hex(), *meeting) == closed(meeting)
    # JAX's own answers as HTTP/2 does, and so this user's connection got as far as that.
    assert "closed" not in run_as(0, CALL, ending.hex(), *set(found) - set(meeting))
    code = "total = float(multihost_utils.process_allgather(numpy.ones(1)).sum())"
    assert session.run(code, view=None).outcome == "ok"
    assert session["total"] == {0: 2.0, 1: 2.0}
    assert state_of(session).phase == "running"


def test_after_a_restart_the_old_ranks_sockets_are_gone(session) -> None:
    """Each set of ranks has its own; clients of the old ones must not meet the new."""
    folder = Path(session.request.sockets)
    before = {path.name for path in folder.glob("c*:*")}
    session.restart()
    after = {path.name for path in folder.glob("c*:*")}

    assert len(before) == len(after) > 10
    assert before & after == set()
    assert session.run("1", view=None).outcome == "ok"
