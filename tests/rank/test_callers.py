"""The owner of a connection is known. Another user's connections are tested in tests/steward/test_other_users.py."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys

import pytest

from jupyter_dtrain.rank import callers
from jupyter_dtrain.rank.callers import is_own, own_waits


def does_not_tell(*_: object) -> int:
    """The system acts like Linux without the module for it."""
    raise FileNotFoundError


@pytest.fixture(params=["netlink", "tables"], autouse=True)
def source(request, monkeypatch) -> None:
    """Both ways to ask."""
    if request.param == "tables":
        monkeypatch.setattr(callers, "_user", does_not_tell)


@pytest.mark.parametrize(
    ("family", "served", "called", "caller"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1", socket.AF_INET),
        (socket.AF_INET, "127.0.0.1", "::ffff:127.0.0.1", socket.AF_INET6),
        (socket.AF_INET6, "::ffff:127.0.0.1", "127.0.0.1", socket.AF_INET),
        (socket.AF_INET6, "::1", "::1", socket.AF_INET6),
    ],
)
def test_a_connection_of_this_user_is_known(monkeypatch, family, served, called, caller) -> None:
    """They are one's own in every mixture of IPv4 and IPv6; a process of another user sees them as another's."""
    with socket.socket(family) as listener, socket.socket(caller) as mine:
        if family == socket.AF_INET6:
            # As torch's and gRPC's servers do; without it, Linux refuses a server at an address of IPv4.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listener.bind((served, 0))
        except OSError as error:
            pytest.skip(f"no server at {served}: {error}")
        listener.listen()
        address = listener.getsockname()[:2]
        assert not own_waits(address)
        mine.connect((called, address[1]))
        assert own_waits(address)
        with listener.accept()[0] as theirs:
            assert is_own(theirs)
            monkeypatch.setattr("os.geteuid", lambda: 12345)
            assert not is_own(theirs)
            assert not own_waits(address)


def test_a_process_that_has_gone_has_no_user() -> None:
    """Linux may say that a connection which its user has closed is root's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as mine:
            mine.sendall(b"an order")
        with listener.accept()[0] as theirs:
            assert not is_own(theirs)


SERVE = """
import errno, os, socket, sys, threading
from jupyter_dtrain.rank.callers import keep_for_this_user

listener = socket.create_server(("127.0.0.1", 0))
print(keep_for_this_user(), flush=True)

def serve():
    connection, address = listener.accept()
    with socket.create_connection(listener.getsockname()) as client:
        pass
    try:
        listener.accept()
        gone = "accepted"
    except BlockingIOError:
        gone = "gone"
    print(address == client_address[0], connection.getblocking(), connection.get_inheritable(), gone, flush=True)

client = socket.create_connection(listener.getsockname())
client_address = [client.getsockname()]
thread = threading.Thread(target=serve)
thread.start()
thread.join()
"""
"""Accepts a connection of this process, with its address, on a thread that came later; then one that has gone."""


def test_a_process_goes_on_accepting() -> None:
    """The caller gets the result of the system call."""
    ended = subprocess.run([sys.executable, "-c", SERVE], capture_output=True, text=True, timeout=60, check=False)
    if ended.stdout.startswith("False"):
        pytest.skip("this system has no notification of accept")

    assert ended.stdout == "True\nTrue True False gone\n", ended.stderr


REFUSED = """
import ctypes, platform, struct
from jupyter_dtrain.rank.callers import _MACHINES, keep_for_this_user, keeps_others_out

machine = _MACHINES[platform.machine()]
steps = ((0x20, 0, 0, 0), (0x15, 0, 1, machine.seccomp), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HL", len(steps), ctypes.addressof(code)))
before = keeps_others_out()
libc = ctypes.CDLL(None)
assert not libc.prctl(38, 1, 0, 0, 0)
assert not libc.prctl(22, 2, program)
print(before, keeps_others_out(), keep_for_this_user())
"""
"""First as the system is; then in a sandbox, for which every call of seccomp(2) fails with EPERM (1)."""


@pytest.mark.skipif(platform.machine() not in callers._MACHINES, reason="unknown processor")
def test_a_system_that_denies_it_is_known_before() -> None:
    """As for the store's process, a child of one in a sandbox."""
    ended = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=60, check=False)
    if ended.stdout.startswith("False"):
        pytest.skip("this system has no notification of accept")

    assert ended.stdout == "True False False\n", ended.stderr
