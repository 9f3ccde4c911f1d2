"""How a client reaches a world: the ranks through ipyparallel, the steward through its kernel channels.

Both are transports that exist already, signed with keys that only this user can read; nothing here listens.

Under failure: every wait has a deadline. A request without an answer raises
:class:`~jupyter_dtrain.core.errors.WorldLost` (steward) or leaves its future undone (ranks), which the caller bounds.
One that is refused, or whose answer cannot be read, raises :class:`~jupyter_dtrain.core.errors.Refused`, from the
future where there is one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any, Final, TypeVar

import ipyparallel
import msgspec
import zmq
from ipyparallel.client.client import unpack_message
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_dtrain.core.errors import Refused, WorldLost
from jupyter_dtrain.core.events import EVENTS_MESSAGE
from jupyter_dtrain.core.stop_button import StopButton
from jupyter_dtrain.plugins.patches import Patch

from .agent_messages import RunCell, ValuesRequest, WatchRequest
from .attempts import Attempts
from .messages import (
    HELLO_MESSAGE,
    REQUEST_MESSAGE,
    RUN_MESSAGE,
    STEWARD_EVENT,
    VALUES_MESSAGE,
    AgentRequest,
    Done,
    StewardRequest,
    from_content,
    read_answer,
    to_content,
)
from .steward_messages import AnyBroadcast

HELLO_PERIOD = 0.1
"""Seconds after which a greeting without an answer is repeated."""

ALIVE_PERIOD = 0.25
"""Seconds of silence after which a request checks whether the steward's process is there."""

A = TypeVar("A", bound=msgspec.Struct)

CLIENT = Patch(
    "ipyparallel.client.client",
    replaces=("Client._dispatch_iopub",),
    calls=("Client._send(socket, msg_type, content, parent, ident, buffers)",),
    reads=(
        "_closed",
        "_control_stream",
        "_futures",
        "_io_loop",
        "_iopub_socket",
        "_mux_stream",
        "_queue_handlers",
    ),
    why="ipyparallel's public interface has no messages but its own, and addresses engines as its hub knows them.",
    lost="no cell runs on the ranks",
)

NO_ANSWER: Final = "The world does not answer: start a new world with %distributed start."


class RanksChannel(ipyparallel.Client):  # type: ignore[misc]  # ipyparallel has no types
    """An ipyparallel client that addresses engines by their routing identity and hears our events.

    It uses no engine ids, no views and no registration with the hub: it reaches a rank as soon as the rank's own
    sockets are connected, and learns of a death from the rank's watch.
    """

    def __init__(self, connection_file: str | Path, on_events: Callable[[dict[str, Any]], None] | None = None) -> None:
        """``on_events`` gets the content of every announcement, on the IO thread, whichever client ran the cell.

        Without it no announcements come.
        """
        self._on_events = on_events
        self._packed: tuple[RunCell, bytes] | None = None
        # ipyparallel logs messages with a bad signature here, and makes no log of its own.
        self.log = logging.getLogger(__name__)
        super().__init__(str(connection_file), timeout=10)
        if on_events is None:
            self._io_loop.add_callback(self._iopub_socket.setsockopt, zmq.UNSUBSCRIBE, b"")
        self._queue_handlers["dtrain_hello_reply"] = self._resolve
        self._queue_handlers["dtrain_values_reply"] = self._resolve

    def close(self, linger: int | None = None) -> None:
        """Close the sockets; what was sent before still leaves this process. ``linger``: milliseconds for that."""
        if not self._closed:
            for stream in (self._mux_stream, self._control_stream):
                # The IO thread ends after the turn in which it is asked to, and would drop what waits in its streams.
                self._io_loop.add_callback(stream.flush, zmq.POLLOUT)
        super().close(linger)

    def activate(self, targets: Any = "all", suffix: str = "") -> None:
        """Do nothing, in place of ipyparallel, which would add its own magics to the notebook."""

    @unpack_message  # type: ignore[untyped-decorator]
    def _dispatch_iopub(self, message: dict[str, Any]) -> None:
        if message["header"]["msg_type"] == EVENTS_MESSAGE and self._on_events is not None:
            self._on_events(message["content"])

    def _resolve(self, message: dict[str, Any]) -> None:
        message_id = message["parent_header"].get("msg_id")
        future = self._futures.get(message_id)
        if future is not None and not future.done():
            future.set_result(message)

    def hello(self, engines: Iterable[str], deadline: float) -> list[str]:
        """Greet idle ranks until each has answered or ``deadline`` (monotonic) has passed; returns those that have not.

        ZeroMQ drops a message to a rank whose sockets are not fully connected, so the greeting is repeated.
        """
        waiting = dict.fromkeys(engines)
        futures: list[tuple[str, Any]] = []
        while waiting and time.monotonic() < deadline:
            futures += [
                (engine, self._send(self._mux_stream, HELLO_MESSAGE, ident=engine.encode())) for engine in waiting
            ]
            until = min(time.monotonic() + HELLO_PERIOD, deadline)
            while waiting and time.monotonic() < until:
                for engine, future in futures:
                    if future.done():
                        waiting.pop(engine, None)
                if waiting:
                    time.sleep(0.002)
        for _, future in futures:
            self._forget(future)
        return list(waiting)

    def greet(self, engine: str) -> Future[Done]:
        """Ping the main thread of a rank; it answers once it has taken all messages that were sent before."""
        answer: Future[Done] = Future()
        sent = self._send(self._mux_stream, HELLO_MESSAGE, ident=engine.encode())

        def done(_: object) -> None:
            with contextlib.suppress(InvalidStateError):
                answer.set_result(Done())

        sent.add_done_callback(done)
        answer.add_done_callback(lambda _: self._forget(sent))
        return answer

    def run(self, engine: str, cell: RunCell, frames: Iterable[bytes]) -> None:
        """Send a cell, with ``frames`` for its values. Its events report its progress, and no reply comes."""
        # A cell names its ranks: packed for each rank anew, its cost would grow with their square.
        packed = self._packed
        if packed is None or packed[0] is not cell:
            packed = self._packed = cell, self.session.pack(to_content(cell))
        sent = self._send(
            self._mux_stream,
            RUN_MESSAGE,
            content=packed[1],
            buffers=list(frames),
            ident=engine.encode(),
        )
        self._forget(sent)

    def ask(self, identity: str, request: AgentRequest[A] | WatchRequest[A]) -> Future[A]:
        """Ask the agent of a rank or the watch of a host, by its routing identity: the future gets the answer."""
        answer: Future[A] = Future()
        sent = self._send(self._control_stream, REQUEST_MESSAGE, content=to_content(request), ident=identity.encode())

        def done(future: Any) -> None:
            # A future that has been cancelled meanwhile takes no result.
            with contextlib.suppress(InvalidStateError):
                try:
                    answer.set_result(read_answer(future.result()["content"], request))
                except Refused as error:
                    answer.set_exception(error)

        sent.add_done_callback(done)
        answer.add_done_callback(lambda _: self._forget(sent))
        return answer

    def values(
        self, engine: str, request: ValuesRequest[A], frames: Iterable[bytes] = ()
    ) -> Future[tuple[A, list[Any]]]:
        """Ask the main thread of an idle rank about its namespace; the future gets the answer and its buffers."""
        answer: Future[tuple[A, list[Any]]] = Future()
        sent = self._send(
            self._mux_stream,
            VALUES_MESSAGE,
            content=to_content(request),
            buffers=list(frames),
            ident=engine.encode(),
        )

        def done(future: Any) -> None:
            self._forget(sent)
            # A future that has been cancelled meanwhile takes no result.
            with contextlib.suppress(InvalidStateError):
                reply = future.result()
                try:
                    answer.set_result((read_answer(reply["content"], request), reply["buffers"]))
                except Refused as error:
                    answer.set_exception(error)

        sent.add_done_callback(done)
        answer.add_done_callback(lambda _: self._forget(sent))
        return answer

    def _forget(self, future: Any) -> None:
        self._futures.pop(future.msg_id, None)


class StewardChannel:
    """Requests to the steward's control channel, and its broadcasts. Thread-safe but for :meth:`listen`."""

    def __init__(self, connection_file: str | Path, timeout: float, alive: Callable[[], bool]) -> None:
        """``alive``: whether the steward's process runs; once it has ended, no request waits for its answer."""
        self._alive = alive
        self._client = BlockingKernelClient(connection_file=str(connection_file))
        self._client.load_connection_file()
        self._client.start_channels(shell=False, stdin=False, hb=False)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, request: StewardRequest[A], timeout: float | None = None) -> A:
        """The steward's answer.

        Raises :class:`WorldLost` when none came within ``timeout`` seconds (default: the channel's own), and
        :class:`Refused`.
        """
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        # A press between taking the lock and the next line would leave it taken.
        with StopButton() as stop_button:
            if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise WorldLost(NO_ANSWER)
            try:
                if self._closed:
                    raise WorldLost(NO_ANSWER)
                content = self._ask(request, deadline, stop_button)
            finally:
                self._lock.release()
        stop_button.check()
        return read_answer(content, request)

    def _ask(self, request: msgspec.Struct, deadline: float, stop_button: StopButton) -> dict[str, Any]:
        client = self._client
        attempts = Attempts(client, request)
        while (patience := deadline - time.monotonic()) > 0:
            stop_button.check()
            patience = min(patience, attempts.send_when_due(), ALIVE_PERIOD)
            if not client.control_channel.socket.poll(1000 * patience):
                if not self._alive():
                    break
                continue
            reply: dict[str, Any] = client.control_channel.get_msg(timeout=0)
            if attempts.is_answer(reply):
                content: dict[str, Any] = reply["content"]
                return content
        raise WorldLost(NO_ANSWER)

    def listen(self, timeout: float) -> AnyBroadcast | None:
        """The next broadcast, or None after ``timeout`` seconds. One thread only.

        Raises :class:`Refused` for one that cannot be read.
        """
        socket = self._client.iopub_channel.socket
        if not socket.poll(1000 * timeout):
            return None
        message = self._client.iopub_channel.get_msg(timeout=0)
        if message["msg_type"] != STEWARD_EVENT:
            return None
        event: AnyBroadcast = from_content(message["content"], AnyBroadcast)
        return event

    def close(self) -> None:
        """Close the sockets. Not while another thread listens. Called again, it does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._client.stop_channels()
                # jupyter_client 8.0 leaves its context with two threads; newer ones end it.
                self._client.context.destroy(linger=100)
