"""The way of a state to a new replica: kept on this host, and among this user's processes.

torchft's own server listens on all interfaces and answers everybody. Its readers unpickle whatever they get, from an
address that comes through a Manager's server, which answers everybody, too. Where all ranks are on one host, the server
listens on loopback here and closes other users' connections before a byte is read, and a reader takes nothing from
another user's process.

Under failure: a reader that is refused raises, torchft drops its step, and it asks again.
"""

from __future__ import annotations

import time
import warnings
from datetime import timedelta
from http.client import OK, HTTPConnection
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from jupyter_dtrain.plugins.patches import Patch, raises_on_purpose
from jupyter_dtrain.rank.tcp_guard import is_own

if TYPE_CHECKING:
    import socket
    from types import ModuleType

ACCEPTING: Final = 5.0
"""Seconds in which the server takes a connection: before that, Linux does not tell whose it is."""
POLL: Final = 0.002


TRANSPORT = Patch(
    "torchft.checkpointing.http_transport",
    replaces=("_IPv6HTTPServer", "HTTPTransport.address", "HTTPTransport._load_from_address"),
    calls=("_streaming_load(f)",),
    reads=("_server",),
    why="torchft gives a replica's state to everybody who asks, on all interfaces, and unpickles what anybody sends.",
    lost="the server for new replicas listens on all interfaces",
)


def hook_transport(module: ModuleType, own: str) -> None:
    """Patch ``torchft.checkpointing.http_transport``; ``own``: the address by which other ranks reach this one."""
    base, kind = vars(module)["_IPv6HTTPServer"], vars(module)["HTTPTransport"]
    local = own.startswith("127.")

    class Server(base):  # type: ignore[misc, valid-type]  # torchft's, found when this runs
        def __init__(self, address: tuple[str, int], handler: Any, *args: Any, **kwargs: Any) -> None:
            host, port = address
            handler.log_message = lambda *_: None  # a line for each new replica
            super().__init__((host or f"::ffff:{own}", port) if local else address, handler, *args, **kwargs)

        def verify_request(self, request: Any, client_address: Any) -> bool:
            return super().verify_request(request, client_address) and (not local or is_own(request))

    def address(_original: Any, transport: Any) -> str:
        return f"http://{own}:{transport._server.socket.getsockname()[1]}/checkpoint/"  # noqa: SLF001

    @raises_on_purpose
    def load(_original: Any, _: type, address: str, timeout: timedelta) -> Any:
        place = urlsplit(address)
        connection = HTTPConnection(place.hostname or "", place.port, timeout=timeout.total_seconds())
        try:
            connection.connect()
            check_own(connection.sock, address)
            connection.request("GET", place.path)
            with connection.getresponse() as answer:
                if answer.status != OK:
                    raise ConnectionError(f"{address} has no state for this step ({answer.status} {answer.reason}).")
                return vars(module)["_streaming_load"](answer, weights_only=False)
        finally:
            connection.close()

    # torchft loads the state into memory that nobody else has.
    message = "The given buffer is not writable"
    warnings.filterwarnings("ignore", message=message, module=r"torch\.distributed\._serialization")
    TRANSPORT.put(module, "_IPv6HTTPServer", Server)
    TRANSPORT.replace(kind, "address", address)
    if local:
        TRANSPORT.replace(kind, "_load_from_address", load)


def check_own(connection: socket.socket, address: str) -> None:
    """Raise :class:`PermissionError` unless a process of this user serves ``connection``."""
    deadline = time.monotonic() + ACCEPTING
    while not is_own(connection):
        if time.monotonic() > deadline:
            raise PermissionError(f"{address} is not served by a process of this user: no state is read there.")
        time.sleep(POLL)
