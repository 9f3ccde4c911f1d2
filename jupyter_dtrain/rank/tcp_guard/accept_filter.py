"""Answers each ``accept`` of this process in a thread, which closes the connections of other users.

Servers of frameworks accept their connections in native code. :func:`keep_for_this_user` reaches them, in a process
that only serves: Linux hands each call of ``accept`` to a thread here (seccomp's user notification). The thread takes
the connection from the queue, and closes it if it is another user's. Otherwise the thread gives it to the server. From
then on nothing stands between client and server: the connection is as fast as ever.

Linux stops two system calls for this, ``accept`` and ``accept4``. Connections that a server accepts through
``io_uring`` pass unseen.

Under failure: where the system has no such notification (a processor other than x86-64 and ARM64, a sandbox that
denies it), :func:`keep_for_this_user` returns False, and servers accept every user, as before.
:func:`keeps_others_out` finds out beforehand, for people to read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import platform
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from ..sockets import opened
from .owner import is_own


class _Machine(NamedTuple):
    """Numbers of a processor's system calls, and how seccomp's filters name that processor."""

    audit: int
    seccomp: int
    accept: int
    accept4: int


_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, 317, 43, 288),
    "aarch64": _Machine(0xC00000B7, 277, 202, 242),
}
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3
_ALLOW = 0x7FFF0000
_ASK = 0x7FC00000
_ASKED = struct.Struct("=QIIiIQ6Q")
"""struct seccomp_notif: id, thread, flags; and of the call: number, processor, address, arguments."""
_ANSWER = struct.Struct("=QqiI")
"""struct seccomp_notif_resp: id, value, error, flags."""


def _request(number: int, size: int) -> int:
    """An ``ioctl`` of seccomp that reads and writes ``size`` bytes."""
    return 3 << 30 | size << 16 | ord("!") << 8 | number


_TRY: Final = """
import sys
sys.path[:] = [path for path in sys.path if path]
from jupyter_dtrain.rank.tcp_guard import keep_for_this_user
print(keep_for_this_user())
"""
_TRYING = 10.0
"""Seconds that this may take; it takes some 0.2."""

_RECEIVE = _request(0, _ASKED.size)
_SEND = _request(1, _ANSWER.size)

_log = logging.getLogger(__name__)


def keep_for_this_user(peers: Collection[str] = ()) -> bool:
    """From now on this process accepts TCP connections of this user alone; return whether the system can do so.

    ``peers``: the addresses of other hosts whose connections it accepts, too.

    Call it on the main thread before any server starts: it holds for this thread and those that it will start. They,
    and their children, gain no rights by running a program of another user (``sudo``). A server must wait until its
    socket is readable before it accepts: it gets ``EAGAIN`` where only other users were waiting. A child process must
    accept nothing itself: the answer to its call would name a descriptor of this process.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    listener: list[int] = []
    begun = threading.Event()

    def serve() -> None:
        begun.wait()
        while listener:
            _serve(listener[0], machine, peers)

    # The thread exists before the filter, so it can accept.
    threading.Thread(target=serve, name="dtrain-tcp-guard", daemon=True).start()
    fd = _notify_of_accept(machine)
    if fd is not None:
        listener.append(fd)
    begun.set()
    return fd is not None


def keeps_others_out() -> bool:
    """Whether :func:`keep_for_this_user` works on this system: a process of its own tries it. False if that fails."""
    try:
        # In a session of its own, out of reach of what ends a cell's processes.
        tried = subprocess.run(
            [sys.executable, "-c", _TRY], capture_output=True, timeout=_TRYING, check=False, start_new_session=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return tried.stdout.strip() == b"True"


def _notify_of_accept(machine: _Machine) -> int | None:
    """A descriptor that reports each ``accept`` of this thread and those that it will start; None if denied."""
    # A classic BPF program over struct seccomp_data. It looks at the processor first: the same number is another system
    # call for programs of another kind (32 bits).
    program = (
        (0x20, 0, 0, 4),  # the processor
        (0x15, 0, 3, machine.audit),  # is this one: else allow
        (0x20, 0, 0, 0),  # the call
        (0x15, 2, 0, machine.accept),  # is one of these: ask
        (0x15, 1, 0, machine.accept4),
        (0x06, 0, 0, _ALLOW),
        (0x06, 0, 0, _ASK),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    described = ctypes.create_string_buffer(struct.pack("HL", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    # Without root's rights, Linux takes a filter only from a thread that has given up to gain any.
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return None
    fd = int(libc.syscall(machine.seccomp, _SET_MODE_FILTER, _NEW_LISTENER, described))
    return fd if fd >= 0 else None


def _serve(listener: int, machine: _Machine, peers: Collection[str]) -> None:
    """Answer one call of ``accept`` by another thread of this process, whatever happens.

    The other thread waits in the kernel until this answers, so an exception here must not end the thread that serves.
    """
    asked = bytearray(_ASKED.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, asked)
    except OSError:
        return  # that thread was interrupted before its call was read
    call, _, _, number, _, _, fd, address, length, flags, *_ = _ASKED.unpack(asked)
    value, error = 0, 0
    try:
        value = _accept(fd, address, length, flags if number == machine.accept4 else 0, peers)
    except OSError as failed:
        error = -(failed.errno or errno.EAGAIN)
    except Exception:  # noqa: BLE001 — the thread that accepts waits for this answer
        error = -errno.ECONNABORTED
        _log.exception("A connection could not be judged")
    try:
        fcntl.ioctl(listener, _SEND, _ANSWER.pack(call, value, error, 0))
    except OSError:
        if not error:
            os.close(value)  # that thread was interrupted, and accepts again


def _accept(fd: int, address: int, length: int, flags: int, peers: Collection[str]) -> int:
    """The next connection of this user at the listener ``fd``, as the system call would give it."""
    with opened(fd) as listener:
        while True:
            # Others may share this socket: whether it blocks is not ours to change.
            if not _is_readable(listener):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            connection, _ = listener.accept()
            with contextlib.suppress(OSError):  # it has disconnected
                if connection.family not in (socket.AF_INET, socket.AF_INET6) or is_own(connection, peers):
                    break
            connection.close()
    connection.setblocking(not flags & socket.SOCK_NONBLOCK)
    connection.set_inheritable(not flags & socket.SOCK_CLOEXEC)
    if address:
        getpeername: Any = ctypes.CDLL(None).getpeername
        getpeername(connection.fileno(), ctypes.c_void_p(address), ctypes.c_void_p(length))
    return connection.detach()


def _is_readable(listener: socket.socket) -> bool:
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    return bool(poller.poll(0))
