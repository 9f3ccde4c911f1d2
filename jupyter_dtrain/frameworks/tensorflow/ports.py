"""The port of this rank's TensorFlow server: held before the server exists, and guarded once it runs.

TensorFlow's servers listen at all addresses of the host, know no password, and obey every process that reaches
them. Where all ranks are on one host, no other host's packets get as far
(:func:`~jupyter_dtrain.rank.tcp_guard.keep_on_loopback`), and connections from before that guard are ended. Other
users of this host do get there, as with TensorFlow's own launchers.

Under failure: a kernel without such filters leaves the server as TensorFlow made it.
"""

from __future__ import annotations

import socket

from jupyter_dtrain.rank.sockets import listeners
from jupyter_dtrain.rank.tcp_guard import end_others, keep_on_loopback

_here: set[int] = set()
"""The port of this rank, where all ranks are on this host."""


def hold_port() -> socket.socket:
    """A socket on a free port of all addresses, kept for a server that sets ``SO_REUSEADDR``, as gRPC does."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
    except OSError:
        held.close()
        raise
    return held


def keep_here(port: int) -> None:
    """Note that all ranks are on this host, so that the server at ``port`` is for them alone."""
    _here.add(port)


def guard_server() -> None:
    """Guard this rank's TensorFlow server, which may just have begun to listen."""
    for port in _here:
        keep_on_loopback(listeners(port))
        end_others(port)
