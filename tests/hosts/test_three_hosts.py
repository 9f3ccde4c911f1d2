"""Worlds on three hosts."""

from __future__ import annotations

import pytest

from tests.hosts.launching import left, start, values
from tests.hosts.network import Network
from tests.steward.until import until

SUM = (
    "import os, socket, torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "total = torch.ones(1)\n"
    "dist.all_reduce(total)\n"
    "(socket.gethostname(), os.environ['NODE_RANK'], os.environ['LOCAL_RANK'], total.item())"
)


@pytest.mark.slow
def test_ranks_on_three_hosts_compute_together(able: None) -> None:
    """Ranks fill the hosts in order, and nothing is left."""
    pytest.importorskip("torch")
    with Network(hosts=3) as network:
        session = start(network, "gpu1:1,gpu2:2,gpu3:1")
        found = values(session.run(SUM, view=None))
        session.stop()
        until(lambda: left(network) == [])

    assert found == {
        0: ("gpu1", "0", "0", 4.0),
        1: ("gpu2", "1", "0", 4.0),
        2: ("gpu2", "1", "1", 4.0),
        3: ("gpu3", "2", "0", 4.0),
    }
