"""Findings about machines: which ones answer, their clocks, limits, memory, GPUs, file systems and leftovers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from jupyter_dtrain.core.world import quantity
from jupyter_dtrain.launch.leftovers import MEMORY
from jupyter_dtrain.launch.programs import Kind

from .findings import HERE, Finding, Scene, gib, group, name_some
from .probe import Facts, GpuFacts, Holder

MOST_SKEW: Final = 1.0
"""Seconds by which clocks may differ."""
LEAST_FILES: Final = 1024
LEAST_PROCESSES: Final = 4096
LEAST_SHM: Final = 2**30
"""Bytes of shared memory: a container has 64 MiB by default."""
LEAST_SHM_FREE: Final = 256 * 2**20
LEAST_TMP: Final = 2**30
RANK_MEMORY: Final = 300 * 2**20
"""Bytes that a rank needs before it loads a framework and data."""
IDLE_GPU: Final = 0.05
"""The part of a GPU's memory that may be in use on an idle one."""

_NO_ANSWER: Final[dict[Kind, str]] = {
    "no ssh": "This machine has no ssh, so no host can be reached",
    "bad options": "ssh refuses its options",
    "unknown host": "The name of a host is unknown",
    "refused": "ssh is refused",
    "no route": "No network leads to a host",
    "timed out": "A host does not answer",
    "host key changed": "The key of a host has changed",
    "host key unknown": "The key of a host is unknown",
    "permission denied": "A host refuses the login",
    "closed": "A host closes the connection",
    "no program": "The Python interpreter is missing",
    "failed": "A host cannot be examined",
}


def find(scene: Scene) -> Iterator[Finding]:
    """All findings about machines."""
    yield from _reach(scene)
    yield from _same_machine(scene)
    yield from _names(scene)
    yield from _clocks(scene)
    yield from _limits(scene)
    yield from _memory(scene)
    yield from _gpus(scene)
    yield from _leftovers(scene)
    yield from _files(scene)
    yield from _unknown(scene)


def _reach(scene: Scene) -> Iterator[Finding]:
    # Of those without the package, :mod:`.software` says so.
    kinds = group({name: one.kind for name, one in scene.unreached.items() if one.kind != "no package"})
    for kind, names in kinds.items():
        reasons = dict.fromkeys(scene.unreached[name].reason for name in names)
        fixes = dict.fromkeys(scene.unreached[name].fix for name in names)
        yield Finding(
            "error",
            f"{_NO_ANSWER[kind]}: {' '.join(reasons)}",
            names,
            "No rank can start there, and nothing else about it is known.",
            " ".join(fixes),
        )
    reached = [name for name in scene.facts if name != HERE]
    if reached:
        yield Finding("ok", f"{scene.fixes.program} reaches {name_some(reached)}.")


def _same_machine(scene: Scene) -> Iterator[Finding]:
    places = group({name: one.place for name, one in scene.hosts.items() if one.place})
    for names in places.values():
        if len(names) > 1:
            yield Finding(
                "warning",
                f"{name_some(names)} are one machine.",
                names,
                "Ranks would share its cores, memory and GPUs, and MPI's collectives fail between hosts of one name.",
                "Name each machine once, with all its ranks.",
            )


def _names(scene: Scene) -> Iterator[Finding]:
    machines = {one.place: name for name, one in reversed(scene.hosts.items())}
    names = group({name: one.hostname for name, one in scene.hosts.items() if machines[one.place] == name})
    for hostname, hosts in names.items():
        if hostname and len(hosts) > 1:
            yield Finding(
                "warning",
                f"{name_some(hosts)} have the same hostname, {hostname!r}.",
                hosts,
                "Open MPI takes hosts of one name for one: its collectives fail there with 'message truncated'.",
                "Give each host a name of its own with `hostnamectl set-hostname`.",
            )


def _clocks(scene: Scene) -> Iterator[Finding]:
    clocks = {name: one.skew for name, one in scene.facts.items() if one.clock}
    wrong = {name: skew for name, skew in clocks.items() if abs(skew) > MOST_SKEW}
    if wrong:
        words = "; ".join(
            f"{name} is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}" for name, skew in wrong.items()
        )
        yield Finding(
            "warning",
            f"Clocks differ from this machine's: {words}.",
            list(wrong),
            "Times of losses and output would be out of order between hosts, and certificates may be refused.",
            "Let all machines follow one time server (chrony or systemd-timesyncd).",
        )
    elif len(clocks) > 1:
        yield Finding("ok", f"The clocks of all machines agree within {MOST_SKEW:g} s.")


def _limits(scene: Scene) -> Iterator[Finding]:
    low = _too_low(scene.hosts, "nofile", LEAST_FILES)
    if low:
        yield Finding(
            "warning",
            f"Few files may be open at a time: {_numbers(low)}.",
            list(low),
            "Ranks with many workers and connections fail with 'Too many open files'.",
            scene.fixes.raise_limit("soft nofile", "65536"),
        )
    low = _too_low(scene.hosts, "nproc", LEAST_PROCESSES)
    if low:
        yield Finding(
            "warning",
            f"Few processes and threads are allowed: {_numbers(low)}.",
            list(low),
            "Ranks fail with 'Resource temporarily unavailable' when they start threads.",
            scene.fixes.raise_limit("soft nproc", "unlimited"),
        )
    fast = {name: one for name, one in scene.hosts.items() if any(device.active for device in one.devices)}
    low = {name: one.limits["memlock"] for name, one in fast.items() if one.limits.get("memlock", -1) >= 0}
    if low:
        yield Finding(
            "warning",
            f"Little memory may be locked: {'; '.join(f'{gib(size)} on {name}' for name, size in low.items())}.",
            list(low),
            "InfiniBand and RoCE register memory, which must be locked: without it they fail, or fall back to TCP.",
            scene.fixes.raise_limit("- memlock", "unlimited"),
        )


def _too_low(hosts: Mapping[str, Facts], limit: str, least: int) -> dict[str, int]:
    values = {name: one.limits[limit] for name, one in hosts.items() if limit in one.limits}
    return {name: value for name, value in values.items() if 0 <= value < least}


def _numbers(values: Mapping[str, int]) -> str:
    return "; ".join(f"{value} on {name_some(names)}" for value, names in group(values).items())


def _memory(scene: Scene) -> Iterator[Finding]:
    for name, one in scene.hosts.items():
        ranks = scene.slots.get(name, 1)
        if one.memory and one.memory.free < ranks * RANK_MEMORY:
            yield Finding(
                "warning",
                f"{name} has {gib(one.memory.free)} of free memory for {quantity(ranks, 'rank')}.",
                [name],
                f"A rank takes {gib(RANK_MEMORY)} before it loads anything, and Linux kills processes without memory.",
                "Free memory there, or give it fewer ranks.",
            )
        if one.shm is None and "shm" in one.unknown:
            what = f"{name} has no {MEMORY}."
        elif one.shm and one.shm.total < LEAST_SHM:
            what = f"{MEMORY} on {name} has {gib(one.shm.total)} in all."
        elif one.shm and one.shm.free < LEAST_SHM_FREE:
            what = f"{MEMORY} on {name} has {gib(one.shm.free)} left."
        else:
            what = ""
        if what:
            yield Finding(
                "warning",
                what,
                [name],
                "Data loaders, MPI and GPUs keep their buffers there, and fail with 'Bus error' when it is full.",
                "In a container: --shm-size=8g or --ipc=host; else enlarge it, or remove old files in it.",
            )
        if one.tmp and one.tmp.free < LEAST_TMP:
            yield Finding(
                "warning",
                f"{one.tmp.path} on {name} has {gib(one.tmp.free)} left.",
                [name],
                "Ranks keep their output and temporary files there.",
                "Free space there, or let TMPDIR name another folder.",
            )


def _gpus(scene: Scene) -> Iterator[Finding]:
    counts = {name: len(one.nvidia.gpus) if one.nvidia else 0 for name, one in scene.hosts.items()}
    if any(counts.values()) and not all(counts.values()):
        without = [name for name, count in counts.items() if not count]
        yield Finding(
            "warning",
            f"There is no GPU on {name_some(without)}; other hosts have some.",
            without,
            "Ranks there would compute on processors, and all others wait for them.",
            "Leave those hosts out, or see there why `nvidia-smi` finds none.",
        )
    for name, one in scene.hosts.items():
        if one.nvidia is None:
            continue
        strays = {leftover.pid for leftover in one.leftovers}
        for gpu in one.nvidia.gpus:
            yield from _held(name, gpu, strays)
        ranks, gpus = scene.slots.get(name, 0), len(one.nvidia.gpus)
        if gpus and ranks > gpus:
            yield Finding(
                "warning",
                f"{ranks} ranks would share {quantity(gpus, 'GPU')} on {name}.",
                [name],
                "Ranks that share a GPU share its memory, and collectives between GPUs refuse them.",
                f"Give {name} at most {gpus} ranks.",
            )
    if any(counts.values()):
        words = "; ".join(f"{count} on {name_some(names)}" for count, names in group(counts).items())
        yield Finding("ok" if len(set(counts.values())) == 1 else "note", f"GPUs: {words}.")


def _held(name: str, gpu: GpuFacts, strays: set[int]) -> Iterator[Finding]:
    """Findings about one GPU in use."""
    if gpu.used <= gpu.total * IDLE_GPU and not gpu.held_by:
        return
    dead = [one for one in gpu.held_by if one.pid in strays]
    if dead:
        yield Finding(
            "warning",
            f"GPU {gpu.index} on {name} is held by what dead worlds left behind: {_holders(dead)}.",
            [name],
            "A new world would find less memory there.",
            f"{_remove(name)} ends them.",
        )
    others = [one for one in gpu.held_by if one.pid not in strays]
    if others or not dead:
        who = _holders(others) if others else "processes that this user cannot see"
        yield Finding(
            "warning",
            f"GPU {gpu.index} on {name} is in use ({gib(gpu.used)} of {gib(gpu.total)}): {who}.",
            [name],
            "Ranks there share its memory and its time with them.",
            "Wait for them, end them if they are yours, or choose other GPUs with CUDA_VISIBLE_DEVICES.",
        )


def _holders(holders: list[Holder]) -> str:
    return "; ".join(
        f"{one.command or 'a process'} of {one.user or 'an unknown user'} (pid {one.pid}"
        f"{f', world {one.world}' if one.world else ''}, {gib(one.used)})"
        for one in holders
    )


def _leftovers(scene: Scene) -> Iterator[Finding]:
    yield from _left_folders(scene)
    seen: set[tuple[str, int]] = set()
    for name, one in scene.facts.items():
        left = [each for each in one.leftovers if (one.place, each.pid) not in seen]
        seen |= {(one.place, each.pid) for each in left}
        if left:
            worlds = ", ".join(dict.fromkeys(each.world for each in left))
            yield Finding(
                "warning",
                f"Processes of dead worlds ({worlds}) still run on {name}: "
                f"pid {name_some([str(each.pid) for each in left])}.",
                [name],
                "They hold memory, GPUs and ports.",
                f"{_remove(name)} ends them, after it has verified each one.",
            )


def _left_folders(scene: Scene) -> Iterator[Finding]:
    seen: set[str] = set()
    for name, one in scene.facts.items():
        if one.folders and one.place not in seen:
            worlds = ", ".join(dict.fromkeys(each.world for each in one.folders))
            paths = name_some([each.path for each in one.folders])
            yield Finding(
                "warning",
                f"Dead worlds ({worlds}) have left folders on {name}: {paths}.",
                [name],
                "They hold memory and disk space, and the output of cells.",
                f"{_remove(name)} removes them, after it has verified each one.",
            )
        seen.add(one.place)


def _remove(name: str) -> str:
    """The line that removes the leftovers of dead worlds on a machine."""
    if name == HERE:
        return "%distributed doctor --remove-leftovers"
    return "`jupyter dtrain doctor --remove-leftovers`, in a terminal there,"


def _files(scene: Scene) -> Iterator[Finding]:
    sees = {name: one.shared for name, one in scene.hosts.items() if one.shared is not None}
    having = [name for name, one in sees.items() if one]
    lacking = [name for name, one in sees.items() if not one]
    if having and lacking:
        yield Finding(
            "warning",
            f"This machine's working directory is visible on {name_some(having)}, but not on {name_some(lacking)}.",
            lacking,
            "Ranks there would read other files than the rest, or none.",
            scene.fixes.files,
        )
    elif lacking:
        why = "Ranks there find neither the modules nor the data beside the notebook."
        yield Finding("note", "The hosts do not share this machine's file system.", lacking, why, scene.fixes.files)
    elif having:
        yield Finding("ok", "All hosts see the working directory of this machine.")


def _unknown(scene: Scene) -> Iterator[Finding]:
    reasons: dict[str, dict[str, str]] = {}
    for name, one in scene.facts.items():
        for what, words in one.unknown.items():
            if what != "shm":
                reasons.setdefault(what, {})[name] = words
    for what, by_name in reasons.items():
        yield Finding(
            "note",
            f"Not known on {name_some(by_name)}: {what} ({next(iter(by_name.values()))}).",
            list(by_name),
            "The checks that need it were left out there.",
        )
