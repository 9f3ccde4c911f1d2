"""The facts of one machine, and the program that tells them as a line of JSON.

Each machine runs the program from its own copy of the package. It judges nothing, and imports no package that it asks
about. Each field of :class:`Facts` has a default: an answer may lack any of them.

Under failure: a fact that cannot be had is left out and named under ``unknown`` with the reason. The program ends by
itself after the seconds that it is given, and then prints the facts that it has.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from jupyter_dtrain.core.framework_report import installed_version
from jupyter_dtrain.core.gpus import ask_driver
from jupyter_dtrain.core.processes import this_place
from jupyter_dtrain.launch import leftovers
from jupyter_dtrain.launch.leftovers import MARK, LeftFolder, Leftover

from .shared_file import sees

DRIVER_PATIENCE: Final = 8.0
"""Seconds that ``nvidia-smi`` may take: it is slow where the driver is not kept loaded."""
INFINIBAND: Final = Path("/sys/class/infiniband")
"""Linux' folder of all InfiniBand and RoCE devices."""


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


def main(text: str) -> None:
    """Print the facts. ``text``, as JSON: ``nonce``, ``seconds``, and the arguments of :func:`collect`."""
    asked = json.loads(text)
    answer: dict[str, Any] = {"unknown": {}}

    def send(*_: object) -> None:
        answer["clock"] = time.time()
        sys.stdout.write(f"\n{asked['nonce']} {msgspec.json.encode(answer).decode()}\n")
        sys.stdout.flush()
        # No program that was started outlives this one.
        for child in psutil.Process().children():
            child.kill()
        os._exit(0)

    signal.signal(signal.SIGALRM, send)
    signal.alarm(max(int(asked["seconds"]), 1))
    collect(answer, asked["packages"], asked["living"], asked["shared"])
    send()


def collect(answer: dict[str, Any], names: list[str], living: list[str], shared: dict[str, str] | None) -> None:
    """Put all facts into ``answer``, the fields of :class:`Facts`, the important and quick ones first.

    ``names``: the distributions whose versions are asked for. ``living``: the worlds that are known to live.
    ``shared``: a file that another machine has written, if there is one.
    """

    def take(name: str, ask: Callable[[], Any]) -> None:
        try:
            answer[name] = ask()
        except Exception as error:  # noqa: BLE001 — told: the other facts count
            answer["unknown"][name] = str(error) or type(error).__name__

    answer["python"] = ".".join(map(str, sys.version_info[:3]))
    answer["machine"] = os.uname().machine
    answer["executable"] = sys.executable
    answer["hostname"] = socket.gethostname()
    answer["ssh"] = os.environ.get("SSH_CONNECTION", "").split()
    take("place", place)
    take("user", psutil.Process().username)
    take("packages", lambda: {name: version for name in names if (version := installed_version(name))})
    take("package", package)
    take("cores", lambda: len(os.sched_getaffinity(0)))
    take("memory", memory)
    take("shm", lambda: space(leftovers.MEMORY))
    take("tmp", lambda: space(tempfile.gettempdir()))
    take("limits", limits)
    take("interfaces", interfaces)
    take("devices", devices)
    take("leftovers", lambda: leftovers.processes(living))
    take("folders", lambda: leftovers.folders(living))
    if shared:
        take("shared", lambda: sees(shared["path"], shared["nonce"]))
    take("nvidia", nvidia)


def place() -> str:
    """Where process ids and addresses mean the same: this boot, and these namespaces of processes and networks."""
    return f"{this_place()}/{Path('/proc/self/ns/net').readlink()}"


def package() -> Package:
    """Where our own package lies, and a digest of its sources."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() + b"\0")
    return Package(str(folder), digest.hexdigest()[:16])


def memory() -> Space:
    """Bytes of memory, as the control group of this process permits."""
    found = psutil.virtual_memory()
    total, free = found.total, found.available
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        total, free = min(total, limit), min(free, max(limit - used, 0))
    return Space(total, free)


def space(folder: str) -> Space:
    """Bytes of a file system; those that are free for this user."""
    found = shutil.disk_usage(folder)
    return Space(found.total, found.free, folder)


def limits() -> dict[str, int]:
    """The limits that hold for this user's programs, -1 for none."""
    names = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    return {name: resource.getrlimit(kind)[0] for name, kind in names.items()}


def interfaces() -> list[Interface]:
    """The network interfaces with their addresses. Raises :class:`OSError`."""
    states = psutil.net_if_stats()
    return [
        Interface(
            name,
            up=name in states and states[name].isup,
            loopback=name in states and "loopback" in states[name].flags.split(","),
            addresses=[
                f"{one.address.partition('%')[0]}{_prefix(one.netmask)}"
                for one in found
                if one.family in {socket.AF_INET, socket.AF_INET6}
            ],
        )
        for name, found in psutil.net_if_addrs().items()
    ]


def _prefix(mask: str | None) -> str:
    """``/24``; empty where the kernel gives no mask."""
    return f"/{int(ipaddress.ip_address(mask)).bit_count()}" if mask else ""


def devices() -> list[Device]:
    """The ports of InfiniBand and RoCE devices."""
    found = []
    for port in sorted(INFINIBAND.glob("*/ports/*")):
        device = port.parents[1]
        layer, state, rate = ((port / name).read_text().strip() for name in ("link_layer", "state", "rate"))
        active = "ACTIVE" in state.split(":")[-1].split()
        names = sorted(one.name for one in device.glob("device/net/*"))
        found.append(Device(device.name, int(port.name), layer, active, rate, names))
    return found


def nvidia() -> Nvidia | None:
    """The driver, and the GPUs with the processes that hold their memory; None without the driver's program."""
    fields = "index,uuid,name,memory.used,memory.total,driver_version"
    csv = "--format=csv,noheader,nounits"
    listing = ask_driver(f"--query-gpu={fields}", csv, patience=DRIVER_PATIENCE)
    if listing is None:
        return None
    held: dict[str, list[Holder]] = {}
    apps = ask_driver("--query-compute-apps=gpu_uuid,pid,used_memory", csv, patience=DRIVER_PATIENCE)
    for uuid, pid, used in _rows(apps):
        if pid.isdigit():
            held.setdefault(uuid, []).append(holder(int(pid), _bytes(used)))
    rows = _rows(listing)
    gpus = [
        GpuFacts(int(index), name, _bytes(used), _bytes(total), held.get(uuid, []))
        for index, uuid, name, used, total, _ in rows
    ]
    cuda = (ask_driver(patience=DRIVER_PATIENCE) or "").partition("CUDA Version:")[2].split()
    return Nvidia(rows[-1][-1] if rows else "", cuda[0] if cuda else "", gpus)


def holder(pid: int, used: int) -> Holder:
    """A process that holds memory of a GPU: its user, its program, and its world as far as this user may know."""
    user = command = world = ""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        user, command = process.username(), process.name()
        world = process.environ().get(MARK, "")
    return Holder(pid, user, command, world, used)


def _rows(text: str | None) -> list[list[str]]:
    """The fields of each line."""
    return [[part.strip() for part in line.split(",")] for line in (text or "").splitlines()]


def _bytes(text: str) -> int:
    """Bytes of a number of MiB; 0 for a value that the driver does not give."""
    return int(text) << 20 if text.isdigit() else 0
