"""The answer of :mod:`.probe` on one machine, typed. Each field has a default: an answer may lack any of them."""

from __future__ import annotations

import ipaddress
from typing import Final

import msgspec

from jupyter_dtrain.launch.programs import Unreached

HERE: Final = "this machine"
"""The name of the machine of the notebook, among hosts. No host can have it: it has a space."""


class Package(msgspec.Struct, frozen=True):
    """Our own package on a machine."""

    path: str
    digest: str
    """A hash of its sources: two checkouts of one version may differ."""


class Space(msgspec.Struct, frozen=True):
    """Bytes of memory or of a file system."""

    total: int
    free: int
    path: str = ""


class Interface(msgspec.Struct, frozen=True):
    """A network interface."""

    name: str
    up: bool = True
    loopback: bool = False
    addresses: list[str] = []
    """Each as ``address/prefix``."""

    def bare(self) -> list[str]:
        """The addresses without prefixes: IPv4 first, those that need no zone before those that do."""
        found = [ipaddress.ip_interface(address).ip for address in self.addresses]
        return [str(one) for one in sorted(found, key=lambda one: (one.is_link_local, one.version))]


class Device(msgspec.Struct, frozen=True):
    """A port of an InfiniBand or RoCE device."""

    device: str
    port: int = 1
    layer: str = ""
    """``InfiniBand``, or ``Ethernet`` for RoCE."""
    active: bool = False
    rate: str = ""
    interfaces: list[str] = []


class Holder(msgspec.Struct, frozen=True):
    """A process that holds memory of a GPU."""

    pid: int
    user: str = ""
    command: str = ""
    world: str = ""
    """The world that it belongs to; empty if it belongs to none, or to another user."""
    used: int = 0
    """Bytes of the GPU's memory that the process holds."""


class GpuFacts(msgspec.Struct, frozen=True):
    """A GPU. Sizes in bytes."""

    index: int
    name: str = ""
    used: int = 0
    total: int = 0
    held_by: list[Holder] = []


class Nvidia(msgspec.Struct, frozen=True):
    """NVIDIA's driver and its GPUs."""

    driver: str = ""
    cuda: str = ""
    """The newest CUDA that the driver runs."""
    gpus: list[GpuFacts] = []


class Leftover(msgspec.Struct, frozen=True):
    """A process of a dead world, by its identity."""

    pid: int
    started: float
    """When it was created, in seconds since the epoch."""
    world: str
    command: str = ""


class LeftFolder(msgspec.Struct, frozen=True):
    """A folder of a dead world."""

    path: str
    world: str


class Facts(msgspec.Struct, frozen=True):
    """The facts that one machine tells of itself."""

    hostname: str = ""
    place: str = ""
    """Where process ids and addresses mean the same. Two hosts with one place are one machine."""
    user: str = ""
    machine: str = ""
    """The machine's processor, as Linux calls it: ``x86_64``."""
    python: str = ""
    executable: str = ""
    packages: dict[str, str] = {}
    package: Package | None = None
    """Our own package; None if it cannot be read."""
    cores: int = 0
    memory: Space | None = None
    shm: Space | None = None
    tmp: Space | None = None
    limits: dict[str, int] = {}
    """``memlock``, ``nofile`` and ``nproc``; -1 for no limit."""
    interfaces: list[Interface] = []
    devices: list[Device] = []
    ssh: list[str] = []
    """The connection as sshd sees it: the client's address and port, then its own."""
    shared: bool | None = None
    """Whether it sees the file that this machine has written; None if it was not asked."""
    nvidia: Nvidia | None = None
    leftovers: list[Leftover] = []
    folders: list[LeftFolder] = []
    """The folders that dead worlds have left."""
    unknown: dict[str, str] = {}
    """The facts that could not be had, each with the reason."""
    clock: float = 0.0
    """Seconds since the epoch, read as the last fact."""
    sent: float = 0.0
    """This machine's clock before the question."""
    received: float = 0.0
    """This machine's clock after the answer."""

    @property
    def skew(self) -> float:
        """Seconds by which its clock is ahead of this machine's, at the least: what the way there cannot explain."""
        return min(self.clock - self.sent, 0.0) + max(self.clock - self.received, 0.0) if self.clock else 0.0


class Speeds(msgspec.Struct, frozen=True):
    """The answer of :mod:`.allreduce`: the seconds of an all-reduce over all hosts, of few bytes and of many."""

    small: float
    large: float


class Failure(msgspec.Struct, frozen=True, order=True):
    """What a rank of :mod:`.allreduce` tells where it has no answer."""

    rank: int
    why: str
    """Its error and where it was raised, or where the rank waits."""


Examined = dict[str, Facts | Unreached]
"""Each machine's facts, or why there are none, by the host's name."""
