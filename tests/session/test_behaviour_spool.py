"""No event of a rank is lost, whatever messages are lost on the way; and memory stays bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_dtrain import Refused, Settings
from jupyter_dtrain.core.events import Dropped, Finished, Output, Started, from_wire
from jupyter_dtrain.core.run import HEAD
from jupyter_dtrain.wire.agent_messages import ReadEvents, ReadPosition
from jupyter_dtrain.wire.messages import AgentRequest, Done
from jupyter_dtrain.wire.spool import read_file
from tests.session.cells import begin, run, same, texts, until, values


@pytest.fixture
def on_the_way(world):
    """Set what becomes of announcements: ``on_the_way(handle)``, where handle(batch, deliver) delivers or does not."""
    _, channel = world._link.bound()
    deliver = channel._on_events

    def route(handle) -> None:
        channel._on_events = lambda content: handle(from_wire(content), lambda: deliver(content))

    yield route
    channel._on_events = deliver


CHATTY = "import time\nfor k in range(20):\n    print('line', k)\n    time.sleep(0.01)\n'done'"
LINES = "".join(f"line {k}\n" for k in range(20))


def spooled(cell, rank):
    """The events of a run that has ended, from the file here; a copy of a file elsewhere comes a moment later."""

    def read():
        events = list(read_file(cell.logs[rank])) if Path(cell.logs[rank]).exists() else []
        return events if events and isinstance(events[-1].body, Finished) else None

    return until(read)


def test_events_are_numbered_without_holes(world):
    """The numbers go from Started to Finished, with every kind of event between them."""
    cell = run(world, "import sys\nprint('a')\ndisplay('b')\nprint('c', file=sys.stderr)\n!echo d\n'e'")

    for rank in range(3):
        events = spooled(cell, rank)
        assert list(range(len(events))) == [event.seq for event in events]
        assert {(cell.number, rank)} == {(event.run, event.rank) for event in events}
        assert isinstance(events[0].body, Started)
        assert 1 == sum(isinstance(event.body, Finished) for event in events)


@pytest.mark.here("the file that a rank writes first is on its host; here is a copy, which follows")
def test_every_event_is_spooled_before_it_is_announced(world, on_the_way):
    """A client that hears of a number finds the event in the file."""
    missing = []

    def look(batch, deliver) -> None:
        if batch.rank == 1:
            path = Path(world.last_run.logs.get(1) or batch.events[0].body.spool)
            if [event.seq for event in read_file(path)][batch.first : batch.last + 1] != list(
                range(batch.first, batch.last + 1)
            ):
                missing.append(batch)
        deliver()

    on_the_way(look)
    cell = run(world, CHATTY)

    assert [] == missing
    assert same(LINES) == texts(cell)


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(lambda batch: batch.first % 2, id="every other"),
        pytest.param(lambda batch: batch.first == 0, id="the first"),
        pytest.param(lambda batch: isinstance(batch.events[-1].body, Finished), id="the last"),
        pytest.param(lambda batch: batch.rank == 2, id="all of one rank"),
        pytest.param(lambda _batch: True, id="all"),
    ],
)
def test_announcements_that_are_lost_are_made_up_for(world, on_the_way, lost):
    """The run ends, with all text in order and all results."""
    on_the_way(lambda batch, deliver: None if lost(batch) else deliver())
    cell = run(world, CHATTY)

    assert same("done") == values(cell)
    assert same(LINES) == texts(cell)


def test_announcements_that_come_twice_or_late_do_no_harm(world, on_the_way):
    """Each one twice, and the first of each rank once more at the end."""
    first = {}

    def twice(batch, deliver) -> None:
        first.setdefault(batch.rank, deliver)
        deliver()
        deliver()
        if isinstance(batch.events[-1].body, Finished):
            first[batch.rank]()

    on_the_way(twice)

    assert same(LINES) == texts(run(world, CHATTY))


def test_a_rank_reads_out_its_events_from_any_number(world):
    """read(run, from_seq), also of a run that has ended; nothing for one that is not known."""
    cell = run(world, CHATTY)
    world_now, channel = world._link.bound()
    engine = world_now.ranks[0].engine

    def read(number, seq):
        return channel.ask(engine, ReadEvents(number, seq)).result(10).batch

    whole = read(cell.number, 0)
    assert [event.seq for event in whole.events] == list(range(whole.last + 1))
    for seq in (1, whole.last // 2, whole.last):
        assert whole.events[seq:] == read(cell.number, seq).events
    assert read(cell.number, whole.last + 1) is None
    assert read(10_000, 0) is None


def idle(position):
    """The position of a rank that has ended its cell; None while it has not."""
    return position if position.state == "idle" else None


def test_a_rank_says_where_it_stands_while_it_works(world):
    """state: the run, its next number, whether it has finished."""
    world_now, channel = world._link.bound()
    cell = begin(world, "import time; time.sleep(1000)", ranks=0)
    answer = channel.ask(world_now.ranks[0].engine, ReadPosition()).result(10)
    world.interrupt()

    assert cell.wait(20)
    assert ("running", cell.number, False) == (answer.state, answer.run, answer.finished)
    # The last event leaves the rank shortly before the cell does.
    after = until(lambda: idle(channel.ask(world_now.ranks[0].engine, ReadPosition()).result(10)))
    assert after.finished


class Dance(AgentRequest[Done], frozen=True, tag="dance"):
    """A request of a protocol that is to come."""


def test_a_request_that_cannot_be_read_is_answered(world):
    """It ends with an error, at once; the rank and its watch go on."""
    world_now, channel = world._link.bound()
    with pytest.raises(Refused, match="dance"):
        channel.ask(world_now.ranks[0].engine, Dance()).result(10)
    with pytest.raises(Refused, match=r"Expected `int`, got `str` - at `\$.run`"):
        channel.ask(world_now.ranks[0].engine, ReadEvents("first", 0)).result(10)
    with pytest.raises(Refused, match="dance"):
        channel.ask(world_now.ranks[0].watch, Dance()).result(10)
    assert same(2) == values(run(world, "1 + 1"))


@pytest.mark.slow
def test_the_text_of_a_long_run_is_whole_and_memory_is_bounded(world):
    """20 MB: the run keeps its head, the spool has all."""
    line = "x" * 99
    cell = run(world, f"for k in range(200_000): print({line!r})", ranks="0-1")

    assert {True} == {part.head_size <= HEAD for part in cell._outputs.values()}
    assert sum(batch.head_size for batch in cell._outputs.values()) < 10_000_000
    assert {0: 20_000_000, 1: 20_000_000} == {rank: totals.bytes for rank, totals in cell.totals.items()}
    assert {0: 200_000, 1: 200_000} == {rank: totals.lines for rank, totals in cell.totals.items()}
    assert [line] * 20 == cell.totals[0].tail
    assert cell.text(0) == f"{line}\n" * 200_000


@pytest.mark.slow
def test_past_the_cap_text_is_counted(launch):
    """One event says how much; what is no text is kept; the cell ends well, and the next run has a cap of its own."""
    with launch(n=1, settings=Settings(log_cap=100_000)) as session:
        cell = run(session, "for k in range(20_000): print('x' * 9)\ndisplay('kept')\n'result'")
        events = spooled(cell, 0)
        dropped = [event.body for event in events if isinstance(event.body, Dropped)]
        kept = sum(len(event.body.text) for event in events if isinstance(event.body, Output))

        assert cell.outcome == "ok"
        assert {0: "result"} == values(cell)
        assert ["'kept'"] == [output.data["text/plain"] for output in cell.outputs[0]]
        assert 1 == len(dropped)
        assert kept + dropped[0].bytes == 200_000
        assert 0 < kept < 200_000
        assert "100000 bytes" in dropped[0].reason
        assert list(range(len(events))) == [event.seq for event in events]
        assert run(session, "print('again')").text(0) == "again\n"


FULL = """
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
for k in range({lines}): print('line', k, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
'went on'
"""


def test_a_disk_that_is_full_does_not_stop_the_cell(world):
    """No file may grow past 100 kB: a line says so, the rest comes from memory, and the next run has a file again."""
    cell = run(world, FULL.format(lines=20_000), ranks=0)
    text = cell.text(0, "stdout")

    assert {0: "went on"} == values(cell)
    assert "rank 0: the log cannot be written" in cell.text(0, "stderr")
    assert text == "".join(f"line {k}\n" for k in range(20_000))
    assert run(world, "print('again')", ranks=0).text(0) == "again\n"


@pytest.mark.slow
def test_the_last_megabytes_of_a_flood_survive_a_full_disk(world):
    """Past what is announced and what memory keeps, beginning and end are there."""
    cell = run(world, FULL.format(lines=200_000).replace("'line', k", "'x' * 90, k"), ranks=0)
    text = cell.text(0, "stdout")

    assert text.startswith("x" * 90 + " 0\n")
    assert text.endswith("x" * 90 + " 199999\n")
    assert 1_000_000 < len(text) < 6_000_000
    (dropped,) = [e.body for e in world._requests.read_events(cell, 0) if isinstance(e.body, Dropped)]
    assert dropped.bytes + len(cell.text(0)) >= cell.totals[0].bytes
    assert "File too large" in dropped.reason
    assert "its last 4 MB are kept in memory" in "".join(output.text for output in cell._outputs[0].head)


def test_a_run_stays_readable_when_the_world_has_ended(launch):
    """Its spool outlives the world."""
    with launch(n=1) as session:
        cell = run(session, "for k in range(100_000): print('x' * 99)")
        until(lambda: cell.done)

    assert cell.text(0) == ("x" * 99 + "\n") * 100_000
