"""ipyparallel's controller, with unix sockets, and without its hub's copy of every announcement of the ranks.

The hub reads each announcement on its way to the clients, to notice the end of an engine and to write it to a database.
Our watches report the end of a rank, and we keep no such database. Without the copy, a training run needs a tenth less
processor time outside its ranks.

Unix sockets in the world's own folder keep other users out: the announcements are signed, not encrypted, and every
user of the host could read them at a TCP port. With ranks on other hosts it listens on TCP, encrypted by CurveZMQ.
"""

from __future__ import annotations

from typing import Any

import zmq
from traitlets import observe

from jupyter_dtrain.plugins.left_out import import_ipyparallel, left_out
from jupyter_dtrain.plugins.patches import Patch

import_ipyparallel()
# ipyparallel can do without NumPy, except for one way to place tasks ("weighted"), which nothing of ours chooses.
with left_out("numpy"):
    from ipyparallel.controller.app import IPController

KEYS = Patch(
    "ipyparallel.controller.app",
    replaces=("IPController._enable_curve_changed",),
    calls=("IPController._ensure_curve_keypair()",),
    why="ipyparallel drops the key by which messages are signed where it encrypts, and its public key is no secret.",
    lost="a world with ranks on other hosts cannot start",
)


class Controller(IPController):  # type: ignore[misc]  # ipyparallel has no types
    """One world's controller."""

    @observe("enable_curve")
    def _enable_curve_changed(self, change: Any) -> None:
        """Keep the key by which messages are signed; ipyparallel drops it where it encrypts.

        Encryption keeps others from reading. Whoever knows the controller's public key may connect all the same, and
        that key is no secret by design. So messages are signed as they are without encryption.
        """
        if change["new"]:
            self._ensure_curve_keypair()

    def construct_url(self, kind: str, channel: str, index: Any = None) -> str:
        """The address of a channel, as ipyparallel's engines and clients spell it.

        In ``ipc`` its controller puts a dash before the number, and they a colon (ipyparallel 9).
        """
        url: str = super().construct_url(kind, channel, index)
        if not url.startswith("ipc://"):
            return url
        path, _, number = url.rpartition("-")
        return f"{path}:{number}"

    def init_hub(self) -> None:
        """Set up ipyparallel's hub, then subscribe it to requests and answers alone."""
        super().init_hub()
        monitor = self.hub.monitor
        for topic in self.hub.monitor_handlers:
            if topic != b"iopub":
                monitor.setsockopt(zmq.SUBSCRIBE, topic)
        monitor.setsockopt(zmq.UNSUBSCRIBE, b"")


main = Controller.launch_instance
