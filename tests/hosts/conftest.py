"""Hosts for these tests; without root or namespaces each test that asks for them is skipped, by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.network import Network, why_not


@pytest.fixture(scope="session")
def able() -> None:
    """Skip where hosts cannot be made."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def network(able: None) -> Iterator[Network]:
    """Two hosts that the tests of a module share."""
    with Network(hosts=2) as network:
        yield network
