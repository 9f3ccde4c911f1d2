"""The communicators inside MPI's windows and files. ULFM can revoke them, although MPI gives a program none of them.

A window and a file each keep a duplicate of the communicator that they were made from, and their collective calls wait
in it. Revoking the original reaches no duplicate. But MPI numbers all communicators of a process for Fortran, and
``MPI_Comm_f2c`` turns a number into the communicator: those with the ranks of a window are its own, or are alike.

Under failure: ``Revoke`` on a communicator that is only being made crashes Open MPI 5.0. So only a rank whose thread is
in a method of the window itself, which therefore exists, revokes a communicator found here. A call that fails leaves no
communicator behind, whole or not.
"""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

ENDLESS = frozenset(f"Win.{name}" for name in ("Lock", "Lock_all", "Start", "Complete", "Wait"))
"""Calls that wait until another rank writes into this rank's memory, whatever is revoked (Open MPI 5)."""

NUMBERS = 1024
"""How many of Fortran's numbers are tried; MPI gives out the lowest free one."""


def hidden_of(mpi: ModuleType, owner: Any) -> list[Any]:
    """The communicators with the ranks of ``owner``, a window or a file, other than ``COMM_WORLD`` itself."""
    found: list[Any] = []
    with contextlib.suppress(mpi.Exception):
        group = owner.Get_group()
        for number in range(NUMBERS):
            # Many numbers are free.
            with contextlib.suppress(mpi.Exception):
                comm = mpi.Comm.f2py(number)
                if comm in (mpi.COMM_NULL, mpi.COMM_SELF, mpi.COMM_WORLD) or comm.Is_inter():
                    continue
                members = comm.Get_group()
                if mpi.Group.Compare(members, group) in (mpi.IDENT, mpi.SIMILAR):
                    found.append(comm)
                members.Free()
        group.Free()
    return found
