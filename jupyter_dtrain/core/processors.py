"""The processors that this process may use, and a rank's part of them.

Linux limits a process in two ways: its affinity names the processors on which it may run, and the quota of its control
group gives it the time of so many processors. Containers and batch systems use both. Two processors of one core (hyper
threads) share the parts that compute, so the cores are counted.

Under failure: where Linux does not show its cores or control groups, each processor counts as a core, without a quota.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Final

import msgspec

from .variables import Variable

_SYSTEM: Final = Path("/")


class Processors(msgspec.Struct, frozen=True):
    """The processors of one process."""

    numbers: list[int]
    """The processors on which the process may run, by Linux' numbers, in order."""
    cores: list[int]
    """The cores of :attr:`numbers`, each by the lowest number of its processors."""
    quota: float | None = None
    """How many processors' time its control group gets; None: there is no limit."""


def read_processors(pid: int = 0, system: Path = _SYSTEM) -> Processors:
    """Read the processors of the main thread of process ``pid``, by default of the calling thread.

    ``system`` is the folder with ``proc`` and ``sys``. Raises :class:`OSError` where there is no such process.
    """
    numbers = sorted(os.sched_getaffinity(pid))
    cores = sorted({_core(number, system) for number in numbers})
    return Processors(numbers, cores, _quota(system, str(pid or "self")))


def threads(own: Processors, mates: Sequence[Processors]) -> int:
    """How many threads a rank may keep busy, at least one.

    ``mates`` are the processors of all ranks of its host, itself included. Ranks that may use the same core have equal
    parts of it, and all of them share the quota.
    """
    users = Counter(core for mate in mates for core in mate.cores)
    part = sum((Fraction(1, users[core]) for core in own.cores), Fraction())
    if own.quota is not None:
        part = min(part, Fraction(own.quota) / len(mates))
    return max(1, int(part))


def thread_variables(own: Processors, mates: Sequence[Processors]) -> dict[str, Variable]:
    """``OMP_NUM_THREADS`` for a rank; see :func:`threads` for the arguments.

    A rank that has its host for itself gets none, as under torchrun: libraries choose as in any other program.
    """
    if len(mates) == 1:
        return {}
    sharing = sum(not set(own.cores).isdisjoint(mate.cores) for mate in mates)
    limits = [_count(len(own.cores), "core")] + ([] if own.quota is None else [f"a quota of {own.quota:g} processors"])
    shared = f"shared by {sharing} ranks of this host" if sharing > 1 else "for this rank alone"
    why = f"threads of a rank: {' and '.join(limits)}, {shared} (torchrun sets 1)"
    return {"OMP_NUM_THREADS": Variable(str(threads(own, mates)), why)}


def describe_processors(found: Processors) -> tuple[str, str]:
    """The numbers of ``found`` as Linux writes them, such as ``0-3,8``, and a remark on cores and quota."""
    spans: list[list[int]] = []
    for number in found.numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    words = ",".join("-".join(map(str, span)) for span in spans)
    quota = "" if found.quota is None else f", with a quota of {found.quota:g} processors"
    return words, f"{_count(len(found.cores), 'core')} on which this rank may run{quota}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _core(number: int, system: Path) -> int:
    path = system / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
    try:
        return int(path.read_text().replace("-", ",").partition(",")[0])
    except (OSError, ValueError):
        return number


def _quota(system: Path, process: str) -> float | None:
    """The smallest quota of the process's control group and the groups around it."""
    try:
        lines = (system / "proc" / process / "cgroup").read_text().splitlines()
    except OSError:
        return None
    found: list[float] = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            found += _quotas(system / "sys/fs/cgroup", group, ("cpu.max",))
        elif "cpu" in controllers.split(","):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            found += _quotas(system / "sys/fs/cgroup" / controllers, group, names)
            found += _quotas(system / "sys/fs/cgroup/cpu", group, names)
    return min(found, default=None)


def _quotas(root: Path, group: str, names: Sequence[str]) -> list[float]:
    """The quotas of ``group`` and those around it. A container may see its own group as the root, or not at all."""
    found: list[float] = []
    place = Path(os.path.normpath(root / group.lstrip("/")))
    while root == place or root in place.parents:
        with contextlib.suppress(OSError, ValueError):
            quota, period = " ".join((place / name).read_text() for name in names).split()
            # Version 2 says "max" where there is no limit, version 1 says -1.
            if float(quota) > 0:
                found.append(float(quota) / float(period))
        place = place.parent
    return found
