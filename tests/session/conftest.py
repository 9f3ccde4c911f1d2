"""One world for all files here, in place of one for each: to start one takes longer than most of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from jupyter_dtrain import Session
from tests.conftest import Launch
from tests.steward.until import PATIENCE

CLEAN = """
import sys
dist = sys.modules.get("torch.distributed")
if dist is not None and dist.is_initialized():
    dist.destroy_process_group()
get_ipython().reset(new_session=False)
"""
"""The code that runs on the ranks between files: it removes variables and process groups, and keeps imports."""


@pytest.fixture(scope="session")
def shared(launch: Launch) -> Callable[[], Session]:
    """Give the world that the files share; a new one where a file has ended it or lost a rank."""
    worlds: list[Session] = []

    def get() -> Session:
        if worlds and not worlds[-1].closed and not worlds[-1].world.dead:
            worlds[-1].run(CLEAN, view=None)
        else:
            worlds.append(launch(n=3))
        return worlds[-1]

    return get


@pytest.fixture(scope="module")
def world(launch: Launch, shared: Callable[[], Session], request: pytest.FixtureRequest) -> Iterator[Session]:
    """Three ranks, which tests leave idle. A file with ``FRESH_WORLD = True`` has its own."""
    if not getattr(request.module, "FRESH_WORLD", False):
        yield shared()
        return
    with launch(n=3) as session:
        yield session


@pytest.fixture(autouse=True)
def idle(request: pytest.FixtureRequest) -> Iterator[None]:
    """End what a test that failed has left running, or the next test's cells would wait for it."""
    yield
    world = request.node.funcargs.get("world")
    if isinstance(world, Session) and not world.closed and world.controls and world.running:
        left = world.running
        world.interrupt()
        for run in left:
            assert run.wait(PATIENCE)
