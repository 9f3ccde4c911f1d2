"""Worlds that the tests of several modules share."""

from __future__ import annotations

import contextlib
import importlib.util

import pytest

from jupyter_dtrain import Settings
from tests.frameworks.torch_curves import PATIENCE, START

# It comes with PyTorch for CUDA. Where TensorFlow 2.21 was imported before it, LLVM ends the process, in any program
# (https://github.com/tensorflow/tensorflow/issues/124205); some of these tests have both in their own process.
with contextlib.suppress(ImportError):
    import triton  # noqa: F401


@pytest.fixture(scope="session")
def soon():
    """Settings for worlds in which many tests have ranks released: with the default each would wait two seconds."""
    return Settings(release_grace=0.5)


@pytest.fixture(scope="session")
def torch_pair(launch, soon):
    """A world of two ranks with torch imported, for tests that leave it idle; it stops with the session."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    session = launch(n=2, settings=soon)
    session.run(START, view=None, timeout=PATIENCE)
    return session


@pytest.fixture(scope="session")
def torch_three(launch, soon):
    """A world of three ranks, for tests with torch that leave it idle."""
    return launch(n=3, settings=soon)
