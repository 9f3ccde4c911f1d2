"""Worlds that the tests of several modules share."""

from __future__ import annotations

import contextlib
import importlib.util

import pytest

from tests.frameworks.torch_curves import PATIENCE, START

# It comes with PyTorch for CUDA. Where TensorFlow 2.21 was imported before it, LLVM ends the process, in any program;
# some of these tests have both in their own process.
with contextlib.suppress(ImportError):
    import triton  # noqa: F401


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
