"""The memory of ranks over one cell: its peak, with the line that ran then, whatever becomes of the cell."""

from __future__ import annotations

import contextlib
import time

import pytest

from jupyter_dtrain import BadRequest, DistributedError, MemoryRecord, RanksDead, RunTimeout
from tests.session.cells import begin, fail, run
from tests.steward.until import PATIENCE, until

FRESH_WORLD = True
"""Its memory is measured."""
MEGA = 1_000_000
FILL = """
import ctypes, mmap, os, time, pathlib
rank = int(os.environ["RANK"])
class Pages:
    def __init__(self, size):
        self.pages = mmap.mmap(-1, size)
        self.held = (ctypes.c_char * size).from_buffer(self.pages)
        begun = None
        while begun is None or time.monotonic() < begun + 0.5:
            ctypes.memset(self.held, 1, size)
            begun = begun or time.monotonic()
"""
"""``Pages`` fills memory without Python's lock, and again for a while once it is full, so that looks meet it there."""
SPIKE = """
time.sleep(0.3)
y = b"y" * 450_000_000; del y
time.sleep(0.3)
"""
"""All of it with Python's lock, so that no look meets the line."""
PLANTED = """
small = Pages(40_000_000)
time.sleep(0.2)
def work():
    x = Pages(200_000_000)  # planted
    time.sleep(0.3)
work()
time.sleep(0.3)
"""
PLANTED = PLANTED.replace("def work", FILL.strip() + "\ndef work", 1)


@pytest.fixture(scope="module")
def filling(world):
    """Three ranks that have :data:`FILL`."""
    run(world, FILL)
    return world


def record(world, code, ranks=None, **options) -> MemoryRecord:
    """The record of a cell."""
    cell = run(world, code, ranks, record_memory=True, **options)
    return world.memory_record(cell.ranks, cell.number)


def test_without_a_record_there_is_a_sentence(filling):
    """It names what makes one."""
    with pytest.raises(BadRequest, match=r"No cell has recorded its memory on ranks 0-2: %%distributed --record-mem"):
        filling.memory_record()
    with pytest.raises(BadRequest, match=r"Run 1 has no record of its memory on ranks 0-2: no cell was recorded here"):
        filling.memory_record(run=1)
    with pytest.raises(BadRequest, match="There is no rank 7"):
        filling.memory_record("7")


def test_a_peak_that_no_look_meets_is_told_between_two_lines(filling):
    """Linux counts the most that there was. This is more than the rank has ever had."""
    found = record(filling, SPIKE, "0").ranks[0]
    (course,) = found.courses

    assert 440 * MEGA < course.peak - course.begin < 480 * MEGA
    assert course.end - course.begin < 50 * MEGA
    assert (course.place.before.line, course.place.line.line) == (2, 4)
    assert course.grown[0].place == course.place
    assert 440 * MEGA < course.grown[0].rise < 480 * MEGA


def test_the_line_that_fills_memory_is_named_and_so_is_what_it_kept(filling):
    """On each rank: 200 MB in one line, which are gone when the cell ends, after 40 MB that stay."""
    shown = record(filling, PLANTED)
    line = 1 + next(at for at, text in enumerate(PLANTED.splitlines()) if "memset" in text)

    assert list(shown.ranks) == [0, 1, 2]
    for found in shown.ranks.values():
        (course,) = found.courses
        assert found.over
        assert course.device == "cpu"
        assert 235 * MEGA < course.peak - course.begin < 270 * MEGA
        assert 35 * MEGA < course.end - course.begin < 70 * MEGA
        assert (course.place.line.line, course.place.line.function) == (line, "Pages.__init__")
        assert course.place.line.source == "ctypes.memset(self.held, 1, size)"
        assert 100 * MEGA < course.grown[0].rise < 215 * MEGA
        assert course.grown[0].place.line == course.place.line
        assert len(course.points) == len(found.times) <= found.looks
        assert found.times == sorted(found.times)
        assert max(course.points) == course.peak
        assert 0.8 < found.seconds < PATIENCE
        assert 0.2 < course.at < found.seconds - 0.3
    text = str(shown)
    assert "The resident memory of rank " in text
    assert f", line {line} in Pages.__init__: ctypes.memset(self.held, 1, size)" in text.splitlines()[0]
    assert f"Resident memory over run {shown.run}, " in text
    assert "<svg" in shown._repr_mimebundle_()["text/html"]


def test_a_cell_too_short_for_a_look_has_its_growth(filling):
    """It is looked at before it begins and when it has ended."""
    found = record(filling, "quick = b'q' * 60_000_000", "0").ranks[0]
    run(filling, "del quick", "0")

    assert found.over
    assert 55 * MEGA < found.courses[0].end - found.courses[0].begin < 70 * MEGA
    assert found.courses[0].grown[0].rise > 55 * MEGA


def test_a_line_of_a_script_is_named_with_its_file(filling, tmp_path):
    """The cell has only the call that runs it."""
    script = tmp_path / "train.py"
    script.write_text(
        "import time\nlot = bytearray(1)\nfor _ in range(40):\n    lot += b's' * 2_000_000; time.sleep(0.01)\n"
    )
    cell = filling.run_script(script, ranks="0", view=None, record_memory=True)
    shown = filling.memory_record("0", cell.number)
    run(filling, "del lot", "0")
    place = shown.ranks[0].courses[0].place

    # The peak is in the last pass: the look after it may find the cell at its end, and names both.
    assert (str(script), 4) in {(line.file, line.line) for line in (place.before, place.line) if line is not None}
    assert "train.py, line 4: lot += b's'" in str(shown).splitlines()[0]


def test_what_names_hold_is_seen_by_kind(filling):
    """A text of 90 MB has a name for half of the time."""
    found = record(filling, "time.sleep(0.4)\nnamed = 'n' * 90_000_000\ntime.sleep(0.8)\ndel named", "0").ranks[0]
    held = [seen.host.get("value", 0) // MEGA for seen in found.kinds]

    assert held[0] < 90
    assert max(held) == 90
    assert not found.cut


def test_other_cells_leave_the_record_alone(filling):
    """Until the next one that is recorded, on the same ranks."""
    first = record(filling, "kept = Pages(10_000_000)", "0")
    second = record(filling, "time.sleep(0.1)", "1-2")
    run(filling, "more = Pages(30_000_000)\ndel kept, more", "0")
    again = filling.memory_record("0")

    assert again.ranks == first.ranks
    assert again.run == first.run
    both = filling.memory_record()
    assert (both.run, both.ranks[0]) == (second.run, None)
    assert str(both).endswith(f"Rank 0: no record of run {second.run}, or no answer.")
    with pytest.raises(BadRequest, match=rf"Run {first.run} has no record .* the record of one run, here {second.run}"):
        filling.memory_record("1-2", first.run)


def test_a_cell_that_fails_keeps_its_record(filling):
    """With the line that wanted more than there was."""
    cell = fail(filling, "lot = Pages(120_000_000)\nlist(lot.missing)", "0", record_memory=True)
    found = filling.memory_record("0", cell.number).ranks[0]
    run(filling, "del lot", "0")

    assert found.over
    assert found.courses[0].peak - found.courses[0].begin > 100 * MEGA
    assert found.courses[0].place.line.source == "ctypes.memset(self.held, 1, size)"


def test_a_cell_that_is_stopped_keeps_its_record(filling):
    """What there was until then."""
    with pytest.raises(RunTimeout):
        run(filling, "lot = Pages(60_000_000)\nwhile True: time.sleep(0.01)", timeout=1.5, record_memory=True)
    shown = filling.memory_record()
    run(filling, "del lot")

    assert all(
        found.over and found.courses[0].peak - found.courses[0].begin > 50 * MEGA for found in shown.ranks.values()
    )


def test_a_cell_that_runs_has_a_record_so_far(filling, meeting):
    """It grows while the cell goes on."""
    loop = f"while not pathlib.Path({str(meeting / 'go')!r}).exists(): time.sleep(0.01)"
    going = begin(filling, f"now = Pages(60_000_000)\n{loop}", record_memory=True)
    until(lambda: filling.memory_record("0").ranks[0].courses[0].peak > 50 * MEGA)
    first = filling.memory_record("0")
    until(lambda: filling.memory_record("0").ranks[0].looks > first.ranks[0].looks)
    (meeting / "go").touch()
    assert going.wait(PATIENCE)
    run(filling, "del now")

    assert not first.ranks[0].over
    assert "Rank 0: the cell goes on; this is its memory so far." in str(first)
    assert filling.memory_record("0").ranks[0].over


def test_a_rank_that_dies_is_named_with_what_is_known(launch):
    """The others have their record."""
    with launch(n=2) as session:
        run(session, FILL)
        with contextlib.suppress(DistributedError):
            run(
                session,
                "lot = Pages(80_000_000)\ntime.sleep(2.2)\nif rank == 1: os.kill(os.getpid(), 9)\n1 / 0",
                record_memory=True,
            )
        until(lambda: session.world.dead)
        shown = session.memory_record()
        began = time.monotonic()
        with pytest.raises(RanksDead, match=r"There is no record: rank 1 is dead\."):
            session.memory_record("1")

    assert time.monotonic() - began < 3
    assert shown.ranks[1] is None
    assert shown.ranks[0].courses[0].peak - shown.ranks[0].courses[0].begin > 70 * MEGA
    last = str(shown).splitlines()[-1]
    assert last.startswith("Rank 1: dead, and its record with it. When it was last heard of in this run, it had 1")
