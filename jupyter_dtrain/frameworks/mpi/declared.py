"""MPI's declarations for the parts that have no ranks: its echoes of a rank's end, and failures of its own."""

from __future__ import annotations

from jupyter_dtrain.core.declarations import Declaration, ScriptSupport

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
        "exscan",
        "resync",
    ),
    echoes=("MPI_ERR_PROC_FAILED", "MPI_ERR_REVOKED", "A rank of this pool has failed"),
    situations="jupyter_dtrain.frameworks.mpi.failure_rows:SITUATIONS",
    scripts=ScriptSupport(modules=("mpi4py",), family="mpi"),
)
