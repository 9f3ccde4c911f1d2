"""An address at which a cell wants some ranks to meet: ``MASTER_PORT`` set by hand, or ``tcp://host:port``.

torch's own way does not work in a rank. Since somebody else keeps the store there (``TORCHELASTIC_USE_AGENT_STORE``),
no rank would serve one at an address of its own; and whoever connects to a port that another program listens on waits
for ever, in native code that no interrupt ends (torch 2.13). Here the group's rank 0 serves, and says so through the
world's own store; the others connect once it does.

Under failure: a port that is taken is an error on all ranks of the group, at once; one to which rank 0 does not come is
waited for in Python, which an interrupt ends.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlparse

from jupyter_dtrain.engine.sockets import listeners
from jupyter_dtrain.frameworks.rendezvous import ARRIVAL_POLL, awaits_ranks

OUTSIDE_PATIENCE = 30.0
"""Seconds after which whoever listens there, and is no rank of the world, is taken for the group's rank 0."""
_SERVED = "served"


class Address(NamedTuple):
    """Where, and how many."""

    host: str
    port: int
    size: int


class Meeting(NamedTuple):
    """Where, and who this is."""

    address: Address
    rank: int


def meeting_at(url: str) -> Meeting | None:
    """What torch makes of ``url`` and of the environment; None where something is missing, as torch will say."""
    parts, environ = urlparse(url), os.environ
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    try:
        if parts.scheme == "env":
            place = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
            query = {"rank": environ.get("RANK", ""), "world_size": environ.get("WORLD_SIZE", ""), **query}
        else:
            place = parts.hostname or "", parts.port or 0
        return Meeting(Address(*place, int(query["world_size"])), int(query["rank"])) if all(place) else None
    except (KeyError, ValueError):
        return None


def meet(dist: Any, world: Any, meeting: Meeting, timeout: timedelta, is_released: Callable[[], bool]) -> Any:
    """The store of ``meeting``, which its rank 0 serves. ``world``: a store that the ranks of the world share.

    ``is_released`` tells whether to wait for rank 0 no longer. Raises :class:`RuntimeError` then, and when rank 0
    cannot serve there; and :class:`TimeoutError`.
    """
    address = meeting.address
    if meeting.rank == 0:
        try:
            store, prefix = _serve(dist, address, timeout)
        except OSError as error:
            words = _why_not(address, error)
            world.set(_SERVED, json.dumps({"error": words}))
            raise RuntimeError(words) from None
        world.set(_SERVED, json.dumps({"prefix": prefix}))
    else:
        told = _await_server("init_process_group", world, address, timeout, is_released)
        if "error" in told:
            raise RuntimeError(told["error"])
        prefix = told["prefix"]
        store = dist.TCPStore(address.host, address.port, address.size, False, timeout, wait_for_workers=False)
    return dist.PrefixStore(prefix, store) if prefix else store


def _serve(dist: Any, address: Address, timeout: timedelta) -> tuple[Any, str]:
    """A store that listens, and the prefix for its keys: of one that served before there may be old ones."""
    options: dict[str, Any] = {"timeout": timeout, "wait_for_workers": False, "multi_tenant": True}
    try:
        # By our own hand: told that somebody else keeps the store, torch takes a port that is taken for that.
        listener = socket.create_server(address[:2])
    except OSError as error:
        # It may be an earlier group's, of this process, whose store something still holds: torch finds that again.
        if error.errno != errno.EADDRINUSE or not listeners(address.port):
            raise
        prefix = f"again-{time.monotonic_ns()}"
    else:
        options["master_listen_fd"] = listener.detach()
        prefix = ""
    return dist.TCPStore(*address, True, **options), prefix


def _why_not(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        why = "is taken by another program"
    else:
        why = f"cannot be served by rank 0 ({error.strerror or error})"
    return (
        f"init_process_group: {address.host}:{address.port}, where the cell wants its ranks to meet, {why}. "
        f"Take another port, or leave out init_method, MASTER_ADDR and MASTER_PORT: the ranks of a world know where "
        f"to meet."
    )


@awaits_ranks
def _await_server(
    call: str, world: Any, address: Address, timeout: timedelta, is_released: Callable[[], bool]
) -> dict[str, str]:
    """What rank 0 says of what it serves: the prefix of its keys, or why it does not."""
    begun = time.monotonic()
    deadline = begun + timeout.total_seconds()
    while not world.check([_SERVED]):
        if is_released():
            raise RuntimeError(f"{call}: rank 0 of the group did not come.")
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(
                f"{call}: rank 0 of the group did not come to {address.host}:{address.port} within "
                f"{timeout.total_seconds():g} s."
            )
        if now > begun + OUTSIDE_PATIENCE and _listens(address):
            return {"prefix": ""}
        time.sleep(ARRIVAL_POLL)
    told: dict[str, str] = json.loads(world.get(_SERVED))
    return told


def _listens(address: Address) -> bool:
    try:
        with socket.create_connection(address[:2], timeout=1.0):
            return True
    except OSError:
        return False
