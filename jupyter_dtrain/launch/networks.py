"""The network between this machine and the hosts of a world: the address that they reach, and the subnet they share.

Under failure: :func:`address_to` raises :class:`~jupyter_dtrain.core.errors.BadRequest` or
:class:`~jupyter_dtrain.core.errors.StartFailed` with the fix.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import Final

import psutil

from jupyter_dtrain.core.errors import BadRequest, StartFailed

from .ssh import Ssh

PATIENCE: Final = 2.5
"""Seconds that the name of a host may take to be resolved."""


def address_to(hosts: Sequence[str], ssh: Ssh, interface: str | None) -> str:
    """The IPv4 address of this machine that ``hosts`` reach: that of ``interface``, else the one that leads there."""
    if interface is not None:
        return _address_on(interface)
    for host in hosts:
        address = local_address(ssh.ask_config(host).get("hostname", ""))
        if address is not None and ":" not in address:
            return address
    raise StartFailed(
        f"No route of this machine leads to {', '.join(hosts)} by IPv4.",
        "See whether the network is up, or name an interface that has an IPv4 address with --interface.",
        option="hosts",
    )


def local_address(host: str) -> str | None:
    """The address from which this machine would connect to ``host``; None without a route or a known name.

    A name server that does not answer costs :data:`PATIENCE` seconds.
    """
    return route(host)[0]


def route(host: str) -> tuple[str, str] | tuple[None, None]:
    """The addresses of a connection: this machine's, and that of ``host``; otherwise as :func:`local_address`.

    It connects an UDP socket, which sends nothing.
    """
    found: list[tuple[str, str]] = []

    def ask() -> None:
        with contextlib.suppress(OSError, UnicodeError):
            for family, kind, protocol, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
                with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as one:
                    one.connect(address)
                    found.append((str(one.getsockname()[0]), str(one.getpeername()[0])))
                    return

    if not host:
        return None, None
    # Nothing can end a look-up of a name, so it may outlive its deadline on a thread that nobody waits for.
    thread = threading.Thread(target=ask, daemon=True, name="resolve")
    thread.start()
    thread.join(PATIENCE)
    return found[0] if found else (None, None)


def _address_on(interface: str) -> str:
    found = psutil.net_if_addrs()
    for one in found.get(interface, ()):
        if one.family == socket.AF_INET:
            return str(one.address)
    raise BadRequest(
        f"This machine has no interface {interface!r} with an IPv4 address. It has: {', '.join(found)}.",
        option="interface",
    )


def shared_network(address: str, others: Iterable[str]) -> str:
    """The subnet of this machine's ``address``, as in ``10.0.0.0/24``, if all ``others`` are in it; else empty."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.address == address and one.netmask:
                network = ipaddress.ip_interface(f"{address}/{one.netmask}").network
                inside = all(other and ipaddress.ip_address(other) in network for other in others)
                return str(network) if inside else ""
    return ""
