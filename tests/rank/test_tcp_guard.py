"""The owner of a connection is known, and a listener is kept on loopback.

Connections of a real other user are tested in tests/steward/test_other_users.py.
"""

from __future__ import annotations

import socket
import threading

import psutil
import pytest

from jupyter_dtrain.rank.sockets import listeners
from jupyter_dtrain.rank.tcp_guard import end_others, is_own, keep_on_loopback, own_waits, owner


def does_not_answer(*_: object) -> int:
    """The system acts like Linux without the module for it."""
    raise FileNotFoundError


@pytest.fixture(params=["netlink", "tables"])
def source(request, monkeypatch) -> None:
    """Both ways to ask."""
    if request.param == "tables":
        monkeypatch.setattr(owner, "_user", does_not_answer)


@pytest.mark.parametrize(
    ("family", "served", "called", "caller"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1", socket.AF_INET),
        (socket.AF_INET, "127.0.0.1", "::ffff:127.0.0.1", socket.AF_INET6),
        (socket.AF_INET6, "::ffff:127.0.0.1", "127.0.0.1", socket.AF_INET),
        (socket.AF_INET6, "::1", "::1", socket.AF_INET6),
    ],
)
def test_a_connection_of_this_user_is_known(source, monkeypatch, family, served, called, caller) -> None:
    """They are one's own in every mixture of IPv4 and IPv6; a process of another user sees them as another's."""
    with socket.socket(family) as listener, socket.socket(caller) as mine:
        if family == socket.AF_INET6:
            # As torch's and gRPC's servers do; without it, Linux refuses a server at an address of IPv4.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listener.bind((served, 0))
        except OSError as error:
            pytest.skip(f"no server at {served}: {error}")
        listener.listen()
        address = listener.getsockname()[:2]
        assert not own_waits(address)
        mine.connect((called, address[1]))
        assert own_waits(address)
        with listener.accept()[0] as theirs:
            assert is_own(theirs)
            monkeypatch.setattr("os.geteuid", lambda: 12345)
            assert not is_own(theirs)
            assert not own_waits(address)


def test_a_process_that_has_gone_has_no_user(source) -> None:
    """Linux may say that a connection which its user has closed is root's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as mine:
            mine.sendall(b"an order")
        with listener.accept()[0] as theirs:
            assert not is_own(theirs)


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
