"""One process per world, child of no kernel: launches it, holds its lease and its generation, and ends it.

:mod:`.kernel` is how clients reach it (a Jupyter kernel of its own, on ``ipc`` sockets in a 0700 folder),
:mod:`.requests` answers them, :mod:`.supervisor` is the one thread that owns all processes and changes the
:mod:`.state`, :mod:`.rendezvous` the socket behind which a framework's store starts when a rank first needs it.
"""
