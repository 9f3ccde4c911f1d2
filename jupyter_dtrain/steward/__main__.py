"""The steward's process: ``python -m jupyter_dtrain.steward CONNECTION_FILE < request.json``.

It prints the world's id and its own process id, and leaves its parent behind, so that it is the child of no kernel; its
own parent is a guard.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_dtrain.wire.requests import WorldRequest


def remains(request: WorldRequest) -> list[list[str]]:
    """The commands that give back what a scheduler has lent to the world; none on this machine or over ssh."""
    from jupyter_dtrain.wire.requests import LOCAL

    if request.launcher == LOCAL:
        return []
    from jupyter_dtrain.launch import launcher_of

    allocation = launcher_of(request).allocation
    return [] if allocation is None else allocation.remains()


def main() -> None:
    """Start the world, then serve its clients until it has ended."""
    data = sys.stdin.buffer.read()
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

    request = msgspec.json.decode(data, type=readable(WorldRequest))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    become_subreaper()
    guardian = os.getpid()
    steward = os.fork()
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

    supervisor = Supervisor(request, umask)
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
