"""The steward as a Jupyter kernel that executes nothing.

Requests come on its control channel, and a thread of their own answers them at once; IOPub broadcasts to every client
what happens to the world. A client that gets no answer sends its request again; one that was answered gets the same
answer, and nothing is done twice. The key in the connection file signs all messages; only this user can enter that
file's folder.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

from ipykernel.iostream import IOPubThread
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel
from tornado.ioloop import IOLoop

from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.wire.messages import STEWARD_EVENT, STEWARD_REPLY, STEWARD_REQUEST
from jupyter_dtrain.wire.steward_messages import ASKED_FOR

from .supervisor import Supervisor

BROADCASTS = Patch(
    "ipykernel.kernelapp",
    replaces=("IOPubThread",),
    calls=("IOPubThread._setup_pipe_in()",),
    reads=("_pipe_flag",),
    why="ipykernel's thread for broadcasts listens on TCP for forked processes, also in a world's main process.",
    lost="the world's main process listens at one TCP port more",
)
REMEMBERED = 64
"""Answers that are kept, for requests that come again."""


class StewardKernel(Kernel):
    """Passes requests to the supervisor, and what it announces to the clients."""

    implementation = "jupyter-dtrain-steward"
    implementation_version = "1"
    language_info = {"name": "none", "mimetype": "text/plain", "file_extension": ".txt"}  # noqa: RUF012 — the base's shape
    banner = ""
    supervisor: Supervisor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]  # ipykernel's types are partial
        self.control_handlers[STEWARD_REQUEST] = self._answer
        self._answered: dict[str, dict[str, Any]] = {}
        """The newest answers, by the id of the request."""

    def _answer(self, stream: Any, ident: Any, parent: Any) -> None:
        key = parent["header"]["msg_id"]
        answer = self._answered.get(key)
        if answer is None:
            answer = self._answered[key] = self.supervisor.answer(parent["content"])
            while len(self._answered) > REMEMBERED:
                del self._answered[next(iter(self._answered))]
        assert self.session is not None
        self.session.send(stream, STEWARD_REPLY, answer, parent, ident=ident)

    def announce(self, event: dict[str, Any]) -> None:
        """Publish ``event`` to every client. Any thread."""
        assert self.session is not None
        self.session.send(self.iopub_socket, STEWARD_EVENT, event)

    async def do_execute(self, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        """Execute nothing."""
        return {"status": "ok", "execution_count": 0, "payload": [], "user_expressions": {}}

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:  # noqa: FBT001 — ipykernel's signature
        """A Jupyter client's shutdown request ends the world."""
        self.supervisor.end(ASKED_FOR)
        return {"status": "ok", "restart": restart}


class StewardIOPub(IOPubThread):
    """Broadcasts from this process alone: ipykernel's own would listen on TCP for processes that a cell has forked."""

    def _setup_pipe_in(self) -> None:
        self._pipe_flag = False


class StewardApp(IPKernelApp):
    """The kernel's application, without IPython around it."""

    def init_iopub(self, context: Any) -> None:
        """Set up IOPub as every kernel does, but without the listener for forked processes."""
        BROADCASTS.when_imported(lambda module: BROADCASTS.put(module, "IOPubThread", StewardIOPub))
        super().init_iopub(context)  # type: ignore[no-untyped-call]

    def init_gui_pylab(self) -> None:
        """Set up no plots."""

    def init_extensions(self) -> None:
        """Load no extensions: a user's IPython configuration must not run in the steward."""

    def init_code(self) -> None:
        """Run no user code."""

    def load_config_file(self, *_args: Any, **_kwargs: Any) -> None:
        """Load no user configuration."""

    def log_connection_info(self) -> None:
        """Print no hint on how a console connects: the log is shown to the user when a start fails."""

    def init_signal(self) -> None:
        """SIGTERM ends the world in order; SIGINT is for notebooks."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def serve(connection_file: str, supervisor: Supervisor) -> None:
    """Run the steward's kernel until the world has ended."""
    StewardKernel.supervisor = supervisor
    app: Any = StewardApp.instance(kernel_class=StewardKernel, outstream_class=None)
    app.initialize(["-f", connection_file])
    signal.signal(signal.SIGTERM, lambda *_: supervisor.end("its main process was asked to end (SIGTERM)"))
    supervisor.attach(app.kernel.announce)

    def leave() -> None:
        supervisor.ended.wait()
        # ``io_loop`` exists once ``start`` has set the kernel up; a callback before that would be lost.
        running.wait()
        app.kernel.io_loop.add_callback(app.kernel.io_loop.stop)

    running = threading.Event()
    threading.Thread(target=leave, name="dtrain-steward-end", daemon=True).start()
    app.kernel.io_loop = IOLoop.current()
    app.kernel.io_loop.add_callback(running.set)
    app.start()
