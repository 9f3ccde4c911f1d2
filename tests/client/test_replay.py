"""The cells that a new rank can run again alone."""

from __future__ import annotations

import pytest

from jupyter_dtrain.client.healing import collectives_in

IMPORT = "from torchft import DistributedDataParallel, Manager"
MAKE = f"""
{IMPORT}
manager = Manager(pg=pg)
ddp = DistributedDataParallel(manager, model)
manager.allreduce(t)
"""


@pytest.mark.parametrize(
    ("cells", "calls"),
    [
        (["ddp = DistributedDataParallel(model)"], [["DistributedDataParallel"]]),
        ([MAKE], [[]]),
        ([IMPORT, "ddp = DistributedDataParallel(manager, model)"], [[], []]),
        (["import torchft as ft\nddp = ft.ddp.DistributedDataParallel(manager, model)"], [[]]),
        (["import torchft\nfrom torchft import Manager as M\nm = M()\nm.allreduce(t)\ndist.barrier()"], [["barrier"]]),
        (
            [f"{IMPORT}\nfrom torch.nn.parallel import DistributedDataParallel\nDistributedDataParallel(model)"],
            [["DistributedDataParallel"]],
        ),
        (["def later(): dist.all_reduce(t)\nlater()", "def never(): dist.barrier()"], [["all_reduce"], []]),
    ],
)
def test_calls_that_wait_for_all_ranks_are_found(cells, calls):
    """Those of a library that goes on without some ranks are none."""
    assert collectives_in(cells) == calls


def test_a_set_up_counts_only_where_the_others_have_their_group_already():
    cell = ["dist.init_process_group()"]
    assert collectives_in(cell) == [[]]
    assert collectives_in(cell, group=True) == [["init_process_group"]]
