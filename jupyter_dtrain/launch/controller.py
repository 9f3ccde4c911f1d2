"""ipyparallel's controller, of which nobody here asks that it follow what the ranks say.

Its hub has every announcement on the way to the clients copied to itself and reads it, to tell an engine's end from it
and to write it to a database: we take the end from the watches, and have no database. Without, a training run costs a
tenth less of processor outside of its ranks.
"""

from __future__ import annotations

import zmq
from ipyparallel.controller.app import IPController


class Controller(IPController):  # type: ignore[misc]  # ipyparallel has no types
    """One world's controller."""

    def init_hub(self) -> None:
        """As ipyparallel's; then the hub hears of requests and answers alone."""
        super().init_hub()
        monitor = self.hub.monitor
        for topic in self.hub.monitor_handlers:
            if topic != b"iopub":
                monitor.setsockopt(zmq.SUBSCRIBE, topic)
        monitor.setsockopt(zmq.UNSUBSCRIBE, b"")


main = Controller.launch_instance
