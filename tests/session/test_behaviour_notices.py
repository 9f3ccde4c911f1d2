"""A notice and an error say where to read on: the address of a heading that the page has."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from jupyter_dtrain import DistributedError, RanksDead, Settings
from jupyter_dtrain.core.notices import ADDRESS
from tests.session.cells import fail, run, until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "notices.md"


def anchors(text: str) -> list[str]:
    """The anchors whose addresses stand in ``text``, all of them headings of the page."""
    found = re.findall(re.escape(ADDRESS) + r"#([\w-]+)", text)
    titles = re.findall(r"^### (.*)$", PAGE.read_text(), re.MULTILINE)
    assert set(found) <= {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    return found


def rendered(run) -> str:
    return "\n".join(DistributedError(run)._render_traceback_())


def test_released_ranks_a_hang_and_a_dead_rank(launch, monkeypatch):
    """In the cell of a terminal, each address stands once, below what it explains."""
    session = launch(n=2, settings=Settings(hang_notice=1.0))
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    run(session, "import os, time\nfrom mpi4py import MPI\nrank = int(os.environ['RANK'])")

    failed = rendered(fail(session, "if rank == 1: raise ValueError('a bug')\nMPI.COMM_WORLD.Barrier()"))
    assert anchors(failed) == ["released-ranks"]
    assert failed.index("were released" if "were released" in failed else "was released") < failed.index(ADDRESS)

    assert anchors(rendered(fail(session, "raise ValueError('a bug')"))) == []

    with pytest.raises(DistributedError) as missing:
        session.save("kept", ["nobody"])
    assert anchors("\n".join(missing.value._render_traceback_())) == ["transfer-failed"]

    session.run("if rank == 1: time.sleep(4)\nMPI.COMM_WORLD.Barrier()")
    until(lambda: "moved for 1 s." in out.getvalue())
    assert anchors(out.getvalue()) == ["hang"]

    lost = rendered(fail(session, "if rank == 1: os.kill(os.getpid(), 9)\nMPI.COMM_WORLD.Barrier()"))
    assert anchors(lost) == ["released-ranks", "rank-killed"]

    with pytest.raises(RanksDead) as refused:
        session.run("1")
    assert anchors("\n".join(refused.value._render_traceback_())) == ["ranks-dead"]
    assert ADDRESS not in str(refused.value)
