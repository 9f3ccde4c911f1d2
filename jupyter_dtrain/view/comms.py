"""Ranks' widgets in the notebook's kernel, which relays between the ranks and the browser.

A message of a rank's widget reaches the browser as if this kernel had sent it. The browser's messages go to the rank
when that is idle. Until then the relay keeps the newest state, and a note below the cell says that the rank is busy.

Under failure a widget stays as it is: a dead rank answers nothing, and messages for it are dropped.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from jupyter_dtrain.core.events import CommMessage
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.wire.agent_messages import SendToWidgets

if TYPE_CHECKING:
    from .painter import KernelPainter

WAITING = 200
"""Messages to keep for a busy rank, besides the newest state of each widget."""
PATIENCE = 60.0
"""Seconds after which a missing answer of a rank counts as an empty one."""


class CommAnswer(Protocol):
    """The rank's answer: a future of that and the buffers beside it."""

    def add_done_callback(self, call: Callable[[Any], object]) -> None:
        """Call with the future once it is done."""

    def result(self) -> Any:
        """The answer and its buffers."""


Send = Callable[[int, SendToWidgets], CommAnswer]
"""Sends a request to the main thread of a rank."""


class _Half:
    """Stands for a rank's comm in the kernel's comm manager, and so receives the browser's messages."""

    def __init__(self, comm_id: str, rank: int, relay: CommRelay) -> None:
        self.comm_id = comm_id
        self.rank = rank
        self._relay = relay
        self._closed = False

    def handle_msg(self, message: dict[str, Any]) -> None:
        """Take a message from the browser."""
        self._relay.say(self.rank, _from_browser("comm_msg", message))

    def handle_close(self, message: dict[str, Any]) -> None:
        """Note that the browser has closed its half."""
        self._relay.say(self.rank, _from_browser("comm_close", message))


class CellWidgets:
    """The widgets that ranks make in one cell."""

    def __init__(self, relay: CommRelay, painter: KernelPainter) -> None:
        self._relay = relay
        self._painter = painter

    def hear(self, rank: int, message: CommMessage) -> None:
        """Take a message of a rank's widget."""
        self._relay.hear(rank, message, self._painter)

    def idle(self, rank: int) -> None:
        """Note that the rank has ended the cell."""
        self._relay.idle(rank)


class CommRelay:
    """The widgets of one session's ranks. Any thread may call it."""

    def __init__(self, send: Send, busy: Callable[[], Mapping[int, int]]) -> None:
        self._send = send
        self._busy = busy
        self._lock = threading.Lock()
        self._painters: dict[str, KernelPainter] = {}
        self._waiting: dict[int, list[CommMessage]] = {}
        self._asked: dict[int, float] = {}
        self._notes: dict[int, tuple[KernelPainter, str]] = {}
        self._count = 0

    def hear(self, rank: int, message: CommMessage, painter: KernelPainter) -> None:
        """Take a message of a rank's widget, in the cell that ``painter`` paints."""
        manager = painter.kernel.comm_manager
        if message.kind == "comm_open":
            manager.register_comm(_Half(message.comm_id, rank, self))
            with self._lock:
                self._painters[message.comm_id] = painter
        elif message.kind == "comm_close":
            manager.comms.pop(message.comm_id, None)
            with self._lock:
                self._painters.pop(message.comm_id, None)
        painter.comm(message)

    def say(self, rank: int, message: CommMessage) -> None:
        """Send the browser's message to a rank's widget, at once or when the rank is idle."""
        with self._lock:
            _add(self._waiting.setdefault(rank, []), message)
        self._deliver(rank)

    def idle(self, rank: int) -> None:
        """Send the messages that waited for the rank to be idle."""
        self._deliver(rank)

    def _deliver(self, rank: int) -> None:
        with self._lock:
            waiting = self._waiting.get(rank)
            if not waiting:
                return
            if rank in self._busy():
                self._note(rank, waiting[-1].comm_id)
                return
            now = time.monotonic()
            if now - self._asked.get(rank, -PATIENCE) < PATIENCE:
                return  # its answer will send these
            self._asked[rank] = now
            del self._waiting[rank]
            self._unnote(rank)
        try:
            answer = self._send(rank, SendToWidgets(waiting))
        except Exception:  # noqa: BLE001 — the world is gone, and its widgets with it
            with self._lock:
                self._asked.pop(rank, None)
            return
        answer.add_done_callback(lambda done: self._answered(rank, done))

    def _answered(self, rank: int, done: Any) -> None:
        with self._lock:
            self._asked.pop(rank, None)
        with contextlib.suppress(Exception):
            answer, _ = done.result()
            for message in answer.messages:
                painter = self._painters.get(message.comm_id) or next(iter(self._painters.values()))
                self.hear(rank, message, painter)
        self._deliver(rank)

    def _note(self, rank: int, comm_id: str) -> None:
        painter = self._painters.get(comm_id)
        if painter is None or rank in self._notes:
            return
        self._count += 1
        display_id = f"dtrain-busy-{id(self)}-{self._count}"
        self._notes[rank] = painter, display_id
        words = f"{count_ranks([rank]).capitalize()} is busy: its widgets will answer when it is idle."
        with contextlib.suppress(Exception):
            painter.display({"text/plain": words}, {}, display_id)

    def _unnote(self, rank: int) -> None:
        painter, display_id = self._notes.pop(rank, (None, ""))
        if painter is not None:
            with contextlib.suppress(Exception):
                painter.update({"text/plain": ""}, {}, display_id)


def _add(waiting: list[CommMessage], message: CommMessage) -> None:
    """Keep ``message``, and only the newest state of each widget."""
    update = message.data.get("method") == "update" and not message.buffers
    last = next((other for other in reversed(waiting) if other.comm_id == message.comm_id), None)
    if update and last is not None and last.data.get("method") == "update" and not last.buffers:
        state = {**last.data.get("state", {}), **message.data.get("state", {})}
        waiting[waiting.index(last)] = msgspec.structs.replace(last, data={**message.data, "state": state})
        return
    waiting.append(message)
    del waiting[:-WAITING]


def _from_browser(kind: Any, message: dict[str, Any]) -> CommMessage:
    content = message["content"]
    return CommMessage(
        kind,
        content["comm_id"],
        content.get("data", {}),
        message.get("metadata", {}),
        buffers=[bytes(buffer) for buffer in message.get("buffers", [])],
    )
