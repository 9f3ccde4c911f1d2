"""Keeps a server that listens at all addresses of the host on loopback.

Some servers choose their address themselves and know no password. :func:`keep_on_loopback` has Linux drop packets that
reach such a listener from elsewhere, by a filter on the socket (a classic BPF program), which needs no rights. The
filter comes some 0.3 ms after the library has begun to listen; :func:`end_others` ends connections that were made
meanwhile.

Under failure: a listener that is gone, or that refuses the filter, is skipped.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys
import time
from collections.abc import Iterable
from typing import Any

from ..sockets import end_connections, listeners, opened, port_of, sockets_where

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


def keep_on_loopback(fds: Iterable[int]) -> None:
    """Make the listeners ``fds`` accept only packets from 127.0.0.0/8, at whatever address they listen."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _FROM_LOOPBACK))
    program = struct.pack("HL", len(_FROM_LOOPBACK), ctypes.addressof(code))
    for fd in fds:
        with contextlib.suppress(OSError), opened(fd) as one:
            one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def end_others(port: int, patience: float = 1.0) -> int:
    """End connections to the listeners at ``port`` that come from elsewhere than loopback; return how many there were.

    Those that wait to be accepted come first: this waits for that, at most ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    while any(map(_queue, listeners(port))) and time.monotonic() < deadline:
        time.sleep(0.001)
    return end_connections(
        sockets_where(lambda one: port_of(one.getsockname()) == port and not _is_loopback(one.getpeername()))
    )


def _is_loopback(address: Any) -> bool:
    host = str(address[0])
    return host == "::1" or host.removeprefix("::ffff:").startswith("127.")


def _queue(listener: int) -> int:
    """How many connections wait to be accepted. Linux says that where a connection has its unacknowledged segments."""
    with contextlib.suppress(OSError), opened(listener) as one:
        return int.from_bytes(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)[24:], sys.byteorder)
    return 0
