"""Meeting at an address of the cell's own: ``MASTER_PORT`` set by hand, or ``tcp://host:port``.

torch's own way fails in a rank, for two reasons. ``TORCHELASTIC_USE_AGENT_STORE`` says that another process keeps the
store, so no rank would serve one at an address of its own. And a rank that connects to a port of another program waits
forever, in native code that no interrupt ends (torch 2.13, https://github.com/pytorch/pytorch/issues/63802). Here the
group's rank 0 serves the store and announces that in the world's store; only then do the others connect.

Under failure: a port that is already taken raises an error on all ranks of the group, at once. If rank 0 never comes,
the others wait in Python, which an interrupt ends.
"""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlparse

from jupyter_dtrain.frameworks.rendezvous import ARRIVAL_POLL, awaits_ranks
from jupyter_dtrain.plugins.patches import raises_on_purpose
from jupyter_dtrain.rank.connectivity import check_reach
from jupyter_dtrain.rank.sockets import listeners

OUTSIDE_PATIENCE = 30.0
"""Seconds after which a listener outside the world counts as the group's rank 0."""
REACH_PATIENCE = 10.0
"""Seconds after which a rank that still waits for the world's store looks whether the network leads there."""
_SERVED = "served"


class Address(NamedTuple):
    """A host and port, and the number of ranks that meet there."""

    host: str
    port: int
    size: int


class Meeting(NamedTuple):
    """An address, and this process's rank there."""

    address: Address
    rank: int


@raises_on_purpose
@awaits_ranks
def reach(call: str, dist: Any, address: tuple[str, int], timeout: timedelta, is_released: Callable[[], bool]) -> Any:
    """A connection to the world's store at ``address``, whose process may only just be starting.

    torch waits for it in native code, which no interrupt ends: so a thread of its own connects. ``call``: the function
    that the user called, for the error. Raises :class:`RuntimeError` once ``is_released()``, :class:`ConnectionError`
    where the network leads nowhere, and what torch raises after ``timeout``.
    """
    found: list[Any] = []
    over = threading.Event()
    look_at = time.monotonic() + REACH_PATIENCE

    def connect() -> None:
        try:
            found.append(dist.TCPStore(*address, None, False, timeout=timeout, wait_for_workers=False))
        except Exception as error:  # noqa: BLE001 — the waiting caller raises it
            found.append(error)
        over.set()

    threading.Thread(target=connect, name="dtrain-store", daemon=True).start()
    while not over.wait(ARRIVAL_POLL):
        if is_released():
            raise RuntimeError(f"{call}: a rank failed before all had joined.")
        # The steward listens there from the first second, so that a connection needs no process to answer.
        if time.monotonic() > look_at:
            check_reach("the world's store", address, call)
            look_at = math.inf
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def meeting_at(url: str) -> Meeting | None:
    """The meeting that torch reads from ``url`` and the environment; None where a part is missing (torch says so)."""
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


@raises_on_purpose
def meet(dist: Any, world: Any, meeting: Meeting, timeout: timedelta, is_released: Callable[[], bool]) -> Any:
    """The store of ``meeting``, which its rank 0 serves. ``world``: a store that the ranks of the world share.

    ``is_released`` ends the wait for rank 0. Raises :class:`RuntimeError` then, and when rank 0 cannot serve there;
    :class:`TimeoutError` when rank 0 does not come within ``timeout``.
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
    """A listening store, and a prefix for its keys, which an earlier store on this port may have used."""
    options: dict[str, Any] = {"timeout": timeout, "wait_for_workers": False, "multi_tenant": True}
    try:
        # We bind the port ourselves: torch assumes another process keeps the store, and would take a busy port for it.
        listener = socket.create_server(address[:2])
    except OSError as error:
        # An earlier group of this process may still hold its store there: torch finds that one again.
        if error.errno != errno.EADDRINUSE or not listeners(address.port):
            raise
        prefix = f"again-{time.monotonic_ns()}"
    else:
        options["master_listen_fd"] = listener.detach()
        prefix = ""
    return dist.TCPStore(*address, True, **options), prefix


def _why_not(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        why = "another program uses it"
    else:
        why = f"rank 0 cannot serve it ({error.strerror or error})"
    return (
        f"init_process_group: the cell's ranks cannot find each other at {address.host}:{address.port}: {why}. "
        f"Choose another port, or leave out init_method, MASTER_ADDR and MASTER_PORT: the ranks of a world find "
        f"each other without them."
    )


@awaits_ranks
def _await_server(
    call: str, world: Any, address: Address, timeout: timedelta, is_released: Callable[[], bool]
) -> dict[str, str]:
    """Rank 0's announcement: the prefix of its keys, or the reason why it does not serve."""
    begun = time.monotonic()
    deadline = begun + timeout.total_seconds()
    while not world.check([_SERVED]):
        if is_released():
            raise RuntimeError(f"{call}: rank 0 of the group did not arrive.")
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(
                f"{call}: rank 0 of the group did not arrive at {address.host}:{address.port} within "
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
