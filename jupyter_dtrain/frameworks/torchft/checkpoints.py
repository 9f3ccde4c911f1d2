"""The server by which torchft gives a new replica its state: kept on this host, and for this user's processes.

torchft's own listens on all interfaces and answers everybody, and its readers unpickle what they get. Where all ranks
are on one host it listens on loopback here, and closes other users' connections before a byte is read.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.engine.callers import is_own
from jupyter_dtrain.engine.imports import require

if TYPE_CHECKING:
    from types import ModuleType


def hook_transport(module: ModuleType, own: str) -> None:
    """Patch ``torchft.checkpointing.http_transport``; ``own``: the address by which other ranks reach this one."""
    require(module, "_IPv6HTTPServer", "HTTPTransport")
    base, kind = vars(module)["_IPv6HTTPServer"], module.HTTPTransport
    require(kind, "address")

    class Server(base):  # type: ignore[misc, valid-type]  # torchft's, found when this runs
        def __init__(self, address: tuple[str, int], *args: Any, **kwargs: Any) -> None:
            host, port = address
            handler: Any = args[0]
            handler.log_message = lambda *_: None  # a line for each new replica
            super().__init__((host or f"::ffff:{own}", port), *args, **kwargs)

        def verify_request(self, request: Any, client_address: Any) -> bool:
            return super().verify_request(request, client_address) and is_own(request)

    def address(self: Any) -> str:
        return f"http://{own}:{self._server.socket.getsockname()[1]}/checkpoint/"

    # torchft loads the state into memory that nobody else has.
    warnings.filterwarnings(
        "ignore", message="The given buffer is not writable", module=r"torch\.distributed\._serialization"
    )
    if own.startswith("127."):
        vars(module)["_IPv6HTTPServer"] = Server
    kind.address = address
