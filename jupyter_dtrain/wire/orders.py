"""Orders of the steward to a watch: one JSON object a line, on the watch's standard input, after its specification.

The pipe is the one that started the watch: on another host it is ssh's, so keys travel encrypted. Its end is an order
too: the steward is gone, and the watch ends every rank of this host.
"""

from __future__ import annotations

import msgspec

from jupyter_dtrain.core.structs import readable


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    """The way to ipyparallel's controller, for a host that cannot read the steward's files."""

    info: str
    """The content of the controller's connection file for engines."""


class End(msgspec.Struct, frozen=True, tag="end"):
    """End all ranks of this host, then the watch itself."""

    seconds: float
    """Seconds that the ranks have to end by themselves."""


Order = Connect | End


def to_line(order: Order) -> bytes:
    """The line that carries an order."""
    return msgspec.json.encode(order) + b"\n"


def read_order(line: bytes) -> Order:
    """The order on a line. Raises :class:`msgspec.MsgspecError`."""
    return _decoder.decode(line)


_decoder: msgspec.json.Decoder[Order] = msgspec.json.Decoder(readable(Order))
