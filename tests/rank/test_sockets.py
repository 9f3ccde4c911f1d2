"""Listeners of this process that are kept on loopback."""

from __future__ import annotations

import socket
import threading

import psutil
import pytest

from jupyter_dtrain.rank.sockets import end_others, keep_on_loopback, listeners


def own_address() -> str:
    """One of this host, beside loopback."""
    found = [one for interface in psutil.net_if_addrs().values() for one in interface]
    addresses = [one.address for one in found if one.family == socket.AF_INET and not one.address.startswith("127.")]
    if not addresses:
        pytest.skip("this host has no address but loopback")
    return addresses[0]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_connections_from_before_the_filter_are_ended(family) -> None:
    """Accepted ones end, and those that still wait; loopback's go on."""
    elsewhere = own_address()
    dual = family == socket.AF_INET6
    with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as listener:
        port = listener.getsockname()[1]
        accepted: list[socket.socket] = []
        early = [socket.create_connection((host, port), 5) for host in (elsewhere, "127.0.0.1", elsewhere)]
        accepted.append(listener.accept()[0])
        keep_on_loopback(listeners(port))
        rest = threading.Timer(0.1, lambda: accepted.extend(listener.accept()[0] for _ in early[1:]))
        rest.start()
        ended = end_others(port)
        rest.join()

        assert ended == 2
        assert [early[0].recv(1), early[2].recv(1)] == [b"", b""]
        accepted[1].sendall(b"x")
        assert early[1].recv(1) == b"x"
        with pytest.raises(TimeoutError):
            socket.create_connection((elsewhere, port), 0.3)
        for one in (*early, *accepted):
            one.close()
