"""The process that ``mpiexec`` starts for each rank: it hands its slot in the MPI world to the host's watch.

``mpiexec`` runs this file by its path and imports neither the package nor the standard library's larger modules: one
slot costs a hundredth of a second. So does the MPI job that living ranks spawn to replace dead ones (:mod:`.healing`),
with a second argument that says which. The process sends its environment, its processors and what ``mpiexec`` has
opened for it over a unix socket (see :mod:`.slots`), and the watch forks the rank. Then it waits for the rank's end.
On another host it hands over its standard output too: MPI's daemon there forgets the world when all processes of the
world's start have ended on that host, and then takes no new rank in; it counts one as ended only once its output is
closed (PRRTE of Open MPI 5.0.11).

Under failure: it ends with 0 where the rank did, and kills itself with SIGKILL where the rank ended in another way, or
where the watch is gone. A process that calls ``_exit`` with another code leaves the other ranks' ``Shrink`` stuck (Open
MPI 5.0), a killed one does not. Its own end closes the socket, by which the watch ends the rank.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself imports enum, which takes twice the time of the rest
import _socket
import os
import sys
import time

PATIENCE = 600.0
"""Seconds that the watch may take to listen: it starts at the same time, and imports more."""
PAUSE = 0.02
LENGTH = 4
"""Bytes of a number on the socket: the length of the message, and the rank's exit code."""
CPUS = b"DTRAIN_CPUS"
"""The entry of the message that lists the processors to which ``mpiexec`` has bound the process."""
REPLACES = b"DTRAIN_REPLACES"
"""The entry with the second argument, see :class:`.slots.Replacement`."""
INHERITED = b"PMI_FD"
"""The variable with the descriptor by which MPICH's launcher reaches its process. It goes along with the message."""


SOCKET = "slots"
"""The name of the watch's socket."""


def connect(folder: str) -> _socket.socket:
    """The watch's socket in ``folder``. Raises :class:`OSError` where no process listens for :data:`PATIENCE` seconds.

    It goes by the open folder: a unix socket's path may have no more than 107 bytes.
    """
    deadline = time.monotonic() + PATIENCE
    path = f"/proc/self/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}/{SOCKET}"
    while True:
        watch = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            watch.connect(path)
        except OSError:
            watch.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)
        else:
            return watch


def hand_over(watch: _socket.socket) -> None:
    """Send the slot: the length of the message and, as for ``/proc/PID/environ``, the variables."""
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0)))).encode()
    entries = [name + b"=" + value for name, value in os.environb.items()]
    replaces = [REPLACES + b"=" + os.fsencode(words) for words in sys.argv[2:3]]
    message = b"\0".join([*entries, CPUS + b"=" + cpus, *replaces])
    handed = []
    if os.environb.get(INHERITED, b"").isdigit():
        handed = [int(os.environb[INHERITED])]
    elif os.path.dirname(__file__) == sys.argv[1]:  # noqa: PTH120 — pathlib takes longer than all else here
        handed = [1, 2]  # the copy that the watch of another host has made
    rights = b"".join(number.to_bytes(LENGTH, sys.byteorder) for number in handed)
    passed = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if handed else []
    watch.sendmsg([len(message).to_bytes(LENGTH, "big")], passed)
    watch.sendall(message)


def main() -> None:
    """Hold the slot until the rank has ended."""
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    try:
        watch = connect(sys.argv[1])
        hand_over(watch)
        code = watch.recv(LENGTH)
    except OSError:
        code = b""
    if code != bytes(LENGTH):
        os.kill(os.getpid(), _signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main()
