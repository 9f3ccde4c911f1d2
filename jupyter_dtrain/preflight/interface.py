"""Finds the network interface of a machine that leads to the others.

On this machine it is the one of Linux' route to the address that ssh or Slurm would connect to. On a host it is the
interface with the address by which it was reached, or the one that the person named.

Under failure: an interface that cannot be found is None, and a finding says so. A name that no interface of this
machine has raises :class:`~jupyter_dtrain.core.errors.BadRequest`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from jupyter_dtrain.core.errors import BadRequest

from .facts import Facts, Interface
from .findings import Chosen, group
from .reach import Reach


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


def ways_to(hosts: Sequence[str], interfaces: Sequence[Interface], reach: Reach) -> dict[str, Chosen | None]:
    """The interface of this machine that leads to each host; None where that is not known.

    Nothing is sent to the hosts.
    """
    if not hosts:
        return {}

    def way(host: str) -> Chosen | None:
        local = reach.local_address(host)
        return by_address(interfaces, local) if local else None

    with ThreadPoolExecutor(len(hosts), thread_name_prefix="route") as pool:
        return dict(zip(hosts, pool.map(way, hosts), strict=True))


def settle(ways: Mapping[str, Chosen | None]) -> Chosen | None:
    """The interface of this machine that leads to most hosts, not a loopback if there is another."""
    known = {host: way for host, way in ways.items() if way is not None}
    groups = group(known)
    return max(groups, key=lambda one: (not one.loopback, len(groups[one])), default=None)


def of_host(facts: Facts, address: str = "", wanted: str | None = None) -> Chosen | None:
    """The interface of a host: the one that is ``wanted``, else the one with the ``address`` by which it was reached.

    A tunnel brings ssh in on the loopback, which leads to no other machine; then the first other interface counts.
    """
    usable = [one for one in facts.interfaces if one.up and one.addresses]
    if wanted is not None:
        return next((_chosen(one) for one in usable if one.name == wanted), None)
    came_in = by_address(usable, address)
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
