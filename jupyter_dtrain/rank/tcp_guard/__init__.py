"""The guard for TCP servers of frameworks, which ask for no password: it keeps other users and other hosts out.

The functions below are all that other rooms use; :doc:`/architecture/6-security` says which servers need them, and why
unix sockets cannot take their place. The guard has three parts, each built on an interface of Linux:

* :mod:`.owner` asks which user holds the other end of a connection (netlink, or ``/proc/net/tcp``);
* :mod:`.accept_filter` answers each ``accept`` of a process that only serves, and closes other users' connections
  (seccomp's user notification);
* :mod:`.loopback` has a listener drop packets from other hosts (a BPF filter on the socket).

Under failure a server goes on as it would without the guard: it accepts every user, or listens at all addresses.
:func:`keeps_others_out` finds out beforehand whether this system can keep other users out.
"""

from __future__ import annotations

from .accept_filter import keep_for_this_user, keeps_others_out
from .loopback import end_others, keep_on_loopback
from .owner import is_own, own_waits

__all__ = ["end_others", "is_own", "keep_for_this_user", "keep_on_loopback", "keeps_others_out", "own_waits"]
