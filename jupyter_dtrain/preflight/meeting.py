"""Lets machines try to connect to each other. Its text is sent to each, to the standard input of a Python.

As ``listen`` it takes a free port of an address, tells it, greets whoever connects, and ends with its input. As
``connect`` it tries addresses side by side and tells which of them greeted it rightly. It needs the standard library
alone and Python 3.7 or newer.

Under failure: it ends by itself after the seconds that it is given, and reports a failure in the words of Linux.
"""

from __future__ import annotations

import errno
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Json = dict[str, Any]  # an old Python, on the machine where this runs, does not know it


def main(text: str) -> None:
    """Do as ``text`` asks, a JSON object: ``task`` (``listen`` or ``connect``), ``nonce``, ``seconds``, arguments."""
    asked = json.loads(text)
    # By default the signal ends the process, wherever it is.
    signal.alarm(max(int(asked["seconds"]), 1))
    if asked["task"] == "listen":
        listen(asked)
    else:
        tell(asked, {"failures": connect(asked["targets"], asked["patience"])})


def tell(asked: Json, answer: Json) -> None:
    """Print the line with the answer."""
    sys.stdout.write(f"\n{asked['nonce']} {json.dumps(answer)}\n")
    sys.stdout.flush()


def listen(asked: Json) -> None:
    """Greet all who connect, until the input ends. Nothing that they say is read."""
    try:
        family = socket.AF_INET6 if ":" in asked["address"] else socket.AF_INET
        server = socket.socket(family, socket.SOCK_STREAM)
        server.bind((asked["address"], 0))
        server.listen(128)
    except OSError as error:
        tell(asked, {"port": 0, "failure": os.strerror(error.errno) if error.errno else str(error)})
        return
    tell(asked, {"port": server.getsockname()[1], "failure": ""})
    while True:
        ready = select.select([server, sys.stdin], [], [])[0]
        if sys.stdin in ready and not os.read(sys.stdin.fileno(), 1024):
            return
        if server in ready:
            one, _ = server.accept()
            try:
                one.settimeout(1)
                one.sendall(asked["greeting"].encode())
            except OSError:
                pass  # whoever it was has gone
            finally:
                one.close()


def connect(targets: list[list[Any]], patience: float) -> list[str]:
    """Why each of ``targets`` (address, port, greeting) cannot be reached; empty where it greeted rightly."""
    failures = [f"no answer within {patience:g} s (a firewall drops the packets, or the host is off)"] * len(targets)
    waiting = selectors.DefaultSelector()
    heard = [b""] * len(targets)
    for index, (address, port, _) in enumerate(targets):
        one = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        one.setblocking(False)
        code = one.connect_ex((address, port))
        if code in (0, errno.EINPROGRESS):
            waiting.register(one, selectors.EVENT_WRITE, index)
        else:
            failures[index] = os.strerror(code)
            one.close()
    deadline = time.monotonic() + patience
    while waiting.get_map() and time.monotonic() < deadline:
        for key, events in waiting.select(max(deadline - time.monotonic(), 0)):
            index, greeting = key.data, targets[key.data][2].encode()
            code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # type: ignore[union-attr]  # a socket
            if not code and events & selectors.EVENT_WRITE:
                waiting.modify(key.fileobj, selectors.EVENT_READ, index)
                continue
            said = b""
            if not code:
                try:
                    said = key.fileobj.recv(1024)  # type: ignore[union-attr]
                except OSError as error:
                    code = error.errno or errno.EIO
            heard[index] += said
            if said and len(heard[index]) < len(greeting):
                continue
            right = heard[index] == greeting
            failures[index] = "" if right else os.strerror(code) if code else "another program answers there"
            waiting.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
    for key in list(waiting.get_map().values()):
        key.fileobj.close()  # type: ignore[union-attr]  # all are sockets
    return failures
