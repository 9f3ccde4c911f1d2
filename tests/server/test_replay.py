"""The output of a cell, made again from the ranks' spools."""

from __future__ import annotations

from array import array

import pytest

from jupyter_dtrain.core.events import (
    Display,
    Error,
    Event,
    Finished,
    Metrics,
    Output,
    Progress,
    Result,
    Started,
    encode,
)
from jupyter_dtrain.core.metrics import Columns, pack
from jupyter_dtrain.server.replay import Replays
from jupyter_dtrain.store.source import SpoolFolder
from jupyter_dtrain.view.document import MIME
from jupyter_dtrain.wire.spool import spool_path

NOBODY: dict[int, str] = {}


class World:
    """The spools of a world whose ranks say what a test says."""

    def __init__(self, folder, size=2, *, elastic=False) -> None:
        self.folder = folder
        self.seq = dict.fromkeys(range(size), 0)
        self.replays = Replays(SpoolFolder(folder), "w-1")
        for rank in range(size):
            begun = Started(1, "here", "", ranks=list(range(size)), cell=4, cell_id="abc", elastic=elastic)
            self.say(rank, 0.0, begun)

    def say(self, rank, time, *bodies) -> None:
        """Append events to the spool of ``rank``."""
        path = spool_path(self.folder, 1, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            for body in bodies:
                file.write(encode(Event(1, rank, self.seq[rank], 1000.0 + time, body)))
                self.seq[rank] += 1

    def ask(self, before=None, lost=NOBODY, *, over=False):
        """The answer after ``before``."""
        found = self.replays.answer(
            1, 2, "" if before is None else before.replay, 0 if before is None else before.version, lost, over=over
        )
        assert found is not None
        return found


@pytest.fixture
def world(tmp_path):
    """A run of two ranks."""
    return World(tmp_path)


def text_of(answer):
    """All text."""
    return "".join(output["text"] for _, output in answer.outputs if output["output_type"] == "stream")


def loss(*values):
    """Points of a loss."""
    steps = array("q", range(len(values)))
    return Metrics([pack("loss", Columns(steps, array("d", [1000.0] * len(values)), array("d", values)))])


def test_lines_of_several_ranks_come_in_the_order_of_their_times(world):
    """As the kernel showed them: equal ones once, with their ranks."""
    world.say(0, 1.0, Output("stdout", "both\n"))
    world.say(0, 3.0, Output("stdout", "late\n"))
    world.say(1, 1.01, Output("stdout", "both\n"))
    world.say(1, 2.0, Output("stderr", "early\n"))
    first = world.ask()
    assert text_of(first) == "[0-1] both\n[1] early\n[0] late\n"
    assert (first.cell, first.executed, first.over, first.more) == ("abc", 4, False, False)


def test_a_later_answer_has_only_what_is_new(world):
    """Text is appended; a display that changed comes again, at its place."""
    world.say(0, 1.0, Output("stdout", "one\n"), Display({"text/plain": "figure"}, {}, "f"))
    first = world.ask()
    world.say(0, 2.0, Output("stdout", "two\n"), Display({"text/plain": "figure 2"}, {}, "f", update=True))
    second = world.ask(first)
    assert text_of(second) == "[0] two\n"
    place = next(place for place, output in first.outputs if "figure" in str(output.get("data")))
    changed = {place: output for place, output in second.outputs if output["output_type"] == "display_data"}
    assert changed[place]["data"] == {"text/plain": "[0] figure 2"}
    assert world.ask(second).outputs == []
    # A page that has the answer of another replay, say of a server that has restarted, begins anew.
    world.replays = Replays(SpoolFolder(world.folder), "w-1")
    assert text_of(world.ask(second)) == "[0] one\n[0] two\n"


def test_an_update_of_a_display_of_an_earlier_cell_is_no_output_of_this_one(world):
    """What the same rank displays in this cell under that id is updated as ever."""
    world.say(0, 1.0, Display({"text/plain": "earlier"}, {}, "e", update=True), Output("stdout", "one\n"))
    world.say(1, 1.5, Display({"text/plain": "own"}, {}, "e"))
    first = world.ask()
    world.say(1, 2.0, Display({"text/plain": "own 2"}, {}, "e", update=True))
    second = world.ask(first)

    assert text_of(first) == "[0] one\n"
    assert "earlier" not in str(first.outputs)
    assert "own" in str(first.outputs)
    assert "own 2" in str(second.outputs)


def test_the_panel_is_above_and_ends_as_the_bundle_of_the_run(world):
    """While the run goes on it is the document, by which a page finds the run on the stream; bars are in the panel."""
    world.say(0, 1.0, Output("stdout", "begun\n"), loss(3.0, 2.0), Progress(0, "train", 1, 2, 1.0, "train 50 %"))
    place, panel = world.ask().outputs[0]
    assert place == 0
    assert set(panel["data"]) == {MIME, "text/plain"}
    assert panel["metadata"]["dtrain"]["world"] == "w-1"
    assert panel["metadata"]["dtrain"]["run"] == 1
    world.say(0, 2.0, Result({"text/plain": "42"}), Finished("ok", 1.0))
    world.say(1, 2.0, Finished("ok", 1.0))
    last = world.ask()
    assert last.over
    assert set(last.outputs[0][1]["data"]) >= {MIME, "text/plain"}
    assert last.outputs[0][1]["data"][MIME]["outcome"] == "ok"
    assert text_of(last) == "[0] begun\n"
    assert last.outputs[-1][1]["data"] == {"text/plain": "[0] 42"}


def test_a_run_that_failed_ends_with_the_error_that_the_kernel_raised(world):
    """The rank that the steward reports as dead comes with it; a run that nobody knows any more is lost."""
    world.say(0, 1.0, Error("ValueError", "bad", []), Finished("error", 1.0))
    assert not world.ask().over
    last = world.ask(lost={1: "rank 1 was killed (SIGKILL)"})
    assert last.over
    error = last.outputs[-1][1]
    assert error["output_type"] == "error"
    assert error["ename"] == "DistributedError"
    assert "ValueError: bad (rank 0); rank 1 was killed (SIGKILL)" in error["evalue"]


def test_a_run_that_its_world_does_not_know_any_more_has_ended(world):
    """Its ranks have left no word of their end."""
    assert not world.ask().over
    last = world.ask(over=True)
    assert last.over
    assert "does not say how it ended" in last.outputs[-1][1]["evalue"]
    assert world.replays.answer(2, 2, "", 0, NOBODY, over=True) is None


@pytest.mark.parametrize("outcome", [None, "ok", "error"])
def test_an_elastic_run_ends_as_those_that_went_on_and_those_that_joined(tmp_path, outcome):
    """Its panel says what became of the lost rank; the error of a rank that joined and failed is that of the cell."""
    world = World(tmp_path, elastic=True)
    world.say(0, 1.0, loss(3.0, 2.0), Finished("ok", 1.0))
    if outcome is not None:
        path = spool_path(tmp_path, 2, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        said = [Started(1, "here", "", ranks=[1], joins=1), Output("stdout", "x")]
        said += (
            [Error("ValueError", "bad", []), Finished("error", 1.0)] if outcome == "error" else [Finished("ok", 1.0)]
        )
        path.write_bytes(b"".join(encode(Event(2, 1, seq, 1000.0, body)) for seq, body in enumerate(said)))
    last = world.ask(lost={1: "rank 1 was killed (SIGKILL)"})
    document = last.outputs[0][1]["data"][MIME]
    became = {None: "rank 1 was lost", "ok": "rank 1 was replaced"}.get(outcome, "")
    assert last.over
    assert (document["outcome"], document.get("remark", "")) == (outcome or "ok", became)
    errors = [output["evalue"] for _, output in last.outputs if output["output_type"] == "error"]
    assert errors == (["ValueError: bad (rank 1)"] if outcome == "error" else [])
