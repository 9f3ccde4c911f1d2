"""Worlds that the tests of several modules share."""

from __future__ import annotations

import importlib.util

import pytest

from tests.frameworks.torch_curves import PATIENCE, START


@pytest.fixture(scope="session")
def torch_pair(launch):
    """A world of two ranks with torch imported, for tests that leave it idle; it stops with the session."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    session = launch(n=2)
    session.run(START, view=None, timeout=PATIENCE)
    return session


@pytest.fixture(scope="session")
def torch_three(launch):
    """A world of three ranks, for tests with torch that leave it idle."""
    return launch(n=3)
