"""pytest fixtures: real ranks for tests of code that trains on several of them.

In a ``conftest.py``, or in a test module::

    from jupyter_dtrain.testing import world

    def test_replicas_stay_equal(world):
        world.run("import training; model = training.after_one_step()")
        assert world.diff("model").identical

Under failure: where MPI cannot start, the tests that ask for a world are skipped, with the reason. Each module of tests
has a world of its own, so ranks that die in one module are not missing in the next. At its end no process is left, and
no run of it in the store; the logs of its ranks stay as long as those of other worlds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_dtrain.core.errors import StartFailed
from jupyter_dtrain.session import Session
from jupyter_dtrain.store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from jupyter_dtrain.launch.start_options import StartOptions

RANKS = 2
"""How many ranks the world of the fixture :func:`world` has."""
MANY = 1_000_000
"""More runs than a world has."""


def world_fixture(n: int = RANKS, **options: Unpack[StartOptions]) -> Any:
    """A fixture: one world of ``n`` ranks for each module of tests. ``options``: as for :meth:`.Session.start`.

    Call it in a ``conftest.py`` or a test module, and name the fixture by the variable that holds it::

        four = world_fixture(4, env={"OMP_NUM_THREADS": "1"})
    """

    @pytest.fixture(scope="module")
    def world() -> Iterator[Session]:
        try:
            session = Session.start(n, **options)
        except StartFailed as error:
            pytest.skip(f"no world of {n} ranks: {error.reason}")
        try:
            yield session
        finally:
            if not session.closed:
                session.stop()
            for run in Store.open().runs(MANY, session.name):
                if run.world_id == session.id and not run.kept:
                    run.delete()

    return world


world = world_fixture()
"""A world of two ranks on this machine, one for each module of tests."""
