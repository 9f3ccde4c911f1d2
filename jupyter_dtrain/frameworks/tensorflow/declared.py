"""TensorFlow's declarations for the parts that have no ranks: options, roles, rows of the failure table, its script.

Imports no framework: clients read it for ``-h``.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from jupyter_dtrain.core.declarations import Declaration, ScriptSupport
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.failures import AT_ONCE, EXIT_SEEN, LOST, OF_THE_OTHERS, Situation, after, by, span

RELEASED: Final = "another rank has failed or was interrupted"
"""TensorFlow's error text on ranks that are released, and on those that such a rank has left waiting."""


class TensorFlowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """TensorFlow's start options: the roles for ``ParameterServerStrategy``."""

    chief: Annotated[
        bool,
        Meta(
            title="Chief",
            description="make rank 0 TensorFlow's chief, which gives work to the others (default: no chief)",
        ),
    ] = False
    ps: Annotated[
        int,
        Meta(
            title="Parameter servers",
            description="make the last N ranks TensorFlow's parameter servers, which need a chief (default: 0)",
            ge=0,
        ),
    ] = 0


def assign_roles(size: int, options: TensorFlowOptions) -> list[str]:
    """The role of each of ``size`` ranks, by rank, in TensorFlow's words; empty where all are alike.

    With ``chief``, rank 0 hands out work; the last ``ps`` ranks keep parameters; those between them work.

    Raises :class:`BadRequest` for parameter servers without a chief, and for too few ranks: there must be a worker.
    """
    chief, ps = options.chief, options.ps
    if not chief and not ps:
        return []
    if not chief:
        words = "Parameter servers need a chief, which gives work to the workers: set the option chief, too."
        raise BadRequest(words, option="chief")
    if size < 2 + ps:
        who = "A chief and at least 1 worker"
        if ps:
            who = f"A chief, at least 1 worker and {ps} parameter server{'s' if ps > 1 else ''}"
        raise BadRequest(f"{who} need {2 + ps} ranks or more, not {size}: ask for more ranks.", option="n")
    return ["chief", *["worker"] * (size - 1 - ps), *["ps"] * ps]


# Its source goes into an exported script, for ranks of one node.
def join_tensorflow(roles: tuple[str, ...]) -> None:
    """Set TF_CONFIG, where TensorFlow's strategies find the other ranks, if they are all on this node."""
    env = os.environ
    size = int(env["WORLD_SIZE"])
    if "TF_CONFIG" in env or size == 1:
        return
    if env["LOCAL_WORLD_SIZE"] != env["WORLD_SIZE"]:
        sys.exit("The ranks are on several nodes: set TF_CONFIG, where TensorFlow finds them.")
    job = f"{env['MASTER_PORT']} {env.get('TORCHELASTIC_RUN_ID', '')}"
    first = 20000 + zlib.crc32(job.encode()) % 12000
    tasks = []
    cluster: dict[str, list[str]] = {}
    for rank, kind in enumerate(roles if len(roles) == size else ("worker",) * size):
        hosts = cluster.setdefault(kind, [])
        tasks.append({"type": kind, "index": len(hosts)})
        hosts.append(f"127.0.0.1:{first + rank}")
    env["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": tasks[int(env["RANK"])]})


DECLARATION = Declaration(
    name="tensorflow",
    forwards=("TF_", "XLA_"),
    distributions={"tensorflow": "Its servers speak a protocol that changes between versions."},
    title="TensorFlow",
    options=TensorFlowOptions,
    roles=assign_roles,
    echoes=(RELEASED,),
    situations=f"{__name__}:SITUATIONS",
    scripts=ScriptSupport(
        modules=("tensorflow", "tf_keras"),
        family="tensorflow",
        set_up=f"{__name__}:join_tensorflow",
        set_up_modules=("json", "os", "sys", "zlib"),
    ),
    shard="jupyter_dtrain.frameworks.tensorflow.sharding:shard",
)

SITUATIONS = (
    Situation(
        "worker-killed",
        "A worker of TensorFlow's chief is killed (`ParameterServerStrategy`).",
        EXIT_SEEN,
        (
            LOST,
            by(AT_ONCE, "the client says so in the chief's cell."),
            after(
                span("release_grace"),
                "the main process frees no rank: TensorFlow gives the worker's steps to the others.",
            ),
        ),
        None,
        None,
        ("Rank {rank} was killed (SIGKILL)",),
        "The other ranks and the parameter servers keep their variables. All that the lost rank had reported is kept, "
        "too.",
        "dead",
        "dead",
        "tensorflow",
        "Nothing: the other workers take its steps. `%distributed restart`, once the loop has ended, brings it back.",
    ),
    Situation(
        "server-killed",
        "A parameter server of TensorFlow's chief is killed, and its variables are lost.",
        EXIT_SEEN,
        (LOST, by(span(5.0), "TensorFlow raises an error in the chief, whose loop ends with it.")),
        span(10.0),
        "error",
        ("UnavailableError",),
        OF_THE_OTHERS,
        "dead",
        "dead",
        "tensorflow",
        "`%distributed restart`: a cluster of TensorFlow's takes no new server.",
    ),
)
"""Rows of the failure table that can come about in TensorFlow alone: ranks that work for a chief."""
