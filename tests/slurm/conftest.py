"""One Slurm for all tests here; without root, namespaces or Slurm's programs each test is skipped, by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.network import Network
from tests.slurm.site import Site, why_not


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """Two nodes with eight processors each. Tests leave the queue and the nodes empty."""
    if reason := why_not():
        pytest.skip(reason)
    with Network(hosts=2) as network, Site(network) as site:
        yield site
