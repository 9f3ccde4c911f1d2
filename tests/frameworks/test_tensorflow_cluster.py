"""``TF_CONFIG`` on every rank: real ports, held for TensorFlow, and the user's own left alone."""

from __future__ import annotations

import importlib.util
import json
import socket

import pytest

from jupyter_dtrain import BadRequest
from jupyter_dtrain.frameworks.tensorflow.cluster import cluster_config
from jupyter_dtrain.frameworks.tensorflow.declared import TensorFlowOptions, assign_roles
from jupyter_dtrain.frameworks.tensorflow.servers import hold_port

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed"
)

CONFIG = "import json, os; print(os.environ['TF_CONFIG'])"
MEETING = """
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
port = int(config["cluster"]["worker"][config["task"]["index"]].rpartition(":")[2])
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("", port))
server.listen()
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
for address in config["cluster"]["worker"]:
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), 5).close()
MPI.COMM_WORLD.Barrier()
server.close()
"""
TRAINING = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
print("of", strategy.num_replicas_in_sync, "is", float(total))
"""


@pytest.fixture(scope="module")
def world(launch):
    """Two ranks that are alike."""
    with launch(n=2) as session:
        yield session


def configs(session):
    """Each rank's TF_CONFIG."""
    run = session.run(CONFIG, view=None, timeout=60)
    return {rank: json.loads(run.text(rank)) for rank in range(session.world.size)}


def test_every_rank_has_the_same_cluster_and_its_own_task(world):
    """All are workers, on addresses of their own."""
    found = configs(world)

    assert found[0]["cluster"] == found[1]["cluster"]
    assert list(found[0]["cluster"]) == ["worker"]
    assert len(set(found[0]["cluster"]["worker"])) == 2
    assert {rank: one["task"] for rank, one in found.items()} == {
        0: {"type": "worker", "index": 0},
        1: {"type": "worker", "index": 1},
    }


def test_no_other_process_gets_the_ports_and_a_server_of_the_rank_can_listen_there(world):
    """Other requests in the meantime do not matter."""
    taken = [int(address.rpartition(":")[2]) for address in configs(world)[0]["cluster"]["worker"]]
    others = [socket.create_server(("127.0.0.1", 0)) for _ in range(200)]
    given = {other.getsockname()[1] for other in others}
    for other in others:
        other.close()

    assert not given & set(taken)
    assert world.run(MEETING, view=None, timeout=60).outcome == "ok"


def test_a_port_is_held_until_a_server_may_listen_on_it():
    """A plain bind is refused, one that says it shares is not."""
    with hold_port() as held, socket.socket() as plain, socket.socket() as server:
        port = held.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            plain.bind(("127.0.0.1", port))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        socket.create_connection(("127.0.0.1", port), 5).close()


def test_tasks_of_a_role_are_counted_from_0_in_the_order_of_ranks():
    """Without roles all are workers."""
    addresses = ["a:1", "b:2", "c:3", "d:4"]
    roles = ["chief", "worker", "worker", "ps"]
    cluster = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4"]}

    assert [cluster_config(addresses, roles, rank) for rank in range(4)] == [
        {"cluster": cluster, "task": {"type": kind, "index": index}}
        for kind, index in [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)]
    ]
    assert cluster_config(addresses[:2], [], 1) == {
        "cluster": {"worker": ["a:1", "b:2"]},
        "task": {"type": "worker", "index": 1},
    }


def test_a_config_of_the_users_stays(launch, monkeypatch):
    """It comes from --env or from the notebook's environment, and the reason says which."""
    mine = json.dumps({"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}})
    monkeypatch.setenv("TF_CONFIG", mine)
    with launch(n=1) as session:
        assert configs(session) == {0: json.loads(mine)}
        told = {one.name: one for one in session.info()[0].variables}["TF_CONFIG"]
    monkeypatch.delenv("TF_CONFIG")
    with launch(n=1, env={"TF_CONFIG": mine}) as session:
        assert configs(session) == {0: json.loads(mine)}
        hidden = {one.name: one for one in session.info()[0].variables}["TF_CONFIG"]

    assert (told.value, told.why.partition(";")[0]) == (mine, "your own value, kept")
    assert (hidden.value, hidden.hidden) == (None, True)


@pytest.mark.here("it kills processes of ranks")
def test_the_cluster_is_that_of_the_ranks_that_there_are(launch):
    """After a heal and a resize every rank has the others' addresses; its own one stays where the rank does."""
    with launch(n=2) as session:
        before = configs(session)[0]["cluster"]["worker"]
        session.kill(1)
        session.replace()
        healed = configs(session)[0]["cluster"]["worker"]
        session.run(MEETING, view=None, timeout=60)
        session.resize(3)
        session.run(MEETING, view=None, timeout=60)
        found = configs(session)

    assert healed[0] == before[0]
    assert healed[1] != before[1]
    assert [config["task"]["index"] for config in found.values()] == [0, 1, 2]
    assert [config["cluster"]["worker"][:2] for config in found.values()] == [healed] * 3
    assert len({address for config in found.values() for address in config["cluster"]["worker"]}) == 3


@needs_tensorflow
@pytest.mark.slow
def test_the_strategy_of_several_workers_spans_the_ranks(world):
    """The cell has no line about addresses; after a restart the ranks have others."""
    before = configs(world)[0]
    assert "of 2 is 2.0" in world.run(TRAINING, view=None, timeout=120).text(0)
    world.restart()
    assert configs(world)[0] != before
    assert "of 2 is 2.0" in world.run(TRAINING, view=None, timeout=120).text(1)


@pytest.mark.parametrize(
    ("size", "options", "roles"),
    [
        (4, {}, []),
        (2, {"chief": True}, ["chief", "worker"]),
        (4, {"chief": True, "ps": 1}, ["chief", "worker", "worker", "ps"]),
        (4, {"chief": True, "ps": 2}, ["chief", "worker", "ps", "ps"]),
    ],
)
def test_the_first_rank_is_the_chief_and_the_last_are_parameter_servers(size, options, roles):
    """The ranks between them work; without a chief all are alike."""
    assert assign_roles(size, TensorFlowOptions(**options)) == roles


@pytest.mark.parametrize(
    ("size", "options", "words"),
    [
        (1, {"chief": True}, "A chief and at least 1 worker need 2 ranks or more, not 1: ask for more ranks"),
        (3, {"chief": True, "ps": 2}, "1 worker and 2 parameter servers need 4 ranks or more, not 3"),
        (4, {"ps": 1}, "Parameter servers need a chief.*set the option chief"),
    ],
)
def test_roles_that_no_cluster_can_have_are_refused(size, options, words):
    """The error names the right option."""
    with pytest.raises(BadRequest, match=words):
        assign_roles(size, TensorFlowOptions(**options))
