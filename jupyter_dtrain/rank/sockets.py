"""The sockets of this process, found and ended from outside the library that made them.

A library that cannot abort a wait for a peer ends it when its connection ends. Those connections are registered with
the epoll instances of the library; a caller learns which instances these are by looking at :func:`epolls` before and
after the library makes its group. Listeners among them are left alone: some libraries end the process with them.

Under failure: the functions that look for descriptors read ``/proc/self``, and skip without a word what has gone in the
meantime, or is out of reach in a rank whose code has called ``os.chroot`` or has an audit hook that refuses files.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_DESCRIPTORS = Path("/proc/self/fd")
_LISTENS = (socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
_TARGET = re.compile(r"^tfd:\s*(\d+)", re.MULTILINE)


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
    return sockets_where(lambda one: port_of(one.getpeername()) == port)


def listeners(port: int) -> set[int]:
    """The file descriptors of this process's sockets that listen at ``port``."""
    return sockets_where(lambda one: port_of(one.getsockname()) == port and bool(one.getsockopt(*_LISTENS)))


def end_connections(fds: Iterable[int]) -> int:
    """End the connections among ``fds`` in both directions; return how many there were. The descriptors stay open."""
    ended = 0
    for fd in fds:
        with contextlib.suppress(OSError), opened(fd) as one:
            one.getpeername()  # a listener has none
            one.shutdown(socket.SHUT_RDWR)
            ended += 1
    return ended


def sockets_where(matches: Callable[[socket.socket], bool]) -> set[int]:
    """The sockets of this process for which ``matches`` is true, by file descriptor."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in list(_DESCRIPTORS.iterdir()):
            with contextlib.suppress(OSError):
                if str(entry.readlink()).startswith("socket:"):
                    with opened(int(entry.name)) as one:
                        if matches(one):
                            found.add(int(entry.name))
    return found


def port_of(address: Any) -> int | None:
    """The port of a TCP address; None for an address of another family."""
    return int(address[1]) if isinstance(address, tuple) else None


def opened(fd: int) -> socket.socket:
    """The socket of descriptor ``fd`` under a descriptor of its own, which the caller closes."""
    copy = os.dup(fd)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)  # not a socket: a library's epoll instance has a pipe, too
        raise
