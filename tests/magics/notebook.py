"""A notebook without a front end: a real kernel, and every message that it sends, kept with the cell that caused it.

nbclient stops to listen to a cell once it has ended; here what a cell says later is seen as well, as a front end does.
"""

from __future__ import annotations

import ast
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.kernels import ThisPython

PATIENCE = 30.0
"""Seconds after which a test gives up on what must come."""

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def plain(text: str) -> str:
    """``text`` without colours."""
    return ANSI.sub("", text)


class Cell:
    """Messages of the kernel for one request, also those that come after its answer."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.messages: list[dict[str, Any]] = []
        self._ids: set[str | None] = set()
        self.arrived: list[float] = []
        self.reply: dict[str, Any] | None = None
        self.idle = False
        self.asked: list[tuple[str, bool]] = []
        """The prompts of the boxes that it has opened, and whether what is typed there is hidden."""
        self.answers: list[str] = []
        """What is typed into the next boxes, at once."""

    def shows(self, message: dict[str, Any]) -> bool:
        """Whether a message updates a display of this cell."""
        display_id = message["content"].get("transient", {}).get("display_id")
        return message["msg_type"] == "update_display_data" and display_id in self._ids

    def hear(self, message: dict[str, Any]) -> None:
        """Keep a message of the kernel's."""
        self.messages.append(message)
        if message["msg_type"] == "display_data":
            self._ids.add(message["content"].get("transient", {}).get("display_id"))
        self.arrived.append(time.time())
        if message["msg_type"] == "status":
            self.idle = message["content"]["execution_state"] == "idle"

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        """The contents of all messages of these types."""
        return [message["content"] for message in list(self.messages) if message["msg_type"] in kinds]

    def stream(self, name: str) -> str:
        """The text of a standard stream, without colours."""
        return plain("".join(content["text"] for content in self.of("stream") if content["name"] == name))

    @property
    def out(self) -> str:
        return self.stream("stdout")

    @property
    def err(self) -> str:
        return self.stream("stderr")

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def displays(self) -> list[dict[str, Any]]:
        """The rich outputs as they look now: updates stand in place of what they replace. An empty one is none."""
        shown: list[dict[str, Any]] = []
        by_id: dict[str, dict[str, Any]] = {}
        for message in list(self.messages):
            content = message["content"]
            display_id = content.get("transient", {}).get("display_id")
            if message["msg_type"] == "update_display_data":
                if display_id in by_id:  # else another cell shows it
                    by_id[display_id].update(content)
            elif message["msg_type"] in ("display_data", "execute_result"):
                content = dict(content)
                shown.append(content)
                if display_id is not None:
                    by_id[display_id] = content
        return [content for content in shown if content["data"] != {"text/plain": ""}]

    @property
    def display_texts(self) -> list[str]:
        """The rich outputs as text, as they look now."""
        return [plain(display["data"].get("text/plain", "")) for display in self.displays]

    @property
    def error(self) -> dict[str, Any] | None:
        found = self.of("error")
        return found[0] if found else None

    @property
    def ename(self) -> str | None:
        return self.error["ename"] if self.error else None

    @property
    def traceback(self) -> str:
        """The traceback below a cell that failed, without colours."""
        return plain("\n".join(self.error["traceback"])) if self.error else ""

    @property
    def said(self) -> str:
        """Everything that a reader sees, as text."""
        return "\n".join([self.out, self.err, *self.display_texts, self.traceback])

    def wait_for(self, true: Callable[[Cell], Any], patience: float = PATIENCE) -> Cell:
        """Wait until ``true(cell)`` holds."""
        with self._changed:
            assert self._changed.wait_for(lambda: true(self), patience), f"the cell has said only:\n{self.said}"
        return self

    def wait(self, patience: float = PATIENCE) -> Cell:
        """Wait until the request was answered and all that belongs to it has come."""
        return self.wait_for(lambda cell: cell.reply is not None and cell.idle, patience)


class Notebook:
    """A kernel in a folder, with cells that can be run."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.manager = KernelManager(kernel_spec_manager=ThisPython())
        self.manager.start_kernel(cwd=str(folder), env={**os.environ, **env})
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)
        self._cells: dict[str, Cell] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        poller = zmq.Poller()
        shell, iopub = self.client.shell_channel.socket, self.client.iopub_channel.socket
        stdin = self.client.stdin_channel.socket
        poller.register(shell, zmq.POLLIN)
        poller.register(stdin, zmq.POLLIN)
        poller.register(iopub, zmq.POLLIN)
        while not self._closing:
            for socket, _ in poller.poll(200):
                _, message = self.client.session.recv(socket, mode=0)
                with self._changed:
                    cell = self._cell(message["parent_header"].get("msg_id", ""))
                    if socket is stdin:
                        cell.asked.append((message["content"]["prompt"], message["content"]["password"]))
                        if cell.answers:
                            self.client.input(cell.answers.pop(0))
                    elif socket is shell:
                        cell.reply = message["content"]
                    else:
                        cell.hear(message)
                        for other in self._cells.values():
                            if other is not cell and other.shows(message):
                                other.hear(message)
                    self._changed.notify_all()

    def _cell(self, message_id: str) -> Cell:
        return self._cells.setdefault(message_id, Cell(self._changed))

    def send(self, code: str, answers: Sequence[str] | None = None, **options: Any) -> Cell:
        """Submit a cell, and go on. ``answers``: what a person types into its boxes; None: nobody is there."""
        with self._changed:
            asks = answers is not None
            cell = self._cell(self.client.execute(code, stop_on_error=False, allow_stdin=asks, **options))
            cell.answers = list(answers or ())
            return cell

    def type(self, text: str) -> None:
        """Type a line into the box that is open."""
        self.client.input(text)

    def run(self, code: str, patience: float = PATIENCE) -> Cell:
        """Run a cell to its end."""
        return self.send(code).wait(patience)

    def ok(self, code: str, patience: float = PATIENCE) -> Cell:
        """Run a cell that must not fail."""
        cell = self.run(code, patience)
        assert cell.reply is not None
        assert cell.reply["status"] == "ok", cell.said
        return cell

    def value(self, expression: str) -> Any:
        """The value of an expression in the kernel, through its ``repr``."""
        cell = self.send("", user_expressions={"value": expression}, store_history=False).wait()
        assert cell.reply is not None
        answer = cell.reply["user_expressions"]["value"]
        assert answer["status"] == "ok", answer
        return ast.literal_eval(answer["data"]["text/plain"])

    def complete(self, code: str) -> list[str]:
        """The offers of Tab at the end of ``code``: the texts that it would become, each from its last word on."""
        answer = self._asked(self.client.complete(code, len(code)))
        kept = code[: answer["cursor_start"]].split()
        last = "" if code[: answer["cursor_start"]][-1:].isspace() or not kept else kept[-1]
        return [last + match for match in answer["matches"]]

    def inspect(self, code: str, detail: int = 0) -> str | None:
        """The text of Shift-Tab at the end of ``code``; None where it finds nothing."""
        answer = self._asked(self.client.inspect(code, len(code), detail))
        return answer["data"]["text/plain"] if answer["found"] else None

    def _asked(self, message_id: str) -> dict[str, Any]:
        with self._changed:
            cell = self._cell(message_id)
        reply = cell.wait_for(lambda cell: cell.reply is not None).reply
        assert reply is not None
        return reply

    def size_of(self, message: dict[str, Any]) -> int:
        """Bytes of a message as it travels: headers, contents, signature."""
        packed = self.client.session.serialize(
            {key: message[key] for key in ("header", "parent_header", "metadata", "content")}
        )
        return sum(len(part) for part in packed)

    def interrupt(self) -> None:
        """Press the stop button."""
        self.manager.interrupt_kernel()

    def close(self) -> None:
        """Shut the kernel down for good, as closing a notebook does; once."""
        if self._closing:
            return
        self._closing = True
        self._thread.join(5)
        self.client.stop_channels()
        self.manager.shutdown_kernel()
