"""The settings of MPI's daemons on other hosts, by which a world that runs can take in new ranks there.

Three faults of Open MPI 5.0.11 are in the way (PRRTE 3.0 and PMIx 5.0). The first two are in ``connect_release`` of
PRRTE's ``pmix_server_dyn.c``, by which daemons tell each other how to reach a new process:

* It tries to read one kind of data as another, which fails only where buffers carry their types. Without them it takes
  the new process for one of a job without a name, and from the second heal on, ranks on other hosts do not find new
  ones: MPI ends these ranks.
* It frees an element beyond the end of an array. With the guard, arrays of this kind have a page of memory of their
  own, in which that element is zero.
* A daemon ends and forgets a spawned job when its process dies, and may read it later. Where jobs can recover, it does
  not end them.

Under failure: without these a first heal mostly works, and later ones end living ranks or a daemon, and with it the
world. See ``docs/several-hosts.md``.
"""

from __future__ import annotations

from typing import Final

GUARD: Final = "MALLOC_MMAP_THRESHOLD_"
"""The variable by which glibc puts allocations of so many bytes and more into pages of their own."""
ENVIRONMENT: Final = {GUARD: "512"}
"""For ``mpiexec``, which is the daemon of its own host."""
OPTIONS: Final = (
    *("--pmixmca", "bfrops_base_default_type", "2"),
    *("--prtemca", "state_base_recoverable", "1"),
    *("--prtemca", "prte_launch_agent", f"/usr/bin/env {GUARD}=512 prted"),
)
"""For the command line of ``mpiexec``. 2 stands for buffers that carry types."""
FORGET: Final = ("-u", GUARD)
"""For ``env``, before the process of a slot: no rank gets the variable, nor the programs that it starts."""
