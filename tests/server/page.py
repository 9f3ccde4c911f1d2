"""A page of JupyterLab without a browser: its requests to the server, and its stream."""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import websocket

PATIENCE = 120.0


class Server:
    """``jupyter server`` in a folder, with our extension, as it is installed."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder / "root"
        self.folder.mkdir(exist_ok=True)
        if not port:
            # Not 0: Jupyter Server before 2.20 writes that into its file. It takes another port if this one is used.
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = probe.getsockname()[1]
        self.token = secrets.token_hex(16)
        self._log = folder / "server.log"
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser"),
                    *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", f"--IdentityProvider.token={self.token}"),
                ],
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        info = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / f"jpserver-{self.process.pid}.json"
        deadline = time.monotonic() + PATIENCE
        while not info.exists() or not info.read_text():
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)
        self.port = int(json.loads(info.read_text())["port"])
        # It writes that before it listens.
        while not self._listens():
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def log(self) -> str:
        """The server's log."""
        return self._log.read_text()

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(PATIENCE)


class Page:
    """One page."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.messages: list[tuple[float, int, dict[str, Any]]] = []
        """The time of each, its size, and its content."""
        self._came = threading.Condition()
        self._stream: websocket.WebSocket | None = None

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.server.port}/dtrain/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.server.token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 — http, above
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def act(self, world: str, action: str = "", method: str = "POST", **body: Any) -> tuple[int, Any]:
        """Ask for something of a world."""
        return self.request(method, f"worlds/{quote(world, safe='')}{action and '/' + action}", body or None)

    def open(self) -> None:
        """Open the stream."""
        self._stream = websocket.create_connection(
            f"ws://127.0.0.1:{self.server.port}/dtrain/stream",
            header=[f"Authorization: token {self.server.token}"],
            timeout=PATIENCE,
        )
        threading.Thread(target=self._read, args=(self._stream,), daemon=True).start()

    def _read(self, stream: websocket.WebSocket) -> None:
        while True:
            try:
                text = stream.recv()
            except (OSError, websocket.WebSocketException):
                return
            if not text:
                return
            with self._came:
                self.messages.append((time.monotonic(), len(text), json.loads(text)))
                self._came.notify_all()

    def say(self, **content: Any) -> None:
        """Say something to the server."""
        assert self._stream is not None
        self._stream.send(json.dumps(content))

    def last(self, kind: str) -> dict[str, Any] | None:
        """The newest message of a kind."""
        return next((message for _, _, message in reversed(self.messages) if message["type"] == kind), None)

    def until(self, found: Callable[[], Any], patience: float = PATIENCE) -> Any:
        """The value of ``found`` once it is true, checked at each message. Fails if that takes too long."""
        deadline = time.monotonic() + patience
        with self._came:
            while not (result := found()):
                came = self._came.wait(max(0.0, deadline - time.monotonic()))
                assert came or found(), f"it did not come true in {patience:g} s"
            return result

    def world(self, name: str) -> dict[str, Any]:
        """The latest news of the world of this name; empty where there is none."""
        told = self.last("worlds")
        return next((one for one in (told or {}).get("worlds", ()) if one["name"] == name), {})

    def items(self, kind: str) -> list[dict[str, Any]]:
        """The items of one kind that need attention."""
        return [item for item in (self.last("attention") or {}).get("items", ()) if item["kind"] == kind]

    def points(self, name: str, run: int) -> dict[int, list[tuple[int, float]]]:
        """All points of a metric of one run that have come, by rank: steps and values."""
        found: dict[int, list[tuple[int, float]]] = {}
        reach = None
        for _, _, message in self.messages:
            if message["type"] == "run" and message["document"]["run"] == run and reach is None:
                reach = message["document"]["seq"]
                for part in message["document"]["metrics"]:
                    if part["name"] == name:
                        for rank, (first, distance, count), values in part["series"]:
                            column = struct.unpack(f"<{count}f", base64.b64decode(values))
                            found[rank] = [(first + distance * at, value) for at, value in enumerate(column)]
            elif message["type"] == "news" and message["status"]["run"] == run and "series" in message:
                if message["seq"] != reach:
                    continue
                reach += 1
                values = base64.b64decode(message["values"])
                at = 0
                for index, rank, count, first, distance in message["series"]:
                    column = struct.unpack_from(f"<{count}f", values, 4 * at)
                    at += count
                    if message["names"][index] == name:
                        new = ((first + distance * step, value) for step, value in enumerate(column))
                        found.setdefault(rank, []).extend(new)
        return found

    def close(self) -> None:
        """Leave."""
        if self._stream is not None:
            self._stream.close()
