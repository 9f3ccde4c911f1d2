"""Ways to run cells in a session, and views that keep what they get."""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import pytest

from jupyter_dtrain import DistributedError, Run, Session
from jupyter_dtrain.core.events import Configured, Environment, Sample, Started
from tests.steward.until import until

LOAD = 20.0
_REFUSALS = {
    "hook": """
import sys
if "refusing" not in globals():
    refusing = []
    def refuse(event, arguments):
        if refusing and event == "open":
            raise RuntimeError("no files here")
    sys.addaudithook(refuse)
refusing.append(True)
allow = refusing.clear
""",
    "chroot": """
import os, tempfile
root, home = os.open("/", os.O_RDONLY), os.getcwd()
os.chroot(tempfile.mkdtemp())
def allow():
    os.fchdir(root)
    os.chroot(".")
    os.chdir(home)
    os.close(root)
""",
}
"""Code by which a rank can open no files, until ``allow()``."""
REFUSALS = [
    "hook",
    pytest.param("chroot", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root may call os.chroot")),
]


class Notes:
    """A view that keeps what is noted."""

    def __init__(self):
        self.words = []
        self.run = 0

    def feed(self, batch, now):
        """Ignored."""

    def idle(self, rank, now):
        """Ignored."""

    def note(self, words, now):  # noqa: ARG002 — the protocol's shape
        """Keep it."""
        self.words.append(words)

    def stand(self, topic, words, now, over=""):  # noqa: ARG002 — the protocol's shape
        """Keep it; empty words mean that the last ones are true no longer."""
        self.words.append(words)

    def tick(self, now):
        """Nothing is due."""

    def close(self, run, now):
        """Nothing is held."""


class Samples(Notes):
    """A view that also keeps for how long each rank has not moved at most."""

    def __init__(self):
        super().__init__()
        self.still = {}

    def feed(self, batch, now):  # noqa: ARG002 — the protocol's shape
        """Keep the most."""
        for event in batch.events:
            if isinstance(event.body, Sample):
                self.still[batch.rank] = max(event.body.still, self.still.get(batch.rank, 0.0))


class Told(Notes):
    """A view that keeps the events of configurations, and where the ranks keep all."""

    def __init__(self):
        super().__init__()
        self.values, self.origins, self.environments, self.spools, self.all = {}, {}, {}, [], []

    def feed(self, batch, now):  # noqa: ARG002 — the protocol's shape
        """Keep them."""
        for event in batch.events:
            self.all.append(event.body)
            match event.body:
                case Configured(values=values, origin=origin):
                    self.values |= values
                    self.origins |= dict.fromkeys(values, origin)
                case Environment() as found:
                    assert batch.rank not in self.environments
                    self.environments[batch.rank] = found
                case Started(spool=spool):
                    self.spools.append(Path(spool))


def run(session: Session, code: str, ranks: Any = None, **options: Any) -> Run:
    """Run ``code`` without a view."""
    return session.run(code, ranks, view=None, **options)


def fail(session: Session, code: str, ranks: Any = None, **options: Any) -> Run:
    """Run ``code``, which must fail; the run."""
    with pytest.raises(DistributedError) as caught:
        session.run(code, ranks, view=None, **options)
    return caught.value.run


@contextlib.contextmanager
def without_files(session: Session, refused: str, ranks: list[int]) -> Iterator[None]:
    """The ``ranks`` can open no files inside, in no cell."""
    run(session, _REFUSALS[refused], ranks)
    try:
        yield
    finally:
        run(session, "allow()", ranks)


def load_soon(session: Session, name: str, **options: Any) -> Any:
    """Load a snapshot; a load that does not end within :data:`LOAD` seconds is interrupted."""
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(session.load, name, **options)
        try:
            return loading.result(LOAD)
        except FutureTimeoutError:
            session.interrupt()
            raise


def hang(session: Session, code: str, notes: Notes | None = None) -> list[str]:
    """The lines of the notice that a run of ``code`` makes; it is interrupted then."""
    notes = notes or Notes()
    cell = session.run(code, wait=False, view=notes)
    notes.run = cell.number
    until(lambda: notes.words)
    assert not cell.done
    session.interrupt()
    assert cell.wait(20)
    assert cell.outcome == "interrupted"
    return notes.words[0].splitlines()


def begin(session: Session, code: str, ranks: Any = None, **options: Any) -> Run:
    """Start ``code`` without waiting for its end; returns once it has begun on every rank."""
    started = session.run(f"print('begun', flush=True)\n{code}", ranks, wait=False, view=None, **options)
    until(lambda: all(totals.bytes for totals in started.totals.values()))
    return started


def shown(run: Run) -> dict[int, str]:
    """The results as text, by rank."""
    return {rank: result.data["text/plain"] for rank, result in run.results.items()}


def values(run: Run) -> dict[int, Any]:
    """The results as plain Python values, by rank."""
    return {rank: ast.literal_eval(text) for rank, text in shown(run).items()}


def texts(run: Run) -> dict[int, str]:
    """All text by rank."""
    return {rank: run.text(rank) for rank in run.ranks}


def without_log(text: str) -> str:
    """``text`` without the lines that the gloo of older PyTorch prints where ranks connect; no cell shows them."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("[Gloo] Rank "))


def gigabytes(text: str) -> float:
    """The memory that a rank says to have freed, in GB."""
    found = re.search(r"dropped what the failed call held and freed (\d+\.\d\d) GB of the host's memory\.\n\Z", text)
    assert found, text
    return float(found.group(1))


def same(value: Any, ranks: int = 3) -> dict[int, Any]:
    """``value`` on each of so many ranks."""
    return dict.fromkeys(range(ranks), value)


def pids(session: Session) -> dict[int, int]:
    """The process of each rank."""
    return {rank.rank: rank.pid for rank in session.world.ranks}
