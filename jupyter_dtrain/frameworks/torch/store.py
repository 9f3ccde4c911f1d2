"""The world's rendezvous store: a TCPStore server in a process of its own, so that it outlives every rank.

The steward starts it with a listening socket (``--fd``) at ``--port``; clients that connected before it was up are
served then. It ends with the steward. torch's store asks for no password, so it accepts connections of this user only
(:mod:`jupyter_dtrain.engine.callers`).
"""

from __future__ import annotations

import argparse
import signal
from datetime import timedelta

from jupyter_dtrain.engine.callers import keep_for_this_user


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--peer", action="append", default=[])
    args = parser.parse_args()
    keep_for_this_user(args.peer)
    from torch.distributed import TCPStore

    store = TCPStore(
        args.host,
        args.port,
        None,
        is_master=True,
        timeout=timedelta(seconds=30),
        wait_for_workers=False,
        master_listen_fd=args.fd,
    )
    signal.pause()
    del store


if __name__ == "__main__":
    main()
