"""Set-up for the tests of the rank's side."""

from __future__ import annotations

import time

import pytest

from jupyter_dtrain.rank.recorder import Recorder
from jupyter_dtrain.wire.spool import spool_path


class Heard:
    """The batches that a recorder has announced."""

    def __init__(self) -> None:
        self.batches = []

    def __call__(self, batch) -> None:
        self.batches.append(batch)

    @property
    def events(self):
        return [event for batch in self.batches for event in batch.events]

    @property
    def bodies(self):
        return [event.body for event in self.events]

    def until(self, condition, patience: float = 10.0) -> None:
        """Wait until ``condition(self)`` holds."""
        deadline = time.monotonic() + patience
        while not condition(self):
            assert time.monotonic() < deadline, self.batches
            time.sleep(0.002)


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def make_recorder(tmp_path, heard):
    """``make_recorder(cap=...)``: a recorder of rank 3 that spools into ``tmp_path/spool``."""
    made = []

    def make(announce=heard, cap=1 << 30, folder=tmp_path / "spool"):
        recorder = Recorder(3, folder, announce, cap=cap, log=tmp_path / "rank.log")
        made.append(recorder)
        return recorder

    yield make
    for recorder in made:
        recorder.close()
        recorder._thread.join(5)
        recorder._log.close()
        for opened in recorder._runs.values():
            opened.spool.close()


@pytest.fixture
def path_of(tmp_path):
    """The spool file of a run of :func:`make_recorder`."""
    return lambda run: spool_path(tmp_path / "spool", run, 3)
