"""What runs have logged beside numbers comes back from the store, with its steps, and bounded."""

from __future__ import annotations

import itertools

import pytest

from jupyter_dtrain import BadRequest
from jupyter_dtrain.core.events import MediaLogged
from jupyter_dtrain.core.media import KEPT
from tests.session.cells import run
from tests.store.conftest import drain
from tests.store.test_worlds import stored

CELL = """
import numpy, os
import jupyter_dtrain as dt
rank = int(os.environ["RANK"])
for step in range(3):
    dt.log(loss=float(step), step=10 * step)
    dt.log({"sample/a": numpy.full((4, 4), step + rank, dtype="uint8")}, step=10 * step)
dt.log(answer="<b>yes</b>", weights=dt.Histogram(numpy.arange(10.0)), worse=numpy.zeros((2,) * 5))
try:
    from PIL import Image
    display(Image.new("RGB", (3, 2)))
except ImportError:
    pass
"""


def picture(step: int, number: int = 0, data: bytes = b"png", **more) -> MediaLogged:
    """A thing that a rank has logged."""
    return MediaLogged("sample", "image", step, number, "image/png", data, **more)


def test_what_is_logged_comes_back(store, db, fake):
    """By name, step, rank and number, with its data; what a rank left out is counted."""
    fake.begin(1)
    fake.say(1, 1, picture(3, data=b"\x00\xff", left_out=4, caption="a cat", note="reduced"))
    fake.say(1, 0, picture(3, 1), picture(2), MediaLogged("sample", "image", 0, left_out=5))
    fake.say(1, 0, MediaLogged("<script>", "text", 1, mime="text/plain", data=b"x"))
    drain(fake.writer, db)
    (found,) = store.runs()
    media = found.media

    assert [(one.name, one.step, one.rank, one.number) for one in media] == [
        ("<script>", 1, 0, 0),
        ("sample", 2, 0, 0),
        ("sample", 3, 0, 1),
        ("sample", 3, 1, 0),
    ]
    last = media[-1]
    assert (last.data, last.bytes, last.mime, last.kind) == (b"\x00\xff", 2, "image/png", "image")
    assert (last.caption, last.note) == ("a cat", "reduced")
    assert found.media_logged == {"<script>": {0: 1}, "sample": {0: 7, 1: 5}}


def test_long_runs_keep_steps_all_over_the_run(store, db, fake):
    """Of each name and rank at most so many, the things of one step together."""
    fake.begin(1)
    for step in range(10 * KEPT):
        fake.say(1, 0, picture(step), picture(step, 1))
    drain(fake.writer, db)
    (found,) = store.runs()
    steps = sorted({one.step for one in found.media})

    assert KEPT / 2 <= len(steps) <= KEPT
    assert len(found.media) == 2 * len(steps)
    assert steps[0] == 0
    assert steps[-1] == 10 * KEPT - 1
    assert max(after - before for before, after in itertools.pairwise(steps)) <= 40
    assert found.media_logged == {"sample": {0: 20 * KEPT}}


def test_media_go_with_their_run(store, db, fake):
    """A deleted run keeps none, and one that was asked for before says so."""
    fake.begin(1)
    fake.say(1, 0, picture(1))
    fake.finish(1)
    drain(fake.writer, db)
    (found,) = store.runs()
    (one,) = found.media
    found.delete()

    assert db.execute("SELECT count(*) FROM media").fetchone() == (0,)
    with pytest.raises(BadRequest, match="no longer in the store"):
        assert one.data


def test_a_world_stores_what_its_cells_log(launch, own_data):
    """All of it is there when the run has ended; a bad value has one line, and displayed figures their step."""
    pytest.importorskip("numpy")
    with launch(n=2) as session:
        ran = run(session, CELL)
        found = stored(1)
    media = found.media

    samples = [one for one in media if one.name == "sample/a"]
    assert [(one.step, one.rank) for one in samples] == [(step, rank) for step in (0, 10, 20) for rank in (0, 1)]
    assert {one.kind for one in media if one.name == "weights"} == {"histogram"}
    assert [one.data for one in media if one.name == "answer"] == [b"<b>yes</b>"] * 2
    shown = [one for one in media if one.name == "displayed figure"]
    assert {(one.kind, one.step) for one in shown} <= {("figure", 20)}
    said = ran.text(0, "stderr")
    assert said.count("log(): 'worse' is left out: an array of the shape (2, 2, 2, 2, 2) is no picture") == 1
    assert found.media_logged["sample/a"] == {0: 3, 1: 3}
