"""The network interface by which each machine reaches the others, and findings about networks.

On this machine it is the one of Linux' route to the address that ssh or Slurm would connect to. On a host it is the
interface with the address by which it was reached, or the one that the person named.

Under failure: an interface that cannot be found is None, and a finding says so. A name that no interface of this
machine has raises :class:`~jupyter_dtrain.core.errors.BadRequest`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from jupyter_dtrain.core.declarations import declarations
from jupyter_dtrain.core.errors import BadRequest

from .findings import HERE, Chosen, Connection, Finding, Scene, group, name_some
from .probe import Device, Facts, Interface
from .reach import Reach

LISTEN_FAILED: Final = "cannot listen"
"""How the failure of a connection begins whose target could not listen."""
MOST_TOLD: Final = 8
"""The most machines whose interfaces a finding lists."""


def named_interface(interfaces: Sequence[Interface], wanted: str) -> Chosen:
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


def interface_to_most(ways: Mapping[str, Chosen | None]) -> Chosen | None:
    """The interface of this machine that leads to most hosts, not a loopback if there is another."""
    known = {host: way for host, way in ways.items() if way is not None}
    groups = group(known)
    return max(groups, key=lambda one: (not one.loopback, len(groups[one])), default=None)


def interface_of(facts: Facts, address: str = "", wanted: str | None = None) -> Chosen | None:
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


def common_subnet(scene: Scene) -> str:
    """The IPv4 subnet, as in ``10.0.0.0/24``, in which all hosts have their chosen addresses; empty without one.

    Ranks use no other network then. A host may have interfaces that come and go, such as those of containers, and MPI
    would talk through each that it finds while it starts.
    """
    subnets: set[object] = set()
    machines: dict[str, str] = {}
    for host, facts in scene.hosts.items():
        one = scene.chosen.get(host)
        if one is None or machines.setdefault(one.address, facts.place) != facts.place:
            # A network inside each machine, such as Docker's, gives all of them one address.
            return ""
        here = [ipaddress.ip_interface(text) for each in facts.interfaces for text in each.addresses]
        subnets.add(next((each.network for each in here if str(each.ip) == one.address), None))
    subnet = subnets.pop() if len(subnets) == 1 else None
    return str(subnet) if isinstance(subnet, ipaddress.IPv4Network) else ""


def by_address(interfaces: Sequence[Interface], address: str) -> Chosen | None:
    """The interface that has ``address``."""
    bare = address.removeprefix("::ffff:").partition("%")[0]
    found = next((one for one in interfaces if bare in one.bare()), None)
    if found is None and bare.startswith("127."):  # the whole network is the loopback's
        found = next((one for one in interfaces if one.loopback), None)
    return None if found is None else Chosen(found.name, bare, found.loopback)


def _chosen(one: Interface) -> Chosen:
    return Chosen(one.name, one.bare()[0], one.loopback)


def find(scene: Scene) -> Iterator[Finding]:
    """All findings about networks."""
    yield from _ways(scene)
    yield from _interfaces(scene)
    if scene.several:
        yield from _fabrics(scene)
    yield from _connections(scene)


def _ways(scene: Scene) -> Iterator[Finding]:
    """Whether this machine reaches all hosts by one interface."""
    ways = {host: way.name for host, way in scene.ways.items() if way is not None}
    names = group(ways)
    if len(names) > 1:
        words = "; ".join(f"{name} leads to {name_some(hosts)}" for name, hosts in names.items())
        yield Finding(
            "warning",
            f"This machine reaches the hosts by different interfaces: {words}.",
            list(ways),
            "The controller listens on one address, which some hosts may not reach.",
            scene.fixes.interface,
        )
    unknown = [host for host, way in scene.ways.items() if way is None and host in scene.facts]
    if unknown and not scene.wanted:
        yield Finding(
            "warning",
            f"The interface of this machine that leads to {name_some(unknown)} is not known.",
            unknown,
            *scene.fixes.unknown_interface,
        )


def _interfaces(scene: Scene) -> Iterator[Finding]:
    if not scene.several:
        return
    machines = {name: scene.chosen.get(name) for name in scene.facts}
    without = [name for name, one in machines.items() if one is None]
    if without and scene.wanted:
        there = {
            name: ", ".join(one.name for one in scene.facts[name].interfaces if one.up and one.addresses) or "none"
            for name in without
        }
        yield Finding(
            "error",
            f"There is no interface {scene.wanted!r} with an address on {name_some(without)}.",
            without,
            "Ranks there could not be reached.",
            f"Name one that is there: {'; '.join(f'{found} on {name}' for name, found in there.items())}.",
        )
    elif without:
        yield Finding(
            "error",
            f"No interface with an address is up on {name_some(without)}.",
            without,
            "Ranks on several hosts reach each other by their addresses; a loopback address leads to no other machine.",
            "Bring its network up; see `ip addr` there.",
        )
    chosen = {name: one for name, one in machines.items() if one is not None}
    versions = group({name: str(ipaddress.ip_address(one.address).version) for name, one in chosen.items()})
    if len(versions) > 1:
        yield Finding(
            "error",
            "The machines have no common network: "
            + "; ".join(f"IPv{version} on {name_some(names)}" for version, names in versions.items())
            + ".",
            list(chosen),
            "An IPv4 address cannot connect to an IPv6 address.",
            scene.fixes.interface,
        )
    if chosen:
        yield _told(chosen)


def _told(chosen: dict[str, Chosen]) -> Finding:
    shown = list(chosen.items())[:MOST_TOLD]
    words = "; ".join(f"{one.name} ({one.address}) on {name}" for name, one in shown)
    more = f"; and {len(chosen) - MOST_TOLD} more" if len(chosen) > MOST_TOLD else ""
    names = list(dict.fromkeys(one.name for name, one in chosen.items() if name != HERE))
    variables = [
        f"{variable}={','.join(names)}"
        for one in declarations()
        for variable in (one.interface_variables if len(names) == 1 else one.interface_lists)
    ]
    return Finding(
        "note",
        f"Machines reach each other by {words}{more}.",
        [],
        "Frameworks choose interfaces by themselves, and sometimes one that leads nowhere.",
        f"If ranks hang at the start: --env {' '.join(variables)}.",
    )


def _fabrics(scene: Scene) -> Iterator[Finding]:
    active = {name: [one for one in facts.devices if one.active] for name, facts in scene.hosts.items()}
    down = [name for name, facts in scene.hosts.items() if facts.devices and not active[name]]
    having = [name for name, found in active.items() if found]
    if down:
        yield Finding(
            "warning",
            f"InfiniBand or RoCE devices are there, but no port of them is active on {name_some(down)}.",
            down,
            "All traffic between hosts would take the slower network.",
            "See `ibstat` there: a cable, the switch or the subnet manager is down.",
        )
    off = " ".join(setting for one in declarations() for setting in one.fabric_off)
    lacking = [name for name in active if name not in having and name not in down]
    if having and lacking:
        yield Finding(
            "warning",
            f"{name_some(having)} have InfiniBand or RoCE, and there is none on {name_some(lacking)}.",
            lacking,
            "GPUs must use one transport everywhere: they would hang or fall back to TCP.",
            f"Leave those hosts out, or start with --env {off}.",
        )
    elif having and not down:
        devices = [device for found in active.values() for device in found]
        names = ",".join(dict.fromkeys(device.device for device in devices))
        variables = [f"{variable}={names}" for one in declarations() for variable in one.fabric_variables]
        yield Finding(
            "note",
            f"All hosts have a fast fabric: {_fabric(devices)}.",
            having,
            "The GPUs' libraries use it where they find it. MPI's own messages take TCP: Open MPI survives the "
            "death of a rank on no other transport between hosts.",
            f"To pin them to it: --env {' '.join(variables)}.",
        )
    elif not having and not down and active:
        yield Finding(
            "note",
            "No host has InfiniBand or RoCE.",
            [],
            "Ranks on different hosts exchange gradients over TCP, which limits large models.",
        )


def _fabric(devices: list[Device]) -> str:
    kinds = {
        f"{'InfiniBand' if one.layer == 'InfiniBand' else 'RoCE'} {one.device}{f' ({one.rate})' if one.rate else ''}"
        for one in devices
    }
    return ", ".join(sorted(kinds))


def _connections(scene: Scene) -> Iterator[Finding]:
    if not scene.connections:
        return
    failed = [one for one in scene.connections if one.failure and one.tried]
    untried = [one for one in scene.connections if not one.tried]
    if untried:
        # A busy machine, or a slow login: no reason to refuse a world.
        yield Finding(
            "warning",
            f"Connections were not tried: {'; '.join(_untried(untried))}.",
            list(dict.fromkeys(one.source for one in untried)),
            "A firewall between these machines would make a start hang.",
            "Examine them again when they are less busy.",
        )
    deaf = {one.target: one for one in failed if one.failure.startswith(LISTEN_FAILED)}
    for target, one in deaf.items():
        yield Finding(
            "error",
            f"{target} {one.failure} ({one.address}).",
            [target],
            "Ranks there could not be reached.",
            scene.fixes.interface,
        )
    blocked: dict[tuple[str, str, str], list[str]] = {}
    for one in failed:
        if one.target not in deaf:
            blocked.setdefault((one.target, one.address, one.failure), []).append(one.source)
    for (target, address, failure), sources in blocked.items():
        yield Finding(
            "error",
            f"{target} ({address}) cannot be reached from {name_some(sources)}: {failure}.",
            [*sources, target],
            "Ranks and MPI's daemons connect to each other on ports that the system chooses.",
            f"Open all TCP ports between these machines in their firewalls. Or else: {scene.fixes.interface}",
        )
    if not failed and not untried:
        yield Finding("ok", f"TCP works from each host to all machines ({len(scene.connections)} connections tried).")


def _untried(connections: list[Connection]) -> list[str]:
    reasons = group({one.source: one.failure.rstrip(".") for one in connections})
    return [f"{name_some(sources)}: {reason}" for reason, sources in reasons.items()]
