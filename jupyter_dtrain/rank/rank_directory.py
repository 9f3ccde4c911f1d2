"""The process of a framework's server that the steward runs: what it is given, and whom it answers.

The steward starts such a module when a rank first connects, with a socket that already listens (``--fd``), and writes a
:class:`~jupyter_dtrain.wire.requests.ServerSpec` to its standard input. Ranks show the world's secret
(:class:`~jupyter_dtrain.wire.requests.Desk`).

Under failure: the process ends with the steward. Where Linux cannot keep other users out (:mod:`.tcp_guard`), only the
secret does.
"""

from __future__ import annotations

import argparse
import hmac
import socket
import socketserver
import sys
from typing import NamedTuple

import msgspec

from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.wire.requests import ServerSpec

from .tcp_guard import keep_for_this_user


class ServerArguments(NamedTuple):
    """All that the steward gives to a server on its command line."""

    fd: int
    """The socket that listens."""
    host: str
    port: int

    @property
    def socket(self) -> socket.socket:
        """The socket as an object, which closes it."""
        return socket.socket(fileno=self.fd)


def begin(description: str | None) -> ServerArguments:
    """Read the command line; from here on, no other user of this host connects to anything in this process."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--peer", action="append", default=[])
    args = parser.parse_args()
    keep_for_this_user(args.peer)
    return ServerArguments(args.fd, args.host, args.port)


def read_spec() -> ServerSpec:
    """Read the facts about the world from standard input."""
    return msgspec.json.decode(sys.stdin.buffer.read(), type=readable(ServerSpec))


class DeskServer(socketserver.ThreadingTCPServer):
    """A server on a socket that already listens, with a thread for each connection."""

    daemon_threads = True

    def __init__(
        self, listening: socket.socket, handler: type[socketserver.BaseRequestHandler], spec: ServerSpec
    ) -> None:
        self._secret = spec.secret.encode()
        super().__init__(listening.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    def is_from_rank(self, secret: str) -> bool:
        """Whether it is a rank of this world that shows ``secret``."""
        return hmac.compare_digest(secret.encode(), self._secret)
