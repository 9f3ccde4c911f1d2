"""A cell on its way to many ranks, flat or by a relay on each host: a simulation with real messages and no ranks.

Real: ZeroMQ over TCP, ipyparallel's queue in a process of its own, the project's message of a cell and the events that
come back, signed and read as a client does. Not real: the agents, which live in a few processes and answer at once,
and the network, which is this machine's loopback. So the figures are the cost of the client and of the queue, which no
larger cluster shares out; the work of ranks, which grows on no host with the world, is not in them.

A tree sends one message to a relay on each host, and gets one back with the events of the host's ranks. Its time is
that of this upper part, plus the time in which one relay reaches its own ranks, measured alone: hosts work side by
side.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import psutil
import zmq
from jupyter_client.session import Session
from zmq.devices.monitoredqueue import monitored_queue

from jupyter_dtrain.core.events import Batch, Event, Finished, Started, from_wire, to_wire
from jupyter_dtrain.wire.agent_messages import RunCell
from jupyter_dtrain.wire.messages import RUN_MESSAGE, Cell, Watching, to_content

from .report import Measurement

SIZES: Final = (8, 32, 128, 512, 1024, 4096, 10240)
HOST: Final = 8
"""Ranks of a host."""
WORKERS: Final = 4
"""Processes that the agents share."""
ROUNDS: Final = 7
CODE: Final = "loss = train(model, batches)\n" * 20
LARGE: Final = 1_000_000
"""Bytes of a value that all ranks get."""
PATIENCE: Final = 120_000
"""Milliseconds after which a message counts as lost."""


class Cost(NamedTuple):
    """One way to one cell on all ranks and back."""

    seconds: float
    client: float
    """Seconds of processor time of the client."""
    queue: float
    """Seconds of processor time of ipyparallel's queue."""

    @property
    def least(self) -> float:
        """Seconds that it takes where ranks and network take none: client and queue work side by side."""
        return max(self.client, self.queue)


def measure(sizes: Sequence[int] = SIZES, rounds: int = ROUNDS) -> Measurement:
    """Each size, flat and with relays, an empty cell and a value of 1 MB."""
    found = Measurement()
    inner = _fan_out(HOST, HOST, 1, b"", rounds)
    inner_large = _fan_out(HOST, HOST, 1, os.urandom(LARGE), rounds)
    found.figures[f"a relay and its {HOST} ranks, ms"] = [_ms(inner.seconds), _ms(inner_large.seconds)]
    crossover: dict[str, int] = {}
    for size in sizes:
        hosts = -(-size // HOST)
        line: dict[str, Any] = {}
        for what, value, below in (("cell", b"", inner), ("1 MB", os.urandom(LARGE), inner_large)):
            if value and size > 1024:
                continue  # the memory of this machine is no cluster's
            flat = _fan_out(size, size, 1, value, rounds)
            upper = _fan_out(size, hosts, HOST, value, rounds)
            tree = upper.least + below.seconds
            line |= {
                f"{what}, flat, ms": _ms(flat.least),
                f"{what}, tree, ms": _ms(tree),
                f"{what}, flat: client, queue, all on this machine, ms": [*map(_ms, (flat[1], flat[2], flat[0]))],
                f"{what}, tree: client, queue, all on this machine, ms": [*map(_ms, (upper[1], upper[2], upper[0]))],
            }
            if tree < flat.least:
                crossover.setdefault(what, size)
        found.figures[f"{size} ranks"] = line
    found.figures["the smallest size at which a tree is faster"] = crossover
    found.figures["bytes of a cell's message"] = {size: _bytes(_cell(size)) for size in sizes}
    return found


def _fan_out(ranks: int, agents: int, each: int, value: bytes, rounds: int) -> Cost:
    """The median cost of one message to each of ``agents``, which answer for ``each`` rank of theirs."""
    session = Session(key=b"0123456789abcdef")
    context = zmq.Context()
    context.max_sockets = 4096
    client = context.socket(zmq.DEALER)
    client.set_hwm(0)
    ours, theirs = multiprocessing.Pipe()
    queue = multiprocessing.Process(target=_queue, args=(theirs,), daemon=True)
    queue.start()
    front, back = ours.recv()
    client.connect(f"tcp://127.0.0.1:{front}")
    answer = _events(each)
    workers = []
    for worker in range(min(WORKERS, agents)):
        names = [b"%d" % agent for agent in range(worker, agents, WORKERS)]
        process = multiprocessing.Process(target=_agents, args=(back, names, answer), daemon=True)
        process.start()
        workers.append(process)
    costs = []
    try:
        seen = psutil.Process(queue.pid)
        _meet(client, agents)
        for _ in range(rounds):
            began, used, passed = time.perf_counter(), time.process_time(), sum(seen.cpu_times()[:2])
            cell = _cell(ranks)
            packed = session.pack(to_content(cell))
            for agent in range(agents):
                _send(client, session, b"%d" % agent, packed, value)
            for _ in range(agents):
                _read(client, session, each)
            now = time.perf_counter() - began, time.process_time() - used, sum(seen.cpu_times()[:2]) - passed
            costs.append(Cost(*now))
    finally:
        for process in (*workers, queue):
            process.kill()
            process.join()
        client.close(0)
        context.term()
    # The clock of another process has steps of 10 ms: a mean over all rounds is finer than a median.
    return Cost(
        statistics.median(cost.seconds for cost in costs),
        statistics.median(cost.client for cost in costs),
        statistics.fmean(cost.queue for cost in costs),
    )


def _cell(ranks: int) -> RunCell:
    """The message of a cell as a session sends it."""
    return RunCell(17, CODE, list(range(ranks)), 1, Watching(), Cell())


def _events(ranks: int) -> dict[str, Any]:
    """The answer of ``ranks`` ranks: the batch in which a cell begins and ends."""
    started = Started(1234, "gpu17", "/dev/shm/dtrain-0123456789/spool/run-17/rank-17")  # noqa: S108 — a name, no file
    events = [Event(17, 0, 0, time.time(), started), Event(17, 0, 1, time.time(), Finished("ok", 0.001))]
    return {"batches": [to_wire(Batch(17, rank, 0, 1, events)) for rank in range(ranks)]}


def _send(client: zmq.Socket[bytes], session: Session, agent: bytes, cell: bytes, value: bytes) -> None:
    frames = session.serialize(session.msg(RUN_MESSAGE, content=cell), ident=agent)
    client.send_multipart([*frames, value] if value else frames, copy=False)


def _read(client: zmq.Socket[bytes], session: Session, each: int) -> None:
    """Check and read one answer, as a client does with each announcement."""
    if not client.poll(PATIENCE):
        raise RuntimeError("An agent has not answered.")
    _, frames = session.feed_identities(client.recv_multipart())
    batches = session.deserialize(frames)["content"]["batches"]
    if [len(from_wire(batch).events) for batch in batches] != [2] * each:
        raise RuntimeError("An agent has answered something else.")
    session.digest_history.clear()  # the agents answer the same again and again, which looks like a replay


def _meet(client: zmq.Socket[bytes], agents: int) -> None:
    """Greet until all agents have answered: the queue drops what it gets for an agent that is not connected yet."""
    missing = set(range(agents))
    deadline = time.monotonic() + PATIENCE / 1000
    while missing:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(missing)} agents did not connect.")
        for agent in missing:
            client.send_multipart([b"%d" % agent, b"hello"])
        while missing and client.poll(500):
            frames = client.recv_multipart()
            if frames[-1] == b"hello":
                missing.discard(int(frames[0]))
    while client.poll(200):
        client.recv_multipart()


def _queue(pipe: Connection) -> None:
    """Ipyparallel's queue between clients and engines."""
    context = zmq.Context()
    context.max_sockets = 4096
    sockets = [context.socket(kind) for kind in (zmq.ROUTER, zmq.ROUTER, zmq.PUB)]
    for socket in sockets:
        socket.set_hwm(0)
    pipe.send([socket.bind_to_random_port("tcp://127.0.0.1") for socket in sockets[:2]])
    monitored_queue(sockets[0], sockets[1], sockets[2], b"in", b"out")


def _agents(port: int, names: Sequence[bytes], answer: dict[str, Any]) -> None:
    """Agents that answer each message at once."""
    context = zmq.Context()
    context.max_sockets = 2 * len(names) + 100
    frames = Session(key=b"0123456789abcdef").serialize(Session(key=b"0123456789abcdef").msg("events", content=answer))
    poller = zmq.Poller()
    mine: dict[Any, bytes] = {}
    for name in names:
        socket = context.socket(zmq.DEALER)
        socket.identity = name
        socket.set_hwm(0)
        socket.connect(f"tcp://127.0.0.1:{port}")
        poller.register(socket, zmq.POLLIN)
        mine[socket] = name
    while True:
        for socket, _ in poller.poll():
            sender, *rest = socket.recv_multipart(copy=False)
            hello = rest[-1].bytes == b"hello"
            socket.send_multipart([sender.bytes, *([mine[socket], b"hello"] if hello else frames)])


def _bytes(cell: RunCell) -> int:
    return sum(map(len, Session(key=b"0123456789abcdef").serialize(Session().msg(RUN_MESSAGE, to_content(cell)))))


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
