"""A way to a world on which messages get lost, each when a test says so.

It stands between one process's clients and a world: proxies for the sockets of the ranks (ipyparallel's controller) and
of the steward, found by connection files of its own. It works on whichever transport the world uses. It changes one
answer, the steward's about its state, which names the file for the way to the ranks.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zmq
from jupyter_client.session import Session as Messages

from jupyter_dtrain import Session
from jupyter_dtrain.launch.worlds import find_world, runtime_folder
from jupyter_dtrain.wire.steward_messages import ReadState

HOST = "tcp://127.0.0.1"
ASKED = ("registration", "mux", "task", "broadcast", "control")
HEARD = ("iopub", "notification")
DELIMITER = b"<IDS|MSG>"


class Message(NamedTuple):
    """A message on its way."""

    sort: str
    """The type in its header."""
    content: dict[str, Any]
    to_client: bool
    request: dict[str, Any]
    """The content of the request that it answers; empty where it answers none."""


class Loss:
    """The messages that get lost, and how often that has happened."""

    def __init__(self, wanted: Callable[[Message], bool], most: float) -> None:
        self.wanted = wanted
        self.most = most
        self.lost: list[Message] = []


class Count:
    """Keeps messages on their way, lost ones too."""

    def __init__(self, wanted: Callable[[Message], bool]) -> None:
        self.wanted = wanted
        self.met: list[Message] = []


class LossyWay:
    """The proxies of one world, which one thread serves."""

    def __init__(self, session: Session, folder: Path) -> None:
        """``session`` has a way of its own to the world; ``folder`` is for connection files."""
        self.name = f"{session.name}-lossy"
        self._context = zmq.Context()
        self._routes: dict[zmq.Socket[bytes], Callable[[list[bytes]], None]] = {}
        self._backs: dict[tuple[zmq.Socket[bytes], bytes], zmq.Socket[bytes]] = {}
        self._losses: list[Loss] = []
        self._counts: list[Count] = []
        self._requests: dict[str, dict[str, Any]] = {}
        self._closing = threading.Event()
        listing = find_world(session.name)
        self._ranks_file = folder / "ranks.json"
        self._ranks_seen = ""
        steward_file = folder / "steward.json"
        self._proxy_ranks(Path(session._link.ask(ReadState()).client_file))
        self._proxy_steward(Path(listing.connection_file), steward_file)
        self._listing = runtime_folder() / self.name / "world.json"
        self._listing.parent.mkdir(mode=0o700)
        changed = msgspec.structs.replace(listing, name=self.name, connection_file=str(steward_file))
        self._listing.write_bytes(msgspec.json.encode(changed))
        self._thread = threading.Thread(target=self._serve, name="lossy-way", daemon=True)
        self._thread.start()

    def lose(self, wanted: Callable[[Message], bool], most: float = 1) -> Loss:
        """Lose the next message that is ``wanted``, or so many of them."""
        self._losses.append(Loss(wanted, most))
        return self._losses[-1]

    def count(self, wanted: Callable[[Message], bool]) -> Count:
        """Keep the messages that are ``wanted`` and come from now on."""
        self._counts.append(Count(wanted))
        return self._counts[-1]

    def heal(self) -> None:
        """Lose nothing from now on, and count nothing."""
        self._losses.clear()
        self._counts.clear()

    def close(self) -> None:
        """End the proxies; the world goes on."""
        self._closing.set()
        self._thread.join()
        self._listing.unlink()
        self._listing.parent.rmdir()
        self._context.destroy(linger=0)

    # The sockets.

    def _proxy_ranks(self, file: Path) -> None:
        """Stand before the controller that wrote ``file``; a restarted world has another."""
        if not file.exists() or (text := file.read_text()) == self._ranks_seen:
            return
        self._ranks_seen = text
        info = json.loads(text)
        for key in (*ASKED, *HEARD):
            back = f"{info['interface']}:{info[key]}"
            info[key] = self._ask_through(back) if key in ASKED else self._hear_through(back)
        info["interface"] = HOST
        self._ranks_file.write_text(json.dumps(info))

    def _proxy_steward(self, file: Path, through: Path) -> None:
        info = json.loads(file.read_text())
        joint = "-" if info["transport"] == "ipc" else ":"
        base = f"{info['transport']}://{info['ip']}{joint}"
        key = info["key"]
        self._signer = Messages(key=key.encode(), signature_scheme=info["signature_scheme"])
        info["control_port"] = self._ask_through(f"{base}{info['control_port']}")
        info["iopub_port"] = self._hear_through(f"{base}{info['iopub_port']}")
        info |= {"transport": "tcp", "ip": "127.0.0.1"}
        through.write_text(json.dumps(info))

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        return socket

    def _ask_through(self, address: str) -> int:
        """A port for requests to ``address``. Each client gets a socket there, as it would have had by itself."""
        front = self._socket(zmq.ROUTER)
        port = front.bind_to_random_port(HOST)

        def forth(parts: list[bytes]) -> None:
            client, *rest = parts
            back = self._backs.get((front, client))
            if back is None:
                back = self._backs[front, client] = self._socket(zmq.DEALER)
                back.connect(address)
                self._routes[back] = lambda parts: self._pass_on(front, parts, client, to_client=True)
            self._pass_on(back, rest, None, to_client=False)

        self._routes[front] = forth
        return port

    def _hear_through(self, address: str) -> int:
        """A port on which the broadcasts of ``address`` come."""
        front, back = self._socket(zmq.XPUB), self._socket(zmq.XSUB)
        port = front.bind_to_random_port(HOST)
        back.connect(address)
        self._routes[front] = back.send_multipart
        self._routes[back] = lambda parts: self._pass_on(front, parts, None, to_client=True)
        return port

    def _pass_on(self, out: zmq.Socket[bytes], parts: list[bytes], client: bytes | None, *, to_client: bool) -> None:
        found = self._read(parts, to_client=to_client)
        if found is not None:
            for count in self._counts:
                if count.wanted(found):
                    count.met.append(found)
            for loss in list(self._losses):
                if loss.wanted(found):
                    loss.lost.append(found)
                    if len(loss.lost) >= loss.most:
                        self._losses.remove(loss)
                    return
            if to_client and "client_file" in found.content:
                at = parts.index(DELIMITER)
                parts = [*parts[: at + 1], *self._renamed(parts[at + 2 : at + 6])]
        out.send_multipart(parts if client is None else [client, *parts])

    def _read(self, parts: list[bytes], *, to_client: bool) -> Message | None:
        if DELIMITER not in parts:
            return None
        at = parts.index(DELIMITER)
        header, parent, _, content = (json.loads(part) for part in parts[at + 2 : at + 6])
        if not to_client:
            self._requests[header["msg_id"]] = content
        request = self._requests.get(parent.get("msg_id", ""), {})
        return Message(header["msg_type"], content, to_client, request)

    def _renamed(self, signed: list[bytes]) -> list[bytes]:
        content = json.loads(signed[3])
        self._proxy_ranks(Path(content["client_file"]))
        content["client_file"] = str(self._ranks_file)
        signed = [*signed[:3], json.dumps(content).encode()]
        return [self._signer.sign(signed), *signed]

    def _serve(self) -> None:
        while not self._closing.is_set():
            poller = zmq.Poller()
            for socket in self._routes:
                poller.register(socket, zmq.POLLIN)
            for socket, _ in poller.poll(50):
                self._routes[socket](socket.recv_multipart())


@contextlib.contextmanager
def lossy_way(session: Session, folder: Path) -> Iterator[LossyWay]:
    """A lossy way to the world of ``session``, while the block runs."""
    way = LossyWay(session, folder)
    try:
        yield way
    finally:
        way.close()
