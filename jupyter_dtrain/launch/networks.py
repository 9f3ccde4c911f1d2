"""The network between this machine and the hosts of a world: the address that they reach, and the subnet they share.

Under failure: :func:`address_to` raises :class:`~jupyter_dtrain.core.errors.BadRequest` or
:class:`~jupyter_dtrain.core.errors.StartFailed` with the cure.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence

import psutil

from jupyter_dtrain.core.errors import BadRequest, StartFailed

from .ssh import Ssh

FAMILIES = (socket.AF_INET, socket.AF_INET6)


def address_to(hosts: Sequence[str], ssh: Ssh, interface: str | None) -> str:
    """The address of this machine that ``hosts`` reach: that of ``interface``, else the one that leads to them."""
    if interface is not None:
        return _address_of(interface)
    for host in hosts:
        name = ssh.ask_config(host).get("hostname", "")
        try:
            infos = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM) if name else []
        except (OSError, UnicodeError):
            continue
        for family, kind, protocol, _, target in infos:
            try:
                with socket.socket(family, kind, protocol) as one:
                    one.connect(target)
                    return str(one.getsockname()[0])
            except OSError:
                continue
    raise StartFailed(
        f"No route of this machine leads to {', '.join(hosts)}.",
        "See whether the network is up, or name the interface with --interface.",
        option="hosts",
    )


def _address_of(interface: str) -> str:
    found = psutil.net_if_addrs()
    for family in FAMILIES:
        for one in found.get(interface, ()):
            if one.family == family:
                return str(one.address).partition("%")[0]
    raise BadRequest(
        f"This machine has no interface {interface!r} with an address. It has: {', '.join(found)}.", option="interface"
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
