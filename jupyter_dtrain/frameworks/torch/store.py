"""The world's rendezvous store: a TCPStore server in a process of its own, so that it outlives every rank.

The steward starts it with a listening socket (``--fd``) at ``--port``; clients that connected before it was up are
served then. It ends with the steward. torch's store asks for no password, so it accepts connections of this user only
(:mod:`jupyter_dtrain.rank.tcp_guard`).
"""

from __future__ import annotations

import signal
from datetime import timedelta

from jupyter_dtrain.rank.rank_directory import begin


def main() -> None:
    """Serve the store until the process is killed."""
    given = begin(__doc__)
    from torch.distributed import TCPStore

    store = TCPStore(
        given.host,
        given.port,
        None,
        is_master=True,
        timeout=timedelta(seconds=30),
        wait_for_workers=False,
        master_listen_fd=given.fd,
    )
    signal.pause()
    del store


if __name__ == "__main__":
    main()
