"""A kernel as a front end sees it: directly, or through a real Jupyter server with its default limits."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from websocket import WebSocket, create_connection

Message = dict[str, Any]


class Sent:
    """A cell that was sent, and what has come of it so far.

    It never raises what the cell raised, and may be waited for more than once: that is how a cell that hangs is met.
    """

    def __init__(self, client: BlockingKernelClient, code: str) -> None:
        self._client = client
        self._answered = False
        self._began = time.perf_counter()
        self._parent = client.execute(code)
        self.seconds = 0.0
        """From the request until the kernel was idle again; 0 while it is not."""
        self.text = ""
        """All that was printed or shown, as plain text, errors with it."""
        self.failed = False
        """Whether the kernel answered with an error."""
        self._shown: dict[str, Message] = {}

    @property
    def ended(self) -> bool:
        """Whether the kernel has said that it is idle again."""
        return self.seconds > 0

    @property
    def kinds(self) -> list[str]:
        """The MIME types of what is shown in the end."""
        return [kind for bundle in self._shown.values() for kind in _kinds(bundle)]

    def wait(self, timeout: float) -> bool:
        """Take what comes within ``timeout`` seconds; whether the cell has ended."""
        deadline = time.monotonic() + timeout
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            try:
                message = self._client.get_iopub_msg(timeout=left)
            except queue.Empty:
                break
            if message["parent_header"].get("msg_id") == self._parent:
                self._take(message["msg_type"], message["content"])
        if self.ended and not self._answered:
            self._take_reply()
        return self.ended

    def _take_reply(self) -> None:
        """A kernel may say in its reply alone that the cell has failed."""
        self._answered = True
        with contextlib.suppress(queue.Empty):
            while (reply := self._client.get_shell_msg(timeout=2))["parent_header"].get("msg_id") != self._parent:
                pass
            self.failed = self.failed or reply["content"]["status"] == "error"

    def _take(self, kind: str, content: Message) -> None:
        if kind == "stream":
            self.text += content["text"]
        elif kind in {"display_data", "update_display_data", "execute_result"}:
            self.text += content["data"].get("text/plain", "") + "\n"
            name = content.get("transient", {}).get("display_id") or str(len(self._shown))
            self._shown[name] = content["data"]
        elif kind == "error":
            self.failed = True
            self.text += "\n".join([content["ename"], content["evalue"], *content["traceback"]]) + "\n"
        elif kind == "status" and content["execution_state"] == "idle":
            self.seconds = time.perf_counter() - self._began


def _kinds(value: Any) -> list[str]:
    """The MIME types of a bundle; one that holds the outputs of ranks stands for these."""
    if isinstance(value, list):
        return [kind for item in value for kind in _kinds(item)]
    if not isinstance(value, dict):
        return []
    inner = [kind for item in value.values() for kind in _kinds(item)]
    return inner or [kind for kind in value if "/" in kind]


class Kernel:
    """Executes cells and gives every IOPub message that answers them, with its time of arrival and its size."""

    def __init__(self, client: BlockingKernelClient, manager: KernelManager) -> None:
        self._client = client
        self._manager = manager

    def send(self, code: str) -> Sent:
        """Send a cell, and wait for nothing."""
        return Sent(self._client, code)

    def interrupt(self) -> None:
        """Press Stop."""
        self._manager.interrupt_kernel()

    def execute(self, code: str, timeout: float = 120) -> list[Message]:
        """Run a cell to its end. Raises :class:`RuntimeError` when it failed."""
        messages = []
        parent = self._client.execute(code)
        deadline = time.monotonic() + timeout
        while True:
            message = self._client.get_iopub_msg(timeout=deadline - time.monotonic())
            if message["parent_header"].get("msg_id") != parent:
                continue
            message["arrived"] = time.time()
            messages.append(message)
            if message["msg_type"] == "error":
                raise RuntimeError("\n".join(message["content"]["traceback"]))
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        self._client.get_shell_msg(timeout=10)
        return messages


@contextlib.contextmanager
def kernel(
    module: str = "ipykernel_launcher",
    env: dict[str, str] | None = None,
    interrupt_mode: str = "signal",
    cwd: str | None = None,
) -> Iterator[Kernel]:
    """A kernel of this interpreter, run from ``module`` in ``cwd``, with ``env`` over this process's environment."""
    manager = KernelManager()
    manager.kernel_spec.argv = [sys.executable, "-m", module, "-f", "{connection_file}"]
    if module == "ipykernel_launcher":
        manager.kernel_spec.argv.append("--log-level=ERROR")  # it warns of its ports
    manager.kernel_spec.interrupt_mode = interrupt_mode
    manager.start_kernel(env={**os.environ, **(env or {})}, cwd=cwd)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield Kernel(client, manager)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


class ServedKernel:
    """A kernel behind a Jupyter server, over the same WebSocket that JupyterLab uses."""

    def __init__(self, socket_: WebSocket) -> None:
        self._socket = socket_
        self._session = uuid.uuid4().hex

    def execute(self, code: str, timeout: float = 300) -> list[Message]:
        """Run a cell to its end; the IOPub messages that came for it, each with its ``size`` in bytes."""
        parent = uuid.uuid4().hex
        header = {"msg_id": parent, "msg_type": "execute_request", "session": self._session, "username": ""}
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        request = {"channel": "shell", "header": {**header, "version": "5.3"}, "content": content}
        request |= {"parent_header": {}, "metadata": {}, "buffers": []}
        self._socket.send(json.dumps(request))
        self._socket.settimeout(timeout)
        messages = []
        while True:
            text = self._socket.recv()
            message = json.loads(text if isinstance(text, str) else _first_part(text))
            if message["parent_header"].get("msg_id") != parent or message.get("channel") != "iopub":
                continue
            message["size"] = len(text)
            messages.append(message)
            if message["msg_type"] == "error":
                raise RuntimeError("\n".join(message["content"]["traceback"]))
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return messages


def _first_part(frame: bytes) -> bytes:
    """The JSON of a message with buffers: a count and as many offsets stand before it, in 32 bits each."""
    count = int.from_bytes(frame[:4], "big")
    offsets = struct.unpack(f"!{count}I", frame[4 : 4 * (count + 1)])
    return frame[offsets[0] : offsets[1] if count > 1 else None]


@contextlib.contextmanager
def served_kernel() -> Iterator[ServedKernel]:
    """A Jupyter server with default limits, and a kernel in it."""
    token = secrets.token_hex(16)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "JUPYTER_CONFIG_DIR": folder, "IPYTHONDIR": folder}
        command = [sys.executable, "-m", "jupyter_server", f"--ServerApp.port={port}"]
        command += [
            f"--IdentityProvider.token={token}",
            f"--ServerApp.root_dir={folder}",
            "--ServerApp.allow_root=True",
        ]
        command += ["--ServerApp.open_browser=False", "--ServerApp.ip=127.0.0.1"]
        server = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            kernel_id = _start_kernel(port, token)
            address = f"ws://127.0.0.1:{port}/api/kernels/{kernel_id}/channels?token={token}"
            socket_ = create_connection(address, timeout=60)
            yield ServedKernel(socket_)
            socket_.close()
        finally:
            server.terminate()
            server.wait(30)


def _start_kernel(port: int, token: str) -> str:
    deadline = time.monotonic() + 60
    while True:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/kernels",
            data=b"{}",
            headers={"Authorization": f"token {token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 — our own server on loopback
                kernel_id: str = json.load(answer)["id"]
                return kernel_id
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def outputs(messages: list[Message]) -> list[Message]:
    """Those messages that a notebook keeps or draws."""
    kinds = ("stream", "display_data", "update_display_data", "execute_result", "error")
    return [message for message in messages if message["msg_type"] in kinds]
