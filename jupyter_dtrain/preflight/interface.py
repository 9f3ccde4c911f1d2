"""Finds the network interface of a machine that leads to the others.

On this machine it is the one of Linux' route to the address that ssh would connect to. On a host it is the interface
by which the ssh connection came in, or the one that the person named.

Under failure: an interface that cannot be found is None, and a finding says so. A name that no interface of this
machine has raises :class:`~jupyter_dtrain.core.errors.BadRequest`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.launch.networks import PATIENCE, local_address
from jupyter_dtrain.launch.ssh import Ssh

from .facts import Facts, Interface
from .scene import Chosen, group


def named(interfaces: Sequence[Interface], wanted: str) -> Chosen:
    """The interface of this machine that a person named.

    Raises :class:`BadRequest` (option ``interface``) if it is absent, down or without an address.
    """
    usable = [one for one in interfaces if one.up and one.addresses]
    found = next((one for one in usable if one.name == wanted), None)
    if found is None:
        there = ", ".join(one.name for one in usable) or "none"
        absent = all(one.name != wanted for one in interfaces)
        state = "has no interface" if absent else "has no address on, or has switched off, its interface"
        raise BadRequest(f"This machine {state} {wanted!r}. It can use: {there}.", option="interface")
    return _chosen(found)


def ways_to(hosts: Sequence[str], interfaces: Sequence[Interface], ssh: Ssh) -> dict[str, Chosen | None]:
    """The interface of this machine that leads to each host: None where a jump host or a proxy stands in between.

    Nothing is sent to the hosts. It takes at most twice :data:`PATIENCE`.
    """
    if not hosts:
        return {}

    def way(host: str) -> Chosen | None:
        config = ssh.ask_config(host, PATIENCE)
        if any(config.get(name, "none") != "none" for name in ("proxyjump", "proxycommand")):
            return None
        local = local_address(config.get("hostname", ""))
        return None if local is None else by_address(interfaces, local)

    with ThreadPoolExecutor(len(hosts), thread_name_prefix="route") as pool:
        return dict(zip(hosts, pool.map(way, hosts), strict=True))


def settle(ways: Mapping[str, Chosen | None]) -> Chosen | None:
    """The interface of this machine that leads to most hosts, not a loopback if there is another."""
    known = {host: way for host, way in ways.items() if way is not None}
    groups = group(known)
    return max(groups, key=lambda one: (not one.loopback, len(groups[one])), default=None)


def of_host(facts: Facts, wanted: str | None = None) -> Chosen | None:
    """The interface of a host: the one that is ``wanted``, else the one by which ssh came in.

    A tunnel brings ssh in on the loopback, which leads to no other machine; then the first other interface counts.
    """
    usable = [one for one in facts.interfaces if one.up and one.addresses]
    if wanted is not None:
        return next((_chosen(one) for one in usable if one.name == wanted), None)
    if len(facts.ssh) > 2:  # noqa: PLR2004 — SSH_CONNECTION: the client's address and port, then the server's
        came_in = by_address(usable, facts.ssh[2])
        if came_in is not None and not came_in.loopback:
            return came_in
    return next((_chosen(one) for one in usable if not one.loopback), None)


def by_address(interfaces: Sequence[Interface], address: str) -> Chosen | None:
    """The interface that has ``address``."""
    bare = address.removeprefix("::ffff:").partition("%")[0]
    found = next((one for one in interfaces if bare in one.bare()), None)
    if found is None and bare.startswith("127."):  # the whole network is the loopback's
        found = next((one for one in interfaces if one.loopback), None)
    return None if found is None else Chosen(found.name, bare, found.loopback)


def _chosen(one: Interface) -> Chosen:
    return Chosen(one.name, one.bare()[0], one.loopback)
