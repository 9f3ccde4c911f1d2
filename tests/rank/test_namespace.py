"""The names that a cell puts into a rank's namespace by itself."""

from __future__ import annotations

import pytest

from jupyter_dtrain.rank.namespace import bound_first


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("comm = MPI.COMM_WORLD\ncomm.Barrier()", {"comm"}),
        ("%time 1\nfrom mpi4py import MPI as mpi\na, (b, *c) = d", {"mpi", "a", "b", "c"}),
        ("def comm(): return comm", set()),
        ("comm.Barrier()\ncomm = MPI.COMM_WORLD", set()),
        ("comm = comm.Split()", set()),
        ("if late: comm = MPI.COMM_WORLD", set()),
        ("comm: object", set()),
        ("comm = (", set()),
    ],
)
def test_names_that_a_cell_binds_in_any_case_before_it_reads_them(code, names):
    assert bound_first(code) == names
