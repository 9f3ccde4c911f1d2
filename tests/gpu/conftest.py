"""Worlds on CUDA devices that the tests of this folder share, each with :data:`.cells.START` run in it.

A start takes seconds there, most of them for CUDA's libraries: tests that leave a world idle and whole share it.
"""

from __future__ import annotations

import pytest

from tests.gpu.cells import PATIENCE, START


@pytest.fixture(scope="session")
def begun(launch):
    """``begun(n, **options)``: a world whose ranks have chosen their devices."""

    def begin(n: int, **options):
        session = launch(n=n, **options)
        session.run(START, view=None, timeout=PATIENCE)
        return session

    return begin


@pytest.fixture(scope="session")
def single(begun):
    """One rank."""
    session = begun(1)
    yield session
    if not session.closed:
        session.stop()


@pytest.fixture(scope="session")
def pair(begun):
    """Two ranks, which share a device where there is one."""
    session = begun(2)
    yield session
    if not session.closed:
        session.stop()


@pytest.fixture
def grouped(pair):
    """Two ranks in a group of gloo's, on CUDA tensors."""
    pair.run("if not dist.is_initialized(): dist.init_process_group('gloo')", view=None, timeout=PATIENCE)
    return pair
