"""MPI in the ranks: the world is one, and user code may speak it."""

from __future__ import annotations

import ast
import importlib.util

import pytest

PATIENCE = 60


def cell(session, code, ranks=None):
    """The results of a cell as Python values, by rank."""
    run = session.run(code, ranks, view=None, timeout=PATIENCE)
    return {rank: ast.literal_eval(result.data["text/plain"]) for rank, result in sorted(run.results.items())}


def test_a_rank_has_the_same_number_in_mpi(torch_three):
    """Size and neighbours are the same, too."""
    code = "import os\nfrom mpi4py import MPI\nMPI.COMM_WORLD.rank, int(os.environ['RANK']), MPI.COMM_WORLD.size"

    assert cell(torch_three, code) == {rank: (rank, rank, 3) for rank in range(3)}


def test_collectives_work(torch_three):
    """Objects and buffers work."""
    code = "from array import array\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
    code += "buffer = array('d', [comm.rank])\nsummed = array('d', [0])\ncomm.Allreduce(buffer, summed)\n"

    assert cell(torch_three, code + "comm.allreduce(comm.rank + 1), comm.allgather(str(comm.rank)), list(summed)") == {
        rank: (6, ["0", "1", "2"], [3.0]) for rank in range(3)
    }


def test_messages_pass_between_cells(torch_three):
    """Sent in one, received in a later one."""
    cell(torch_three, "from mpi4py import MPI\nrequest = MPI.COMM_WORLD.isend({'from': 0}, dest=2, tag=7)\n0", "0")

    assert cell(torch_three, "from mpi4py import MPI\nMPI.COMM_WORLD.recv(source=0, tag=7)", "2") == {2: {"from": 0}}

    cell(torch_three, "request.wait()\n0", "0")


@pytest.mark.slow
def test_mpi_and_torch_work_side_by_side(torch_three):
    """Both know the same ranks."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    code = """
import torch, torch.distributed as dist
from mpi4py import MPI
dist.init_process_group()
both = torch.tensor([float(MPI.COMM_WORLD.rank)])
dist.all_reduce(both)
answer = both.item(), MPI.COMM_WORLD.allreduce(dist.get_rank()), dist.get_rank() == MPI.COMM_WORLD.rank
dist.destroy_process_group()
answer
"""
    assert cell(torch_three, code) == dict.fromkeys(range(3), (3.0, 3, True))


def test_open_mpis_log_for_each_window_stays_out_of_the_cell(torch_three, capsys):
    """A line of the user's own is shown."""
    code = "import os\nfrom mpi4py import MPI\nMPI.Win.Allocate(8, comm=MPI.COMM_WORLD).Free()\nos.write(2, b'mine')\n0"

    assert {rank: result.data["text/plain"] for rank, result in torch_three.run(code, timeout=PATIENCE).results.items()}
    # On a full machine the ranks' lines are apart in time, and shown one by one.
    assert {line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()} == {"mine"}
