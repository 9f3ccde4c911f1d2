"""Stores of their own for the tests, and worlds without processes: spools that a test writes as ranks do."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jupyter_dtrain.core.events import Body, Event, Finished, Metrics, Started
from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.core.processes import own_process
from jupyter_dtrain.core.world import format_ranks
from jupyter_dtrain.store import Store
from jupyter_dtrain.store.schema import open_for_writing
from jupyter_dtrain.store.source import SpoolFolder
from jupyter_dtrain.store.writer import SKIPPED, StoreWriter, WorldOwner
from jupyter_dtrain.wire.spool import Spool, spool_path
from tests.magics.notebook import Notebook


def points(name: str, values: list[float], first: int = 0) -> Metrics:
    """The metrics of a rank: ``values`` from step ``first`` on."""
    columns = Columns.empty()
    for step, value in enumerate(values, first):
        columns.steps.append(step)
        columns.times.append(1000.0 + step)
        columns.values.append(value)
    return Metrics([pack(name, columns)])


def drain(writer: StoreWriter, db: sqlite3.Connection) -> None:
    """Poll until nothing is left."""
    while writer.poll(db):
        pass


def gone_process() -> tuple[int, float]:
    """A process that ran on this machine, and does no longer."""
    code = "import os, psutil; print(os.getpid(), psutil.Process().create_time())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    pid, created = said.split()
    return int(pid), float(created)


class FakeWorld:
    """A world's spools, and the writer that a steward would have. A test writes the events of its ranks."""

    def __init__(
        self, folder: Path, name: str = "world", size: int = 2, owner: tuple[int, float] | None = None
    ) -> None:
        self.folder = folder / f"{name}-spool"
        self.size = size
        self.host = socket.gethostname()
        self._spools: dict[tuple[int, int], Spool] = {}
        self._seqs: dict[tuple[int, int], int] = {}
        steward = owner or own_process()
        self.owner = WorldOwner(
            f"{name}-{id(self):x}-{time.time_ns()}", name, size, self.host, str(self.folder), time.time(), *steward
        )
        self.writer = self.new_writer()

    def new_writer(self) -> StoreWriter:
        """One that knows nothing but what the file says."""
        return StoreWriter(self.owner, SpoolFolder(self.folder, SKIPPED))

    def say(self, run: int, rank: int, *bodies: Body, when: float | None = None) -> None:
        """Append events to a rank's spool."""
        key = (run, rank)
        if key not in self._spools:
            self._spools[key] = Spool(spool_path(self.folder, run, rank))
        for body in bodies:
            seq = self._seqs.get(key, 0)
            self._seqs[key] = seq + 1
            self._spools[key].append(Event(run, rank, seq, when or time.time(), body))

    def begin(
        self,
        run: int,
        source: str = "x = 1",
        ranks: list[int] | None = None,
        *,
        elastic: bool = False,
        joins: int | None = None,
        **at: Any,
    ) -> None:
        """``Started`` on all ranks."""
        chosen = list(range(self.size)) if ranks is None else ranks
        for rank in chosen:
            path = str(spool_path(self.folder, run, rank))
            lowest = rank == min(chosen)
            started = Started(
                100 + rank,
                self.host,
                path,
                source=source if lowest else "",
                ranks=chosen if lowest else [],
                elastic=elastic,
                joins=joins,
                together=format_ranks(chosen),
            )
            self.say(run, rank, started, **at)

    def finish(self, run: int, ranks: list[int] | None = None, outcome: Any = "ok", **at: Any) -> None:
        """``Finished`` on all ranks."""
        for rank in range(self.size) if ranks is None else ranks:
            self.say(run, rank, Finished(outcome, 1.5), **at)

    def close(self) -> None:
        """Close the spools."""
        for spool in self._spools.values():
            if spool.failure is None:
                os.close(spool._fd)
        self._spools.clear()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store without any run."""
    return Store(tmp_path / "dtrain" / "runs.sqlite")


@pytest.fixture
def db(store: Store) -> Iterator[Any]:
    """A connection that writes to it."""
    with closing(open_for_writing(store.path)) as opened:
        yield opened


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., FakeWorld]]:
    """Makes worlds without processes: ``make_world(name="world", size=2)``."""
    made: list[FakeWorld] = []

    def make(**options: Any) -> FakeWorld:
        made.append(FakeWorld(tmp_path / f"world-{len(made)}", **options))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def fake(make_world: Callable[..., FakeWorld]) -> FakeWorld:
    """A world of two ranks."""
    return make_world()


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jupyter's data folder for the worlds of one test."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder))
    return folder


@pytest.fixture
def open_notebook(home: Path, tmp_path: Path) -> Iterator[Callable[..., Notebook]]:
    """Opens notebooks, ``open_notebook(**env)``."""
    opened: list[Notebook] = []

    def make(**env: str) -> Notebook:
        folder = tmp_path / f"notebook-{len(opened)}"
        folder.mkdir()
        opened.append(Notebook(folder, **env))
        return opened[-1]

    yield make
    for notebook in opened:
        if not notebook._closing:
            notebook.close()
