"""The addresses at which ranks meet, held by the steward from the world's first second.

The socket listens at once, so that ``MASTER_PORT`` is true before the first cell; the store behind it (a framework's,
see :class:`~jupyter_dtrain.plugins.framework.Server`) starts in a process of its own when a rank first connects. Until
then connections wait in the socket's queue. Connections of other users of the host start no store: they are closed.
Where ranks are on other hosts, any connection starts the store, which closes those from anywhere else.

Under failure: a store that died is started again at the next connection, at most :data:`MAX_STARTS` times; its keys
are gone, so the supervisor must begin a new generation.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from jupyter_dtrain.core.errors import StartFailed
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.tcp_guard import own_waits
from jupyter_dtrain.wire.requests import ServerSpec

MAX_STARTS = 5
BACKLOG = 2048


class Rendezvous:
    """The listening socket, and the store's process once there is one."""

    def __init__(
        self,
        host: str,
        port: int,
        log: Path,
        preexec: Callable[[], None],
        told: ServerSpec,
        module: str | None = None,
    ) -> None:
        """``port`` 0 takes a free one; ``told``: passed to the server; ``module``: the server, by default a store.

        Raises :class:`StartFailed` when the port is taken.
        """
        self.host = host
        self._log = log
        self._module = module
        self._preexec = preexec
        self._told = msgspec.json.encode(told)
        self._hosts: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # The port of a world that restarts has connections of old ranks on it that wait for their time to pass. A port
        # that another program listens on is refused all the same (Linux).
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            raise StartFailed(
                f"Port {port} on {host} is taken ({error.strerror}).",
                "Name another MASTER_PORT in the environment variables, or leave it out.",
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._wake_read, self._wake_write = socket.socketpair()
        self._closing = False
        self._starting = threading.Lock()
        """Held while a store is started: none is started once this is closing."""
        self._thread = threading.Thread(target=self._serve, name="dtrain-rendezvous", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        module = self._module or Plugins.load().rendezvous()
        if module is None:
            return
        for _ in range(MAX_STARTS):
            self._await_rank()
            fd = self._socket.fileno()
            with self._starting, open(self._log, "ab") as log:
                if self._closing:
                    return
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        module,
                        f"--fd={fd}",
                        f"--host={self.host}",
                        f"--port={self.port}",
                        *(f"--peer={one}" for one in self._hosts),
                    ],
                    pass_fds=[fd],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self._log.parent,
                    preexec_fn=self._preexec,  # noqa: PLW1509 — one prctl call, on a libc that is loaded
                )
            assert self._process.stdin is not None
            with contextlib.suppress(OSError), self._process.stdin as pipe:
                pipe.write(self._told)
            code = self._process.wait()
            if self._closing:
                return
            logging.getLogger(__name__).error("The rendezvous store ended with %s", code)

    def serve_hosts(self, addresses: list[str]) -> None:
        """Accept connections from these addresses too. Call it before a rank on those hosts connects."""
        self._hosts = addresses

    @property
    def pid(self) -> int | None:
        """The process id of the store; None before it was first needed."""
        return None if self._process is None else self._process.pid

    def _await_rank(self) -> None:
        """Return once a process of this user is connected, or this is being closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while True:
                selector.select()
                if self._closing or self._hosts or own_waits((self.host, self.port)):
                    return
                # The first in the queue was there before that look.
                with contextlib.suppress(OSError):
                    self._socket.accept()[0].close()

    def close(self) -> None:
        """End the store and free the port. A second call does nothing."""
        if self._closing:
            return
        with self._starting:
            self._closing = True
        self._wake_write.send(b"x")
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self._thread.join(timeout=5)
        self._socket.close()
        self._wake_read.close()
        self._wake_write.close()
