"""The steward's process: ``python -m jupyter_dtrain.steward CONNECTION_FILE < request.json``.

It prints the world's id and its own process id, and leaves its parent behind, so that it is the child of no kernel; its
own parent is a guard. With ``--waits=SECONDS`` in place of the file it imports everything, and waits for a start with
the other programs of a world beneath it, see :mod:`jupyter_dtrain.launch.prepared`.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_dtrain.launch.prepared import PreparedPrograms
    from jupyter_dtrain.wire.requests import WorldRequest

NICENESS = 5
"""The niceness of the session of a steward that waits."""


def remains(request: WorldRequest) -> list[list[str]]:
    """The commands that give back what a scheduler has lent to the world; none on this machine or over ssh."""
    from jupyter_dtrain.wire.requests import LOCAL

    if request.launcher == LOCAL:
        return []
    from jupyter_dtrain.launch import launcher_of

    allocation = launcher_of(request).allocation
    return [] if allocation is None else allocation.remains()


def wait_for_world(seconds: float, tell: int) -> tuple[PreparedPrograms, bytes]:
    """As the steward: import all, and wait for a start. Returns what has waited, too, and the request.

    ``tell``: the pipe to the guard. Ends this process where no start comes in so many ``seconds``, or any more.
    """
    from jupyter_dtrain.core.processes import show_variable
    from jupyter_dtrain.launch.leftovers import MARK
    from jupyter_dtrain.launch.prepared import PreparedPrograms, be_nice, part, read_order, read_part
    from jupyter_dtrain.rank.plugins import Plugins

    from .processes import die_with_parent

    try:
        show_variable(MARK, os.environ[MARK])
    except ValueError:  # the world's id could not be shown: the start will have a steward of its own
        os._exit(0)
    be_nice(NICENESS)
    programs = PreparedPrograms(die_with_parent)
    for module in ("kernel", "supervisor"):
        import_module(f"jupyter_dtrain.steward.{module}")
    Plugins.preload()
    if (order := read_order(seconds)) is None:
        os._exit(0)
    threading.Thread(target=be_nice, args=(0,), name="dtrain-nice", daemon=True).start()
    order.follow()
    request = read_part()
    with open(tell, "wb") as guard:
        guard.write(order.to_bytes() + part(request))
    return programs, request


def read_told() -> bytes:
    """As the guard: the request that the steward passes on. Ends this process where the steward has ended."""
    from jupyter_dtrain.launch.prepared import read_order, read_part

    if (order := read_order()) is None:
        os._exit(0)
    order.follow()
    return read_part()


def main() -> None:
    """Start the world, then serve its clients until it has ended."""
    waits = float(sys.argv[1].partition("=")[2]) if sys.argv[1].startswith("--waits=") else None
    data = b"" if waits is not None else sys.stdin.buffer.read()
    gc.disable()  # while it imports, as in launch.local.program
    # Files of the steward and the controller are for this user alone; ranks write as the notebook does.
    umask = os.umask(0o077)
    if os.fork():
        os._exit(0)
    import msgspec

    from jupyter_dtrain.core.structs import readable
    from jupyter_dtrain.launch.worlds import take_listing
    from jupyter_dtrain.wire.requests import WorldRequest

    from .processes import become_subreaper, dismiss, guard

    null = os.open(os.devnull, os.O_RDWR)
    become_subreaper()
    guardian = os.getpid()
    told, tell = os.pipe() if waits is not None else (-1, -1)  # from a steward that waits to its guard
    steward, programs = os.fork(), None
    if waits is not None and steward:
        os.dup2(null, 1)
        os.dup2(told, 0)
        os.close(tell)
        data = read_told()
    elif waits is not None:
        os.close(told)
        programs, data = wait_for_world(waits, tell)
    request = msgspec.json.decode(data, type=readable(WorldRequest))
    os.dup2(null, 0)
    if steward:
        os.dup2(2, 1)
        guard(steward, request.passing_folders, remains(request))
    # The listing comes before all that it lists. A start whose client was killed by now ends here, with nothing left.
    try:
        starter_lives = take_listing(request.folder) and os.write(1, f"\n{request.id} {os.getpid()}\n".encode())
    except BrokenPipeError:
        starter_lives = False
    if not starter_lives:
        shutil.rmtree(request.spool, ignore_errors=True)
        os._exit(0)
    os.dup2(2, 1)
    from .supervisor import Supervisor

    supervisor = Supervisor(request, umask, programs)
    # The processes start while the rest of the steward is still being imported.
    supervisor.start()
    from .kernel import serve

    gc.freeze()
    gc.enable()
    serve(sys.argv[1], supervisor)
    dismiss(guardian)
    # Nothing is left to be done, and the kernel's own end may hang: ipykernel 7 waits for its control thread, which may
    # be about to publish a status where no thread takes it any more. That was seen where a client asked in that moment.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
