"""The connections of gloo, and other sockets, in this process, found from outside what made them.

gloo has no way to abort a collective: ``abort()`` and ``shutdown()`` of its process group do nothing, and a rank that
waits for a peer does so until the group's timeout, 30 minutes (torch 2.13). What does free it is the end of its
connections. They are those that are registered with the epoll instances that gloo made: one for each process group,
whose thread is called ``gloo_tcp_loop``. Listeners among them are left alone, as the process would end with them.

Everything here works on ``/proc/self`` and fails silently on what has gone meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_LISTENS = (socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
_TARGET = re.compile(r"^tfd:\s*(\d+)", re.MULTILINE)


def epolls() -> set[int]:
    """The epoll instances of this process, by file descriptor."""
    found = set()
    for entry in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()) == "anon_inode:[eventpoll]":
                found.add(int(entry.name))
    return found


def registered(instances: Iterable[int]) -> set[int]:
    """The file descriptors that are registered with epoll ``instances``."""
    found: set[int] = set()
    for instance in instances:
        with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{instance}") as file:
            found.update(int(fd) for fd in _TARGET.findall(file.read()))
    return found


def connected_to(port: int) -> set[int]:
    """The file descriptors of sockets whose peer is at ``port``, on whatever host."""
    found = set()
    for entry in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                with _opened(int(entry.name)) as one:
                    peer = one.getpeername()
                if isinstance(peer, tuple) and peer[1] == port:
                    found.add(int(entry.name))
    return found


def listens_at(port: int) -> bool:
    """Whether a socket of this process listens at ``port``."""
    for entry in _DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                with _opened(int(entry.name)) as one:
                    name = one.getsockname()
                    if isinstance(name, tuple) and name[1] == port and one.getsockopt(*_LISTENS):
                        return True
    return False


def end_connections(fds: Iterable[int]) -> int:
    """End the connections among ``fds``, both ways; the number of those that there were. The descriptors stay open."""
    ended = 0
    for fd in fds:
        with contextlib.suppress(OSError), _opened(fd) as one:
            one.getpeername()  # a listener has none
            one.shutdown(socket.SHUT_RDWR)
            ended += 1
    return ended


def _opened(fd: int) -> socket.socket:
    return socket.socket(fileno=os.dup(fd))
