"""The sockets of this process, found and ended from outside the library that made them.

A library that cannot abort a wait for a peer ends it when its connection ends. Those connections are registered with
the epoll instances of the library; a caller learns which instances these are by looking at :func:`epolls` before and
after the library makes its group. Listeners among them are left alone: some libraries end the process with them.

Some servers listen at all addresses of the host and know no password. :func:`keep_on_loopback` has Linux drop packets
that reach such a listener from elsewhere, by a filter on the socket, which needs no rights. The filter comes some 0.3
ms after the library has begun to listen; :func:`end_others` ends connections that were made meanwhile.

All functions read ``/proc/self`` and silently skip anything that has gone in the meantime, or is out of reach in a rank
whose code has called ``os.chroot`` or has an audit hook that refuses files.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_DESCRIPTORS = Path("/proc/self/fd")
_LISTENS = (socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
_TARGET = re.compile(r"^tfd:\s*(\d+)", re.MULTILINE)
_SO_ATTACH_FILTER = 26
"""From asm-generic/socket.h; Python has no name for it."""
_HEADER = 0xFFF00000
"""Offset of the packet's IP header for a filter: SKF_NET_OFF of linux/filter.h."""
_FROM_LOOPBACK = (
    (0x30, 0, 0, _HEADER),  # the byte with the version, …
    (0x74, 0, 0, 4),  # … its upper half,
    (0x15, 0, 4, 4),  # is 4: else drop
    (0x20, 0, 0, _HEADER + 12),  # the source address, …
    (0x54, 0, 0, 0xFF000000),  # … its first byte,
    (0x15, 0, 1, 0x7F000000),  # is 127: else drop
    (0x06, 0, 0, 0xFFFFFFFF),  # take all of it
    (0x06, 0, 0, 0),  # drop
)
"""A classic BPF program (Documentation/networking/filter.rst of Linux): opcode, jumps if true and false, operand."""


def epolls() -> set[int]:
    """The epoll instances of this process, by file descriptor."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in list(_DESCRIPTORS.iterdir()):
            with contextlib.suppress(OSError):
                if str(entry.readlink()) == "anon_inode:[eventpoll]":
                    found.add(int(entry.name))
    return found


def registered(instances: Iterable[int]) -> set[int]:
    """The file descriptors that are registered with epoll ``instances``."""
    found: set[int] = set()
    for instance in instances:
        # An audit hook of the user's may refuse to open a file, by any exception.
        with contextlib.suppress(Exception), open(f"/proc/self/fdinfo/{instance}") as file:
            found.update(int(fd) for fd in _TARGET.findall(file.read()))
    return found


def connected_to(port: int) -> set[int]:
    """The file descriptors of sockets whose peer is at ``port``, on any host."""
    return _those(lambda one: _port(one.getpeername()) == port)


def listeners(port: int) -> set[int]:
    """The file descriptors of this process's sockets that listen at ``port``."""
    return _those(lambda one: _port(one.getsockname()) == port and bool(one.getsockopt(*_LISTENS)))


def keep_on_loopback(fds: Iterable[int]) -> None:
    """Make the listeners ``fds`` accept only packets from 127.0.0.0/8, at whatever address they listen."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _FROM_LOOPBACK))
    program = struct.pack("HL", len(_FROM_LOOPBACK), ctypes.addressof(code))
    for fd in fds:
        with contextlib.suppress(OSError), _opened(fd) as one:
            one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def end_others(port: int, patience: float = 1.0) -> int:
    """End connections to the listeners at ``port`` that come from elsewhere than loopback; return how many there were.

    Those that wait to be accepted come first: this waits for that, at most ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    while any(map(_queue, listeners(port))) and time.monotonic() < deadline:
        time.sleep(0.001)
    return end_connections(_those(lambda one: _port(one.getsockname()) == port and not _is_loopback(one.getpeername())))


def end_connections(fds: Iterable[int]) -> int:
    """End the connections among ``fds`` in both directions; return how many there were. The descriptors stay open."""
    ended = 0
    for fd in fds:
        with contextlib.suppress(OSError), _opened(fd) as one:
            one.getpeername()  # a listener has none
            one.shutdown(socket.SHUT_RDWR)
            ended += 1
    return ended


def _those(are_meant: Callable[[socket.socket], bool]) -> set[int]:
    """The sockets of this process for which ``are_meant`` is true, by file descriptor."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in list(_DESCRIPTORS.iterdir()):
            with contextlib.suppress(OSError):
                if str(entry.readlink()).startswith("socket:"):
                    with _opened(int(entry.name)) as one:
                        if are_meant(one):
                            found.add(int(entry.name))
    return found


def _port(address: Any) -> int | None:
    """The port of a TCP address; None for any other address."""
    return int(address[1]) if isinstance(address, tuple) else None


def _is_loopback(address: Any) -> bool:
    host = str(address[0])
    return host == "::1" or host.removeprefix("::ffff:").startswith("127.")


def _queue(listener: int) -> int:
    """How many connections wait to be accepted. Linux says that where a connection has its unacknowledged segments."""
    with contextlib.suppress(OSError), _opened(listener) as one:
        return int.from_bytes(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)[24:], sys.byteorder)
    return 0


def _opened(fd: int) -> socket.socket:
    copy = os.dup(fd)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)  # not a socket: a library's epoll instance has a pipe, too
        raise
