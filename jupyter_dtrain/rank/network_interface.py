"""The network interface by which a host reaches the steward.

Under failure: where no interface leads there, its name and address are empty.
"""

from __future__ import annotations

import contextlib
import socket
from typing import NamedTuple

import psutil


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
