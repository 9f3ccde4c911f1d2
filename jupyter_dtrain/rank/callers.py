"""Keeps TCP servers that ask for no password for the user who runs them: looks which user connects.

Linux tells every process which user a connection of this host belongs to (``NETLINK_SOCK_DIAG``, in 0.03 ms;
``/proc/net/tcp``, in 30 ms). A server of ours could ask, but those of frameworks accept their connections in native
code. :func:`keep_for_this_user` reaches them, in a process that only serves: Linux hands each call of ``accept`` to a
thread here (seccomp's user notification). The thread takes the connection from the queue. It closes the connection if
it is another user's, and otherwise gives it to the server. From then on nothing stands between client and server: the
connection is as fast as ever.

Under failure: where the system does not tell users apart, or has no such notification (a processor other than x86-64
and ARM64, a sandbox that denies it), servers accept every user, as before. :func:`keep_for_this_user` returns False
where there is no notification. :func:`keeps_others_out` finds out beforehand, for people to read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import ipaddress
import logging
import os
import platform
import re
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED = "01"
"""Only this state counts: for a connection that its user has closed, Linux may name root."""
_NETLINK_SOCK_DIAG = 4
_DIAG = struct.Struct("=IHHIIBBBBI")
"""struct nlmsghdr, and the beginning of struct inet_diag_req_v2: family, protocol, extensions, padding, states."""
_DIAG_SOCKET = struct.Struct("!HH16s16s12s")
"""struct inet_diag_sockid: the ports, the addresses, and the interface and cookie, which we do not know."""
_ANY_COOKIE = bytes(4) + b"\xff" * 8
_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_DIAG_STATE = 17
"""Where the answer holds the connection's state."""
_DIAG_USER = 16 + 4 + _DIAG_SOCKET.size + 12
"""Where the answer holds the user."""

_ROW = rf": {{theirs}} {{ours}} {_ESTABLISHED} \S+ \S+ \S+ +(\d+) "


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
from jupyter_dtrain.rank.callers import keep_for_this_user
print(keep_for_this_user())
"""
_TRYING = 10.0
"""Seconds that this may take; it takes some 0.2."""

_RECEIVE = _request(0, _ASKED.size)
_SEND = _request(1, _ANSWER.size)

_log = logging.getLogger(__name__)


def is_own(connection: socket.socket, peers: Collection[str] = ()) -> bool:
    """Whether the other end of an accepted TCP connection belongs to this user on this host, or is one of ``peers``.

    ``peers``: addresses of other hosts, where Linux does not tell whose process it is.
    """
    theirs, ours = connection.getpeername()[:2], connection.getsockname()[:2]
    if theirs[0].removeprefix("::ffff:") in peers:
        return True
    with contextlib.suppress(OSError):
        return _user(theirs, ours) == os.geteuid()
    return _is_listed(_spell(*theirs), _spell(*ours))


def own_waits(address: tuple[str, int]) -> bool:
    """Whether a process of this user is connected to ``address``, accepted or not."""
    return _is_listed([r"\S+"] * 2, _spell(*address))


def _user(theirs: tuple[str, int], ours: tuple[str, int]) -> int:
    """The user of a connection's other end. Raises :class:`OSError` if there is none, or if Linux does not tell."""
    packed = [_pack(host) for host, _ in (theirs, ours)]
    family = socket.AF_INET if all(four for four, _ in packed) else socket.AF_INET6
    addresses = [four or six for four, six in packed]
    length = _DIAG.size + _DIAG_SOCKET.size
    head = (length, _DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0, family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as linux:
        linux.settimeout(1.0)
        linux.send(_DIAG.pack(*head) + _DIAG_SOCKET.pack(theirs[1], ours[1], *addresses, _ANY_COOKIE))
        answer = linux.recv(4096)
    if len(answer) < _DIAG_USER + 4 or answer[_DIAG_STATE] != int(_ESTABLISHED, 16):
        raise ConnectionError("there is no such connection")
    return int.from_bytes(answer[_DIAG_USER : _DIAG_USER + 4], sys.byteorder)


def _is_listed(theirs: list[str], ours: list[str]) -> bool:
    """Whether this user has a connection from ``theirs`` to ``ours``, each as Linux's two tables spell it."""
    own = str(os.geteuid())
    for table, here, there in zip(_TABLES, theirs, ours, strict=True):
        try:
            rows = Path(table).read_text()
        except OSError:
            if table == _TABLES[0]:
                return True
            continue
        if own in re.findall(_ROW.format(theirs=here, ours=there), rows):
            return True
    return False


def _pack(host: str) -> tuple[bytes, bytes]:
    """An address in both families; the first is empty where it has none. A socket of IPv6 may have one of IPv4."""
    given = ipaddress.ip_address(host.partition("%")[0])
    four = given if isinstance(given, ipaddress.IPv4Address) else given.ipv4_mapped
    if four is None:
        return b"", given.packed
    return four.packed, ipaddress.IPv6Address(f"::ffff:{four}").packed


def _spell(host: str, port: int) -> list[str]:
    """An address as the two tables spell it."""
    return [
        "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed)) + f":{port:04X}"
        for packed in _pack(host)
    ]


def keep_for_this_user(peers: Collection[str] = ()) -> bool:
    """From now on this process accepts TCP connections of this user alone; return whether the system can do so.

    ``peers``: the addresses of other hosts whose connections it accepts, too.

    Call it on the main thread before any server starts: it holds for this thread and those that it will start. They,
    and their children, gain no rights by running a program of another user (``sudo``). A server must wait until its
    socket is readable before it accepts: it gets ``EAGAIN`` where only other users were waiting.
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
    threading.Thread(target=serve, name="dtrain-callers", daemon=True).start()
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
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return None
    fd = int(libc.syscall(machine.seccomp, _SET_MODE_FILTER, _NEW_LISTENER, described))
    return fd if fd >= 0 else None


def _serve(listener: int, machine: _Machine, peers: Collection[str]) -> None:
    """Answer one call of ``accept`` by another thread of this process, whatever happens."""
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
    with socket.socket(fileno=os.dup(fd)) as listener:
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
