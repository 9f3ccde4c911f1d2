"""Connections between machines, as one of them tries them."""

from __future__ import annotations

import socket
import threading
import time

from jupyter_dtrain.preflight.tcp_check import connect
from tests.pace import slack
from tests.sshd import free_port


def test_a_port_that_is_closed_is_refused_at_once():
    began = time.monotonic()

    assert connect([["127.0.0.1", free_port(), "hello"]], 5) == ["Connection refused"]
    assert time.monotonic() - began < slack()


def test_packets_that_are_dropped_end_at_the_deadline():
    """A full queue drops them, as a firewall does; whoever got into it is not greeted either."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        target = ["127.0.0.1", deaf.getsockname()[1], "hello"]
        began = time.monotonic()
        failures = connect([target] * 4, 0.5)

    assert all(one.startswith("no answer within 0.5 s") for one in failures)
    assert len(failures) == 4
    assert 0.5 <= time.monotonic() - began < 0.5 + slack()


def greet(server, pieces):
    """Accept one connection and send ``pieces``."""
    one, _ = server.accept()
    with one:
        for piece in pieces:
            one.sendall(piece)
            # Pieces that arrive together would show less, and break nothing.
            time.sleep(0.1)


def answers(pieces):
    """The failure of a connection to a server that says ``pieces``."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet, args=(server, pieces))
        thread.start()
        [failure] = connect([["127.0.0.1", server.getsockname()[1], "hello"]], 5)
        thread.join()
    return failure


def test_only_the_right_greeting_is_a_connection():
    """Another program may have the port, on a machine with the same address."""
    assert answers([b"hello"]) == ""
    assert answers([b"he", b"llo"]) == ""
    assert answers([b"SSH-2.0-OpenSSH"]) == "another program answers there"
    assert answers([]) == "another program answers there"


def test_an_address_without_a_route_is_told_in_the_words_of_linux():
    [failure] = connect([["fe80::1", 9, "hello"]], 1)

    assert failure == "Invalid argument"
