"""The network between this host and another machine of the world: the interface that leads there, and whether it does.

A firewall that drops packets makes a connection wait without an error, so a rank checks before it waits for long.

Under failure: where no interface leads there, its name and address are empty. :func:`check_reach` raises, with what to
do, after :data:`PATIENCE` seconds at the latest. A machine that refuses the connection is reached: its packet came
back.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import NamedTuple

import psutil

PATIENCE = 5.0
"""Seconds that a connection may take: more than Linux's second retry."""


class NetworkInterface(NamedTuple):
    """A network interface, by its name and the address that this host has there; both empty where there is none."""

    name: str = ""
    address: str = ""


def interface_to(address: str) -> NetworkInterface:
    """The interface that leads to ``address``. Nothing is sent."""
    with contextlib.suppress(OSError):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            own = str(probe.getsockname()[0])
        for name, addresses in psutil.net_if_addrs().items():
            if any(one.address.partition("%")[0] == own for one in addresses):
                return NetworkInterface(name, own)
    return NetworkInterface()


def check_reach(what: str, address: tuple[str, int], call: str = "") -> None:
    """Raise :class:`ConnectionError`, with what to do, where no packet comes back from ``what`` at this address.

    ``call``: what the user called, for the error.
    """
    if why := _unreachable(address):
        caller = f"{call}: " if call else ""
        raise ConnectionError(
            f"{caller}this host does not reach {what} at {address[0]}:{address[1]} ({why}). A firewall may drop the "
            "packets: open all TCP ports between the hosts and the machine of the notebook, or start the world on "
            "another network (%distributed start --interface NAME)."
        )


def _unreachable(address: tuple[str, int]) -> str:
    """Why no packet comes back from ``address``; empty where one does, if only to refuse."""
    try:
        socket.create_connection(address, timeout=PATIENCE).close()
    except TimeoutError:
        return f"no answer within {PATIENCE:g} s"
    except OSError as error:
        return str(error.strerror) if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH) else ""
    return ""
