"""TensorFlow's declarations for the parts that have no ranks. Imports no framework: clients read it for ``-h``."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from jupyter_dtrain.core.declarations import Declaration, ScriptSupport
from jupyter_dtrain.core.errors import BadRequest

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


DECLARATION = Declaration(
    name="tensorflow",
    forwards=("TF_", "XLA_"),
    distributions={"tensorflow": "Its servers speak a protocol that changes between versions."},
    title="TensorFlow",
    options=TensorFlowOptions,
    roles=assign_roles,
    echoes=(RELEASED,),
    situations="jupyter_dtrain.frameworks.tensorflow.failure_rows:SITUATIONS",
    scripts=ScriptSupport(
        modules=("tensorflow", "tf_keras"),
        family="tensorflow",
        set_up="jupyter_dtrain.frameworks.tensorflow.script:join_tensorflow",
        set_up_modules=("json", "os", "sys", "zlib"),
    ),
    shard="jupyter_dtrain.frameworks.tensorflow.sharding:shard",
)
