"""The address at which ranks meet, and the store that begins behind it."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from jupyter_dtrain.core.errors import StartFailed
from jupyter_dtrain.steward import rendezvous as module
from jupyter_dtrain.steward.rendezvous import Rendezvous
from jupyter_dtrain.wire.requests import ServerSpec
from tests.session.cells import until

STORE = """
import pathlib, socket, sys
with pathlib.Path("starts").open("a") as file:
    file.write("x")
listening = socket.socket(fileno=int(sys.argv[1].removeprefix("--fd=")))
connection, _ = listening.accept()
connection.sendall(sys.argv[3].encode() + sys.stdin.buffer.read())
connection.recv(1)
"""
"""Serves one connection, prints its port and its input, and ends when that closes, like a store that dies."""
TOLD = ServerSpec("secret")


@pytest.fixture
def folder(tmp_path):
    """A folder with the module that serves."""
    (tmp_path / "serves.py").write_text(STORE)
    return tmp_path


@pytest.fixture
def meeting(folder):
    """One that listens."""
    meeting = Rendezvous("127.0.0.1", 0, folder / "log", lambda: None, TOLD, "serves")
    yield meeting
    meeting.close()


def starts(folder):
    """How many stores have begun."""
    path = folder / "starts"
    return len(path.read_text()) if path.exists() else 0


def test_the_store_begins_when_a_rank_comes(meeting, folder):
    """It serves what had connected before it was there."""
    assert starts(folder) == 0
    with socket.create_connection(("127.0.0.1", meeting.port), 10) as rank:
        assert rank.recv(100) == f"--port={meeting.port}".encode() + b'{"secret":"secret"}'

    assert starts(folder) == 1


def test_a_store_that_died_begins_again_but_not_without_end(folder, monkeypatch):
    """It starts again at the next connection; the log says so."""
    monkeypatch.setattr(module, "MAX_STARTS", 2)
    meeting = Rendezvous("127.0.0.1", 0, folder / "log", lambda: None, TOLD, "serves")
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", meeting.port), 10) as rank:
            assert rank.recv(100)
    until(lambda: not meeting._thread.is_alive())
    with socket.create_connection(("127.0.0.1", meeting.port), 10):
        pass
    meeting.close()

    assert starts(folder) == 2


def test_a_port_that_is_taken_is_refused(meeting, folder):
    """The error says what to do."""
    with pytest.raises(StartFailed, match=f"Port {meeting.port} on 127.0.0.1 is taken .*Name another MASTER_PORT"):
        Rendezvous("127.0.0.1", meeting.port, folder / "log", lambda: None, TOLD, "serves")


def test_closing_ends_the_store_and_frees_the_port(meeting):
    """A rank may be connected at that moment."""
    with socket.create_connection(("127.0.0.1", meeting.port), 10) as rank:
        assert rank.recv(100)
        meeting.close()

        assert meeting._process.poll() is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", meeting.port), 1)


def test_no_store_is_left_by_a_closing_that_meets_its_start(folder):
    """The start of the store is held up while it opens its log: a pipe that nobody reads yet."""
    os.mkfifo(folder / "log")
    meeting = Rendezvous("127.0.0.1", 0, folder / "log", lambda: None, TOLD, "serves")
    with socket.create_connection(("127.0.0.1", meeting.port), 10):
        until(meeting._starting.locked)
        closing = threading.Thread(target=meeting.close)
        closing.start()
        with open(folder / "log", "rb"):
            closing.join(20)

    assert not closing.is_alive()
    assert not meeting._thread.is_alive()
    assert meeting._process is None or meeting._process.poll() is not None
