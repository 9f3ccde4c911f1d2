"""The sentences of findings that differ between the ways to the hosts: by ssh, or by srun in a job of Slurm."""

from __future__ import annotations

from typing import Final

import msgspec


class Cures(msgspec.Struct, frozen=True):
    """The sentences for one way."""

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
    leftovers: str
    """The line that removes the leftovers of dead worlds."""
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
    leftovers="%distributed doctor --remove-leftovers",
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
    leftovers="%distributed doctor --slurm --remove-leftovers",
    mpi="See whether `mpiexec hostname` works in a job on these nodes: `salloc --nodelist={hosts}`.",
)
