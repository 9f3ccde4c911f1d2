"""Findings with their cures, and the scene from which the modules that judge make them: machines with their facts.

The judges are :mod:`.machines`, :mod:`.software`, :mod:`.networks` and :mod:`.speed`. They are pure: the same scene
gives the same findings, and nothing is asked of any machine.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Literal, TypeVar

import msgspec

from jupyter_dtrain.launch.programs import Unreached

from .facts import HERE, Examined, Facts, Speeds

Severity = Literal["error", "warning", "note", "ok"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note", "ok")
"""In the order in which a person should read them."""

Key = TypeVar("Key", bound=Hashable)


class Finding(msgspec.Struct, frozen=True):
    """One thing that a person should know before ranks start."""

    severity: Severity
    """``error``: ranks cannot start or work together. ``warning``: they may fail later. ``note``: good to know."""
    what: str
    """What was found, as a sentence."""
    where: list[str] = []
    """The machines that it is about; empty for all of them."""
    why: str = ""
    """Why it matters; empty where nothing is wrong."""
    cure: str = ""
    """The way to mend it; empty where nothing needs to be done."""


class Cures(msgspec.Struct, frozen=True):
    """The sentences of findings that differ between the ways to the hosts: by ssh, or by srun in a job of Slurm."""

    program: str
    """The program that reaches the hosts."""
    python: str
    """The way to another interpreter."""
    or_other_python: str
    """The same as the end of a sentence that has named a cure; empty where there is no other."""
    interface: str
    """The way to another network interface."""
    unknown_interface: tuple[str, str]
    """Why the interface that leads to a host may be unknown and why that matters; and the cure."""
    limit: str
    """The way to a higher limit, with ``{name}``, or ``{unit}`` in systemd's words, and ``{value}``."""
    files: str
    """The way in which code and data get to hosts that share no file system."""
    mpi: str
    """The line that shows whether MPI jobs work, with ``{hosts}``."""

    def raise_limit(self, name: str, value: str) -> str:
        """The cure for a limit that is too low; ``name`` and ``value`` as in limits.conf."""
        words = self.limit.format(name=name, unit=name.rsplit(maxsplit=1)[-1].upper(), value=value)
        return words.replace("=unlimited", "=infinity")  # the word of systemd


SSH: Final = Cures(
    program="ssh",
    python="--python names an interpreter for the hosts.",
    or_other_python=", or name the right interpreter with --python",
    interface="Name another interface with --interface.",
    unknown_interface=(
        "ssh may go through a jump host or a tunnel, and ranks connect without it.",
        "Name an interface that all hosts reach with --interface.",
    ),
    limit="Raise it: `* {name} {value}` in /etc/security/limits.conf there, then log in again.",
    files="`%distributed sync PATH` copies code and data to each host, to the same path.",
    mpi="See whether `mpiexec --host {hosts} hostname` works in a terminal.",
)
SRUN: Final = Cures(
    program="srun",
    python="Nodes use the interpreter that has this notebook's path.",
    or_other_python="",
    interface="Let NodeAddr in slurm.conf lead to a network that all of them share.",
    unknown_interface=(
        "Ranks connect to this machine, and no route leads from it to the nodes' addresses in Slurm.",
        "See whether `ping` reaches those nodes from here.",
    ),
    limit="Raise it: Limit{unit}={value} for slurmd's service there; see PropagateResourceLimits in slurm.conf, too.",
    files="`%distributed sync PATH` copies code and data to each node, to the same path.",
    mpi="See whether `mpiexec hostname` works in a job on these nodes: `salloc --nodelist={hosts}`.",
)


class Chosen(msgspec.Struct, frozen=True):
    """The interface of a machine through which ranks talk to other machines."""

    name: str
    address: str
    loopback: bool = False


class Connection(msgspec.Struct, frozen=True):
    """A TCP connection that was tried."""

    source: str
    target: str
    address: str
    failure: str = ""
    """Why it failed, as Linux says it; empty if it was made."""
    tried: bool = True
    """Whether it was tried at all; else :attr:`failure` says why not."""


class Scene(msgspec.Struct, frozen=True):
    """All that is known before the findings."""

    examined: Examined
    """This machine under :data:`~.facts.HERE`, then the hosts in order."""
    python: str = "python"
    """The interpreter on the hosts."""
    cures: Cures = SSH
    """The sentences for the way to the hosts."""
    slots: dict[str, int] = {}
    """The ranks of each host."""
    chosen: dict[str, Chosen | None] = {}
    """The interface of each machine; None where there is none."""
    ways: dict[str, Chosen | None] = {}
    """The interface of this machine that leads to each host."""
    wanted: str | None = None
    """The interface that the person asked for."""
    connections: list[Connection] = []
    timed: list[str] = []
    """The hosts whose all-reduces were timed, in the order of :attr:`speeds`."""
    speeds: Speeds | str | None = None
    """The speeds of all-reduces, or why they could not be timed; None if that was not tried."""

    @property
    def facts(self) -> dict[str, Facts]:
        """The facts of each machine that answered."""
        return {name: one for name, one in self.examined.items() if isinstance(one, Facts)}

    @property
    def hosts(self) -> dict[str, Facts]:
        """The facts of the machines that get ranks: the hosts, or this machine where no host was named."""
        found = self.facts
        return found if len(self.examined) == 1 else {name: one for name, one in found.items() if name != HERE}

    @property
    def unreached(self) -> dict[str, Unreached]:
        """The machines that did not answer."""
        return {name: one for name, one in self.examined.items() if isinstance(one, Unreached)}

    @property
    def several(self) -> bool:
        """Whether ranks run on more than one machine, or elsewhere than here."""
        return len({one.place for one in self.facts.values()}) > 1


def group(values: Mapping[str, Key]) -> dict[Key, list[str]]:
    """The machines that share each value, in the order of the values' first machines."""
    found: dict[Key, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return found


def spread(values: Mapping[str, str]) -> str:
    """``3.11.2 on gpu1, gpu2; 3.12.1 on gpu3``."""
    return "; ".join(f"{value} on {name_some(names)}" for value, names in group(values).items())


def name_some(names: Iterable[str], most: int = 4) -> str:
    """``gpu1, gpu2, gpu3 and 5 more``."""
    listed = list(names)
    more = len(listed) - most
    return ", ".join(listed) if more <= 1 else f"{', '.join(listed[:most])} and {more} more"


def gib(size: float) -> str:
    """``size`` bytes in GiB, in words."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
