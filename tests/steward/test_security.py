"""A world's listeners, the permissions of its files, and the requests that it accepts."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import time
from pathlib import Path

import psutil
import pytest
import zmq
from jupyter_client.session import Session as Messages

from jupyter_dtrain import Session
from jupyter_dtrain.core.events import EVENTS_MESSAGE
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.wire.messages import REQUEST_MESSAGE, STEWARD_REQUEST
from tests.steward.until import PATIENCE, family, runs, state_of, until, watch_of

HIDDEN = "hunter2-5f1c9e"
LOOPBACK = {"127.0.0.1"}
ANYWHERE = {"127.0.0.1", "0.0.0.0", "::"}  # noqa: S104 — what Open MPI binds to
LISTENERS = {
    # Ours: the addresses at which ranks meet. Otherwise it has unix sockets, like the controller.
    "steward": LOOPBACK,
    "controller": set(),
    # The store has the steward's socket, and serves this user there.
    "store": LOOPBACK,
    # So does the place where JAX's ranks meet, with the coordinators of their set-ups.
    "jax": LOOPBACK,
    # And torchft's lighthouse, with the stores of its Managers.
    "torchft": LOOPBACK,
    # Ours has none here: it talks to the controller.
    "watch": set(),
    # It talks to the watch over a unix socket.
    "slot": set(),
    # Open MPI's, as documented on the security page: prterun listens for its daemons and tools, and each rank's TCP
    # transport (btl/tcp) for the other ranks.
    "prterun": ANYWHERE,
    "rank": ANYWHERE,
}
"""The addresses at which the processes of a local world may listen."""


@pytest.fixture(scope="module")
def session(launch):
    """A world with a secret in its ranks' environment, made under the usual umask."""
    before = os.umask(0o022)
    try:
        session = launch(n=2, env={"SECRET_TOKEN": HIDDEN})
    finally:
        os.umask(before)
    yield session
    session.stop()


def roles(session: Session) -> dict[psutil.Process, str]:
    """The role of each process of the world."""
    found = {}
    ranks = {rank.pid for rank in session.world.ranks}
    for process in family(session):
        try:
            line = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue  # such as a py-spy that has just ended
        if process.pid in ranks:
            found[process] = "rank"
        elif process.name() == "prterun":
            found[process] = "prterun"
        else:
            parts = {"steward.__main__": "steward", "launch.controller": "controller", "torch.store": "store"}
            parts |= {"jax.coordinator": "jax", "elastic.lighthouse": "torchft"}
            parts |= {"watch.watch": "watch", "slot_holder": "slot"}
            found[process] = next(role for part, role in parts.items() if part in line)
    return found


def listeners(session: Session) -> dict[str, set[str]]:
    """The addresses at which the world's processes listen, by what they are."""
    found: dict[str, set[str]] = {}
    for process, role in roles(session).items():
        addresses = {
            connection.laddr.ip
            for connection in process.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        }
        found.setdefault(role, set()).update(addresses)
    return found


def listening(session: Session, role: str) -> int:
    """How many TCP sockets of the world's processes of that kind listen."""
    connections = [one for process, what in roles(session).items() if what == role for one in process.net_connections()]
    return sum(connection.status == psutil.CONN_LISTEN for connection in connections)


def test_only_what_is_documented_listens(session) -> None:
    """Ours on loopback alone; what Open MPI opens is named."""
    found = listeners(session)

    assert found.keys() == LISTENERS.keys() - {"store", "jax", "torchft"}
    assert {role: sorted(addresses - LISTENERS[role]) for role, addresses in found.items()} == {
        role: [] for role in found
    }
    assert found["steward"] == LOOPBACK
    # MASTER_PORT, and where JAX's and torchft's ranks meet if these are installed.
    assert listening(session, "steward") == 1 + len(Plugins.load().servers())


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_store_of_a_process_group_listens_on_loopback(session) -> None:
    """The test looks after init_process_group; the pairs of gloo are the framework's, and only ranks may have them."""
    session.run("import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier()", view=None)
    found = listeners(session)

    assert found["store"] == LOOPBACK
    assert found["steward"] == LOOPBACK
    assert found["rank"] <= ANYWHERE | {"127.0.1.1"} | own_addresses()


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_where_jax_meets_listens_on_loopback(session) -> None:
    """Its coordinator is there, too; gloo's pairs are the framework's, as above."""
    code = "import jax; jax.config.update('jax_platforms', 'cpu'); jax.distributed.initialize(); jax.devices()"
    session.run(code, view=None)
    found = listeners(session)

    assert found["jax"] <= LOOPBACK | {"::ffff:127.0.0.1"}  # the same, as a socket of IPv6 names it
    assert found["steward"] == LOOPBACK
    assert found["rank"] <= ANYWHERE | {"127.0.1.1"} | own_addresses()


@pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft has no wheel for this machine")
def test_torchft_listens_on_loopback(session) -> None:
    """Its lighthouse, the stores, each rank's server, and the one that gives a new rank its state."""
    before = listening(session, "rank")
    session.run(
        "from torchft import Manager, ProcessGroupGloo\n"
        "manager = Manager(pg=ProcessGroupGloo(), load_state_dict=print, state_dict=dict, min_replica_size=1)\n"
        "import psutil, jupyter_dtrain\n"
        "own = {int(manager._manager.address().rpartition(':')[2])}\n"
        "own |= {manager._checkpoint_transport._server.server_port}\n"
        "found = [one for one in psutil.Process().net_connections() if one.status == 'LISTEN']\n"
        "where = {one.laddr.port: one.laddr.ip for one in found}\n"
        "assert {where[port] for port in own} <= {'127.0.0.1', '::ffff:127.0.0.1'}, (own, where)",
        view=None,
    )
    found = listeners(session)

    assert found["torchft"] == LOOPBACK
    assert found["steward"] == LOOPBACK
    # A Manager's server rests with the cell; the one with the state stays.
    until(lambda: listening(session, "rank") == before + 2)


def own_addresses() -> set[str]:
    """The addresses of this machine, on which gloo may listen."""
    return {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}


def permissions(path: Path) -> int:
    """The permission bits, without the sticky bit that Jupyter gives run-time folders."""
    return stat.S_IMODE(path.stat().st_mode) & 0o777


def test_folders_and_files_are_for_this_user_alone(session) -> None:
    """0700 and 0600, sockets in a 0700 folder, under a umask that would allow more."""
    session.run("print('spooled')", view=None)
    tops = [Path(session.request.folder), Path(session.request.spool)]
    # The README is IPython's, the same for all users, and copied with its permissions.
    files = [path for top in tops for path in top.rglob("*") if path.is_file() and path.name != "README"]
    loose = [str(path) for path in files if permissions(path) & 0o077]
    sockets = [path for path in Path(session.request.sockets).iterdir() if stat.S_ISSOCK(path.stat().st_mode)]

    assert [permissions(top) for top in tops] == [0o700, 0o700]
    assert len(files) > 5
    assert loose == []
    assert len(sockets) >= 2
    assert permissions(Path(session.request.sockets)) == 0o700


def test_a_user_s_files_are_made_as_elsewhere(session) -> None:
    """The umask of a rank is the notebook's."""
    session.run("import os; mask = os.umask(0); _ = os.umask(mask)", view=None)

    assert session["mask"] == {0: 0o022, 1: 0o022}


def test_a_secret_is_in_no_command_line_and_no_file(session, tmp_path) -> None:
    """A value given with --env is in the ranks' environment and nowhere else."""
    session.run("import os; value = os.environ['SECRET_TOKEN']", view=None)
    lines = [word for process in family(session) for word in process.cmdline()]
    folders = [session.request.folder, session.request.spool, "/dev/shm", *Path("/tmp").glob("ompi.*")]
    written = [
        str(path)
        for folder in folders
        for path in Path(folder).rglob("*")
        if path.is_file() and HIDDEN.encode() in path.read_bytes()
    ]
    value = session["value"]

    assert value == {0: HIDDEN, 1: HIDDEN}
    assert not any(HIDDEN in word for word in lines)
    assert written == []


NOISE = [[b"<IDS|MSG>"], [b"<IDS|MSG>", b"", b"", b""], [b"noise"], [b"<IDS|MSG>", b"x" * 64, *[b"{"] * 4]]
"""Frames that are no message at all."""


def forger(connection_file: str, *, key: bytes) -> tuple[Messages, dict]:
    """A client that knows the addresses, and signs with ``key``."""
    info = json.loads(Path(connection_file).read_text())
    return Messages(key=key, signature_scheme=info["signature_scheme"], username="forger"), info


@pytest.fixture
def dealer():
    """Connects a socket that a forger may use."""
    context = zmq.Context()
    sockets = []

    def connect(url: str, kind: int = zmq.DEALER) -> zmq.Socket:
        sockets.append(context.socket(kind))
        sockets[-1].connect(url)
        return sockets[-1]

    yield connect
    for socket in sockets:
        socket.close(linger=0)
    context.term()


@pytest.mark.parametrize("key", [b"wrong", b""])
def test_the_steward_hears_only_those_who_hold_the_key(session, dealer, key) -> None:
    """A request to stop, signed with another key or not at all, then one that is signed well, on the same socket."""
    file = session._link.listing.connection_file
    messages, info = forger(file, key=key)
    honest, _ = forger(file, key=info["key"].encode())
    socket = dealer(f"ipc://{info['ip']}-{info['control_port']}")
    messages.send(socket, STEWARD_REQUEST, {"op": "stop"})
    for noise in NOISE:
        socket.send_multipart(noise)
    honest.send(socket, STEWARD_REQUEST, {"op": "state"})
    answered = socket.poll(10_000)
    _, reply = honest.recv(socket)

    assert answered
    assert reply["content"]["phase"] == "running"
    assert not socket.poll(300)
    assert state_of(session).phase == "running"


@pytest.mark.parametrize("key", [b"wrong", b""])
@pytest.mark.parametrize("who", ["agent", "watch"])
def test_ranks_hear_only_those_who_hold_the_key(session, dealer, key, who) -> None:
    """A forged request to end a rank (watch) or to describe it (agent), noise, then a request with a good signature."""
    client_file = state_of(session).client_file
    messages, info = forger(client_file, key=key)
    honest, _ = forger(client_file, key=info["key"].encode())
    rank = session.world.ranks[1]
    addressed = session._link.world.rank(1)
    target = (addressed.engine if who == "agent" else addressed.watch).encode()
    forged = {"op": "state"} if who == "agent" else {"op": "signal", "rank": 1, "signal": 9}
    harmless = {"op": "state"} if who == "agent" else {"op": "lease"}
    watch = watch_of(session, 1)
    socket = dealer(f"{info['interface']}:{info['control']}")
    messages.send(socket, REQUEST_MESSAGE, forged, ident=target)
    for noise in NOISE:
        socket.send_multipart([target, *noise])
    honest.send(socket, REQUEST_MESSAGE, harmless, ident=target)
    answered = socket.poll(10_000)
    _, reply = honest.recv(socket)

    assert answered
    assert reply["content"]["status"] == "ok"
    assert not socket.poll(300)
    assert runs(rank.pid)
    assert runs(watch)


@pytest.mark.parametrize("key", [b"wrong", b""])
def test_a_prompt_takes_no_answer_that_is_not_signed(session, dealer, key) -> None:
    """Neither the steward does, though it names the driver, nor the rank itself."""
    cell = session.run("answered = input()", 0, wait=False, view=None, ask=True)
    until(lambda: session.prompts)
    answer = {"run": cell.number, "text": "forged"}
    file = session._link.listing.connection_file
    messages, info = forger(file, key=key)
    steward = dealer(f"ipc://{info['ip']}-{info['control_port']}")
    messages.send(
        steward, STEWARD_REQUEST, {"op": "answer", "client": session._link.me.id, "prompts": {"0": 1}, **answer}
    )
    messages, info = forger(state_of(session).client_file, key=key)
    ranks = dealer(f"{info['interface']}:{info['control']}")
    target = session._link.world.rank(0).engine.encode()
    messages.send(ranks, REQUEST_MESSAGE, {"op": "prompt", "number": 1, **answer}, ident=target)
    heard = [socket.poll(500) for socket in (steward, ranks)]
    session.answer("mine")

    assert cell.wait(PATIENCE)
    assert heard == [0, 0]
    assert session.pull("answered", 0) == {0: "mine"}


def test_announcements_that_are_not_signed_are_not_believed(session, dealer, caplog) -> None:
    """Forged output of a running cell, over the road that engines use: it arrives, and is refused."""
    engine_file = Path(session.request.folder) / "profile" / "security" / "ipcontroller-engine.json"
    forgers = [forger(str(engine_file), key=key)[0] for key in (b"wrong", b"")]
    _, info = forger(str(engine_file), key=b"wrong")
    socket = dealer(f"{info['interface']}:{info['iopub']}", zmq.PUB)
    run = session.run("import time; print('true', flush=True); time.sleep(60)", wait=False, view=None)
    until(lambda: "true" in run.text(0))

    def lie() -> bool:
        body = {"type": "output", "stream": "stdout", "text": "forged"}
        first = run.next_seq(0)
        event = {"run": run.number, "rank": 0, "seq": first, "time": time.time(), "body": body}
        batch = {"run": run.number, "rank": 0, "first": first, "last": first, "events": [event], "version": 1}
        for messages in forgers:
            messages.send(socket, EVENTS_MESSAGE, batch, ident=b"engine.0.dtrain")
        refused = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
        return any("Invalid Signature" in why for why in refused) and any("Unsigned" in why for why in refused)

    until(lie)
    session.interrupt()
    run.wait(20)

    assert run.outcomes == {0: "interrupted", 1: "interrupted"}
    assert run.text(0) == "true\n"
