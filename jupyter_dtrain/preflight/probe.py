"""Facts about one machine, as one line of JSON. Its text is sent there, to the standard input of a Python.

It needs the standard library alone and Python 3.7 or newer, since the package may be missing on that machine. It
imports no package that it asks about. It also removes leftovers of dead worlds, by verified identity.

Under failure: a fact that cannot be had is left out and named under ``unknown`` with the reason. The program ends by
itself after the seconds that it is given, and then prints the facts that it has.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import pwd
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

CHILDREN: list[subprocess.Popen[str]] = []
"""The programs that were started, so that none outlives this one."""

if TYPE_CHECKING:
    Json = dict[str, Any]  # an old Python, on the machine where this runs, does not know it

PROGRAM_PATIENCE = 8.0
"""Seconds that another program, such as nvidia-smi, may take."""
END_PATIENCE = 3.0
"""Seconds that killed processes may take to be gone."""
SETTLE = 0.5
"""Seconds after which a process of a world that has just ended is gone by itself."""
DEEPEST = 100
"""The most ancestors of a process to look at."""
SHOWN = 120
"""Characters of a command line that a finding shows."""
STEWARD = "jupyter_dtrain.steward"
"""A part of the command line of a world's steward, and of the guard that cleans up after one."""
LABEL = ".dtrain-folder"
"""The file by which a world's watch labels its folders; see watch/own_folders."""
MEMORY = "/dev/shm"  # noqa: S108 — nothing is written there
DAEMONS = ("prted", "orted", "sshd", "sshd-session", "slurmstepd", "hydra_pmi_proxy", "pbs_mom", "sge_shepherd")
"""Programs through which a steward on another machine holds the ranks of this one. They spare processes, never end
one."""


def main(text: str) -> None:
    """Do as ``text`` asks, a JSON object: ``task`` (``facts`` or ``remove``), ``nonce``, ``seconds`` and arguments."""
    asked = json.loads(text)
    answer: Json = {"unknown": {}}

    def tell(*_: object) -> None:
        answer["clock"] = time.time()
        sys.stdout.write(f"\n{asked['nonce']} {json.dumps(answer)}\n")
        sys.stdout.flush()
        for child in CHILDREN:
            child.kill()
        os._exit(0)

    signal.signal(signal.SIGALRM, tell)
    signal.alarm(max(int(asked["seconds"]), 1))
    if asked["task"] == "remove":
        answer.update(remove(asked["leftovers"], asked["mark"], asked["living"], asked["place"]))
        if asked.get("worlds"):
            answer.update(remove_folders(asked["worlds"], asked["mark"], asked["living"]))
    else:
        collect(answer, asked)
    tell()


def collect(answer: Json, asked: Json) -> None:
    """Put all facts into ``answer``, the important and quick ones first."""

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
    take("user", user)
    take("packages", lambda: packages(asked["packages"]))
    take("package", lambda: package(asked["package"]))
    take("cores", lambda: len(os.sched_getaffinity(0)))
    take("memory", memory)
    take("shm", lambda: space(MEMORY))
    take("tmp", lambda: space(tempfile.gettempdir()))
    take("limits", limits)
    take("interfaces", interfaces)
    take("devices", devices)
    take("leftovers", lambda: settled(asked["mark"], asked["living"]))
    alive = asked["mark"], asked["living"]
    take("folders", lambda: [{"path": one[0], "world": one[1]} for one in dead_folders(census(*alive)[1])])
    if asked.get("shared"):
        take("shared", lambda: sees(asked["shared"]["path"], asked["shared"]["nonce"]))
    take("nvidia", lambda: nvidia(asked["mark"]))


def place() -> str:
    """Where process ids and addresses mean the same: this boot, and these namespaces of processes and networks."""
    names = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net")]  # noqa: PTH115 — since Python 3.9
    return "/".join([read("/proc/sys/kernel/random/boot_id"), *names])


def user() -> str:
    """The user's name, or the number of one without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def packages(names: list[str]) -> dict[str, str]:
    """The versions of the distributions that are installed."""
    from importlib import metadata

    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = str(metadata.version(name))
    return found


def package(name: str) -> Json | None:
    """Where a package would be imported from, and a digest of its sources. It is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    if not (folder / "__init__.py").is_file():
        return None  # an empty folder of that name counts as a package for Python
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() + b"\0")
    return {"path": str(folder), "digest": digest.hexdigest()[:16]}


def memory() -> dict[str, int]:
    """Bytes of memory: ``total`` and ``free``, as the control group of this process permits."""
    lines = dict(line.split(":", 1) for line in read("/proc/meminfo").splitlines())
    total, free = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    with contextlib.suppress(OSError, ValueError):
        limit = int(read("/sys/fs/cgroup/memory.max"))
        used = int(read("/sys/fs/cgroup/memory.current"))
        total, free = min(total, limit), min(free, max(limit - used, 0))
    return {"total": total, "free": free}


def space(folder: str) -> Json:
    """Bytes of a file system: ``total``, ``free`` for this user, and the ``path``."""
    found = os.statvfs(folder)
    return {"path": folder, "total": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}


def limits() -> dict[str, int]:
    """The limits that hold for this user's programs, -1 for none."""
    names = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    return {name: resource.getrlimit(kind)[0] for name, kind in names.items()}


def interfaces() -> list[Json]:
    """The network interfaces with their addresses, each as ``address/prefix``."""
    program = shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if program:
        with contextlib.suppress(OSError, ValueError, KeyError, subprocess.SubprocessError):
            return [
                {
                    "name": one["ifname"],
                    "up": "UP" in one["flags"] and one["operstate"] != "DOWN",
                    "loopback": "LOOPBACK" in one["flags"],
                    "addresses": [f"{each['local']}/{each['prefixlen']}" for each in one["addr_info"]],
                    "speed": link_speed(one["ifname"]),
                }
                for one in json.loads(run([program, "-j", "addr"]))
            ]
    return list(interfaces_of_kernel())


def interfaces_of_kernel() -> Iterator[Json]:
    """The same where the program ``ip`` is missing or too old: one IPv4 address each, and all of IPv6."""
    sixes: dict[str, list[str]] = {}
    with contextlib.suppress(OSError):
        for line in read("/proc/net/if_inet6").splitlines():
            digits, _, prefix, _, _, name = line.split()
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
            sixes.setdefault(name, []).append(f"{address}/{int(prefix, 16)}")
    for _, name in socket.if_nameindex():
        flags = int(read(f"/sys/class/net/{name}/flags"), 16)
        yield {
            "name": name,
            "up": bool(flags & 1) and read(f"/sys/class/net/{name}/operstate") != "down",
            "loopback": bool(flags & 8),
            "addresses": ipv4_of(name) + sixes.get(name, []),
            "speed": link_speed(name),
        }


def link_speed(name: str) -> int:
    """The megabits a second of an interface's link; 0 where its driver does not say, or says that it is down."""
    with contextlib.suppress(OSError, ValueError):
        return max(int(read(f"/sys/class/net/{name}/speed")), 0)
    return 0


def ipv4_of(name: str) -> list[str]:
    """The IPv4 address of an interface, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, contextlib.suppress(OSError):
        request = struct.pack("256s", name.encode()[:15])
        address = fcntl.ioctl(one, 0x8915, request)[20:24]
        mask = fcntl.ioctl(one, 0x891B, request)[20:24]
        ones = bin(int.from_bytes(mask, "big")).count("1")  # noqa: FURB161 — bit_count() came with Python 3.10
        return [f"{socket.inet_ntoa(address)}/{ones}"]
    return []


def devices(root: str = "/sys/class/infiniband") -> list[Json]:
    """The ports of InfiniBand and RoCE devices."""
    found = []
    for port in sorted(Path(root).glob("*/ports/*")):
        device = port.parents[1]
        found.append(
            {
                "device": device.name,
                "port": int(port.name),
                "layer": read(port / "link_layer"),
                "active": "ACTIVE" in read(port / "state").split(":")[-1].split(),
                "rate": read(port / "rate"),
                "interfaces": sorted(one.name for one in device.glob("device/net/*")),
            }
        )
    return found


def sees(path: str, nonce: str) -> bool:
    """Whether the file ``path`` is here and holds ``nonce``: then both machines see one file system."""
    try:
        return read(path) == nonce
    except OSError:
        return False


def nvidia(mark: str) -> Json | None:
    """The driver, and the GPUs with the processes that hold their memory; None without the driver's program."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    fields = "index,uuid,name,memory.used,memory.total,driver_version"
    gpus: list[Json] = []
    driver = ""
    for line in run([program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]).splitlines():
        index, uuid, name, used, total, driver = (part.strip() for part in line.split(","))
        gpus.append(
            {"index": int(index), "uuid": uuid, "name": name, "used": mib(used), "total": mib(total), "held_by": []}
        )
    by_uuid = {gpu["uuid"]: gpu for gpu in gpus}
    apps = run([program, "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"])
    for line in apps.splitlines():
        uuid, pid, used = (part.strip() for part in line.split(","))
        if uuid in by_uuid and pid.isdigit():
            by_uuid[uuid]["held_by"].append(dict(holder(int(pid), mark), used=mib(used)))
    cuda = run([program]).partition("CUDA Version:")[2].split()
    return {"driver": driver, "cuda": cuda[0] if cuda else "", "gpus": gpus}


def holder(pid: int, mark: str) -> Json:
    """A process that holds a GPU: its user, its program, and its world as far as this user may know."""
    found: Json = {"pid": pid, "user": "", "command": "", "world": ""}
    with contextlib.suppress(OSError):
        owner = Path(f"/proc/{pid}").stat().st_uid
        found["user"] = str(owner)
        with contextlib.suppress(KeyError):
            found["user"] = pwd.getpwuid(owner).pw_name
        found["command"] = read(f"/proc/{pid}/comm")
        found["world"] = world_of(pid, mark)
    return found


def leftovers(mark: str, living: list[str]) -> list[Json]:
    """The processes of this user that belong to dead worlds, by their identities.

    A process belongs to the world that the variable ``mark`` in its environment names. The world lives if its id is
    among ``living``, if its steward or guard runs on this machine, or if a daemon that started its processes from
    another machine is still above one of them. This process and those above it are none: a notebook may have been
    started from a rank.
    """
    marked, alive = census(mark, living)
    return [dict(one, command=one["command"][:SHOWN]) for one in marked if one["world"] not in alive]


def census(mark: str, living: list[str]) -> tuple[list[Json], set[str]]:
    """The processes of this user that belong to any world, and the worlds that live; see :func:`leftovers`."""
    marked: dict[int, Json] = {}
    spared = set(line(os.getpid()))
    for folder in Path("/proc").iterdir():
        one = identity(int(folder.name), mark) if folder.name.isdigit() else None
        if one is not None and one["pid"] not in spared:
            marked[one["pid"]] = one
    alive = set(living)
    for one in marked.values():
        if one["world"] not in alive and (STEWARD in one["command"] or is_held(one["pid"])):
            alive.add(one["world"])
    return list(marked.values()), alive


def settled(mark: str, living: list[str]) -> list[Json]:
    """The leftovers that still run after :data:`SETTLE` seconds: a world that has just ended takes a moment."""
    found = leftovers(mark, living)
    if found:
        time.sleep(SETTLE)
        again = leftovers(mark, living)
        found = [one for one in found if one in again]
    return found


def is_held(pid: int) -> bool:
    """Whether a daemon that another machine started is above the process, or is the process."""
    for each in line(pid):
        with contextlib.suppress(OSError):
            if read(f"/proc/{each}/comm") in DAEMONS:
                return True
    return False


def line(pid: int) -> Iterator[int]:
    """The process and those above it, without the first of all: that one adopts orphans, whatever it is called."""
    for _ in range(DEEPEST):
        if pid <= 1:
            return
        yield pid
        pid = status(pid)[0]


def identity(pid: int, mark: str) -> Json | None:
    """The process if it is this user's, belongs to a world, and still runs.

    An id alone may belong to another process soon. With the time of its start (in ticks since this boot) it cannot.
    """
    try:
        if Path(f"/proc/{pid}").stat().st_uid != os.getuid():
            return None
        _, started, state = status(pid)
        world = world_of(pid, mark)
        if not world or state in "ZX":
            return None
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except (OSError, ValueError):
        return None
    return {"pid": pid, "started": started, "world": world, "command": command}


def status(pid: int) -> tuple[int, int, str]:
    """The parent, the time of the start, and the state of a process; zeros where it is gone."""
    try:
        # The program's name stands in brackets and may hold anything, a bracket too.
        fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return int(fields[1]), int(fields[19]), fields[0]
    except (OSError, ValueError, IndexError):
        return 0, 0, "X"


def world_of(pid: int, mark: str) -> str:
    """The world that the environment of a process names; empty if none does, or if it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    begin = mark.encode() + b"="
    return next((one[len(begin) :].decode(errors="replace") for one in variables if one.startswith(begin)), "")


def remove(wanted: list[Json], mark: str, living: list[str], where: str) -> Json:
    """Kill the leftovers that are ``wanted``, if each is still the same process of the same dead world here.

    Returns the ids that ``ended`` and those ``left``, with the reason.
    """
    left: dict[str, str] = {}
    if place() != where:
        return {"ended": [], "left": {str(one["pid"]): "the machine has started anew since" for one in wanted}}
    found = {(one["pid"], one["started"], one["world"]) for one in leftovers(mark, living)}
    handles: dict[int, int] = {}
    for one in wanted:
        pid = one["pid"]
        if (pid, one["started"], one["world"]) not in found:
            left[str(pid)] = "it is no leftover any more"
            continue
        try:
            handle = os.pidfd_open(pid)
        except (OSError, AttributeError) as error:
            left[str(pid)] = f"it cannot be held: {error}"
            continue
        handles[pid] = handle
        # From here on the handle means one process. It is the wanted one if its identity still reads the same.
        now = identity(pid, mark)
        if now is None or (now["started"], now["world"]) != (one["started"], one["world"]):
            left[str(pid)] = "it is gone"
            continue
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    ended = [pid for pid, handle in handles.items() if str(pid) not in left and await_end(handle)]
    left.update({str(pid): "it did not end" for pid in handles if pid not in ended and str(pid) not in left})
    for handle in handles.values():
        os.close(handle)
    return {"ended": ended, "left": left}


def dead_folders(alive: set[str]) -> Iterator[tuple[str, str, Path]]:
    """The folders that dead worlds have left among temporary files and in memory: path, world, and the way inside.

    The folder is locked, as only its watch locks it, while the loop looks at it. The way inside leads to this one
    folder, whatever its path means later.
    """
    places = [Path(where) for where in sorted({tempfile.gettempdir(), MEMORY})]
    for path in sorted(str(path) for one in places if one.is_dir() for path in one.iterdir()):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                world = label_of(handle)
                if world and world not in alive:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield path, world, Path(f"/proc/self/fd/{handle}")
            finally:
                os.close(handle)


def label_of(folder: int) -> str:
    """The world in the label of a folder: both are this user's, and it names this folder's number, boot and place."""
    own = os.fstat(folder)
    with open(os.open(LABEL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)) as file:
        owner, label = os.fstat(file.fileno()).st_uid, json.load(file)
    here = [os.getuid(), os.getuid(), [own.st_dev, own.st_ino], place().rpartition("/")[0]]
    return str(label["world"]) if [own.st_uid, owner, label["folder"], label["place"]] == here else ""


def remove_folders(worlds: list[str], mark: str, living: list[str]) -> Json:
    """Remove the folders of dead ``worlds`` without a process here. Returns those ``removed``, and those ``kept``."""
    marked, alive = census(mark, living)
    answer: Json = {"removed": [], "kept": {}}
    for path, world, inside in dead_folders(alive | {one["world"] for one in marked}):
        if world in worlds:
            try:
                for one in sorted(inside.iterdir(), key=lambda one: one.name == LABEL):  # the label last
                    shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
                os.rmdir(path)  # noqa: PTH106 — it is empty, or this raises
                answer["removed"].append(path)
            except OSError as error:
                answer["kept"][path] = str(error)
    return answer


def await_end(handle: int) -> bool:
    """Whether the process ends within :data:`END_PATIENCE`."""
    return bool(select.select([handle], [], [], END_PATIENCE)[0])


def mib(text: str) -> int:
    """Bytes of a number of MiB; 0 for a value that the driver does not give."""
    return int(text) << 20 if text.isdigit() else 0


def read(path: str | Path) -> str:
    """The text of a small file, without spaces around it."""
    with open(path, errors="replace") as file:
        return file.read().strip()


def run(command: list[str]) -> str:
    """The output of a program. Raises ``OSError`` and ``SubprocessError``."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        CHILDREN.append(child)
        try:
            output = child.communicate(timeout=PROGRAM_PATIENCE)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            raise
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return output
