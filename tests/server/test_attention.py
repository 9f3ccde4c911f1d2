"""The server reports what needs attention in a run, and sends a bounded part of the run."""

from __future__ import annotations

import json
import math
from array import array
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from jupyter_dtrain.core import pipelines
from jupyter_dtrain.core.events import (
    Error,
    Event,
    Finished,
    Gpu,
    Metrics,
    Output,
    PipelineStep,
    Sample,
    Started,
    encode,
)
from jupyter_dtrain.core.metrics import Columns, Slow, pack
from jupyter_dtrain.core.start_failures import StartFailure
from jupyter_dtrain.core.step_summary import StepSummary
from jupyter_dtrain.core.step_time import SlowStep
from jupyter_dtrain.core.world import AddressedRank
from jupyter_dtrain.launch.worlds import Listing
from jupyter_dtrain.server.alarms import Alarms
from jupyter_dtrain.server.attention import MOST, Attention, Judge, RunFinding
from jupyter_dtrain.server.follower import SKIPPED, Follower, tail
from jupyter_dtrain.server.monitor import BYTES_PER_SECOND, FLUSH
from jupyter_dtrain.store.source import SpoolFolder
from jupyter_dtrain.view.document import Picture
from jupyter_dtrain.wire.spool import spool_path
from jupyter_dtrain.wire.steward_messages import ASKED_FOR

WORLD = ("id", "name")
APART = json.loads(Path(__file__).with_name("apart.json").read_text())
"""Values of the ranks of a run, and which of them have left the others'."""


def columns(*values, first=0):
    """Points of consecutive steps."""
    steps = array("q", range(first, first + len(values)))
    return Columns(steps, array("d", map(float, steps)), array("d", values))


def picture(**more):
    """The picture of a run on four ranks."""
    known = {"run": 1, "size": 4, "ranks": range(4), "outcome": "running", "elapsed": 1.0, "metrics": {}, "states": {}}
    return Picture(**{**known, **more})


def kinds(judge, shown):
    """The kinds and ranks of what the judge finds."""
    return [(found.kind, found.ranks) for found in judge.look(shown)]


def test_an_item_is_reported_once_and_not_again_when_it_was_dismissed():
    """Each change is reported; the newest comes first."""
    changes = []
    attention = Attention(lambda: changes.append(len(attention.items)))
    attention.add("nan", "error", WORLD, "one", run=1, mark="loss")
    attention.add("nan", "error", WORLD, "one again", run=1, mark="loss")
    attention.add("nan", "error", WORLD, "of another run", run=2, mark="loss")
    assert [item.words for item in attention.items] == ["of another run", "one"]
    attention.dismiss(attention.items[0].id)
    attention.add("nan", "error", WORLD, "of another run", run=2, mark="loss")
    assert [item.words for item in attention.items] == ["one"]
    attention.dismiss("unknown")
    attention.dismiss(None)
    assert attention.items == []
    assert changes == [1, 2, 1, 1, 0]


def test_the_list_is_bounded():
    """The oldest go first."""
    attention = Attention(lambda: None)
    for number in range(3 * MOST):
        words = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        attention.add("dead", "error", WORLD, words, mark=str(number))
    assert len(attention.items) == MOST
    assert attention.items[0].words == "cjj"


def test_equal_findings_are_one_item_with_a_count():
    """They are equal but for their numbers; the newest is shown, with the ranks of all. Dismissed, it begins anew."""
    attention = Attention(lambda: None)
    for rank in (2, 0, 1):
        attention.add("dead", "error", WORLD, f"Rank {rank} was killed (SIGKILL)", ranks=[rank], mark=str(rank))
    attention.add("dead", "error", WORLD, "Rank 3 crashed (SIGSEGV)", ranks=[3], mark="3")
    other, folded = attention.items
    assert (folded.words, folded.count, folded.ranks) == ("Rank 1 was killed (SIGKILL)", 3, [0, 1, 2])
    assert other.count == 1
    attention.dismiss(folded.id)
    attention.add("dead", "error", WORLD, "Rank 2 was killed (SIGKILL)", ranks=[2], mark="again")
    assert [item.count for item in attention.items] == [1, 1]


def test_a_person_settles_items_by_running_the_cell_again():
    """Those of its earlier runs go; other cells', other worlds' and those of the new run stay."""
    attention = Attention(lambda: None)
    for run, cell, world in ((1, "a", WORLD), (2, "b", WORLD), (3, "a", WORLD), (1, "a", ("other", "other"))):
        attention.add("nan", "error", world, f"of cell {cell}, run {'x' * run}", run=run, cell=cell, mark="loss")
    attention.settle("id", ["nan"], cell="a", before=3)
    assert {(item.world, item.run) for item in attention.items} == {("id", 2), ("id", 3), ("other", 1)}
    attention.settle("id", ["dead"])
    assert len(attention.items) == 3


def rank(**more):
    """A dead rank."""
    return AddressedRank(1, 0, "host", 1, "cpu", 100, "dead", "rank 1 was killed (SIGKILL)", **more)


@pytest.fixture
def alarms():
    """Alarms of a world, and the list that they are in."""
    attention = Attention(lambda: None)
    listing = Listing("name", "id", 2, "/", 1, 0.0, "")
    return Alarms(listing, attention), attention


def test_a_kill_and_a_stop_that_a_person_asked_for_are_no_alarms(alarms):
    """A kill and a stop are none; a death and an end by itself are."""
    made, attention = alarms
    made.ranks_are([rank(asked=True)])
    made.world_ended(ASKED_FOR)
    assert attention.items == []
    made.ranks_are([rank()])
    made.world_ended("no client has controlled it for 3 s")
    assert sorted(item.kind for item in attention.items) == ["dead", "ended"]
    made.ranks_are([rank(asked=True), rank()])
    assert len(attention.items) == 2
    made.ranks_are([msgspec.structs.replace(rank(), state="idle")])
    assert [item.kind for item in attention.items] == ["ended"]


@pytest.mark.parametrize(
    ("end", "kinds"),
    [
        (lambda made: made.world_ended(ASKED_FOR), []),
        (Alarms.restarted, []),
        (lambda made: made.world_ended("no client has controlled it for 3 s"), ["ended", "nan"]),
    ],
)
def test_what_a_run_had_shown_goes_with_a_world_that_a_person_ends(alarms, spool, end, kinds):
    """If it ends by itself, the person has yet to see why the loss is NaN."""
    made, attention = alarms
    follower = Follower(SpoolFolder(spool.folder, SKIPPED), 2)
    spool(0, Started(1, "host", "", ranks=[0, 1], cell_id="cell"))
    follower.poll([])
    made.run_showed(follower.runs[1], RunFinding("nan", "error", "loss is NaN on rank 0, step 3", [0], "loss"))
    end(made)
    assert sorted(item.kind for item in attention.items) == kinds


@pytest.mark.parametrize(
    ("outcomes", "kinds"),
    [(("ok", "ok"), []), (("error", "ok"), ["failed"]), (("interrupted", "error"), []), (("lost", "ok"), [])],
)
def test_a_long_run_is_an_alarm_only_if_it_failed_by_itself(alarms, spool, outcomes, kinds):
    """One that was interrupted is none, and a lost rank has an alarm of its own."""
    made, attention = alarms
    follower = Follower(SpoolFolder(spool.folder, SKIPPED), 2)
    for number, outcome in enumerate(outcomes):
        spool(number, Started(1, "host", "", ranks=[0, 1], cell_id="cell"), *([Output("stdout", "x")] * 20))
        spool(number, Finished(outcome, 20.0))
    follower.poll([])
    made.run_ended(follower.runs[1])
    assert [(item.kind, item.cell) for item in attention.items] == [(kind, "cell") for kind in kinds]


def test_ranks_that_fail_are_reported_while_others_go_on(alarms, spool):
    """Those that another one's failure released are not; the end of a short run takes the items back."""
    made, attention = alarms
    follower = Follower(SpoolFolder(spool.folder, SKIPPED), 3)
    spool(0, Started(1, "host", "", ranks=[0, 1, 2], cell_id="cell"))
    spool(1, Started(1, "host", ""), Output("stdout", "printed"), Error("ValueError", "cause", []))
    spool(2, Started(1, "host", ""), Error("RuntimeError", "closed", [], waited="all_reduce", released=True))
    spool(1, Finished("error", 1.0))
    follower.poll([1])
    run = follower.runs[1]
    made.ranks_failed(run)
    made.ranks_failed(run)

    assert [(item.words, item.ranks, item.count) for item in attention.items] == [
        ("Run 1: rank 1 has failed: ValueError: cause", [1], 1)
    ]
    assert tail(str(spool.folder), 1, 1) == ("printed\nValueError: cause\n", False)
    for rank in (0, 2):
        spool(rank, Finished("error", 1.0))
    follower.poll([])
    made.run_ended(run)
    assert attention.items == []


def test_a_rank_that_ran_out_of_gpu_memory_is_named_with_its_error(alarms, spool):
    """While the others go on, and at the end of a run that a person may not have seen."""
    made, attention = alarms
    follower = Follower(SpoolFolder(spool.folder, SKIPPED), 2)
    spool(0, Started(1, "host", "", ranks=[0, 1], cell_id="cell"))
    spool(1, Started(1, "host", ""), Error("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", []))
    spool(1, Finished("error", 20.0))
    follower.poll([1])
    made.ranks_failed(follower.runs[1])
    told = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert [item.words for item in attention.items] == [f"Run 1: rank 1 has failed: {told}"]

    spool(0, Finished("ok", 20.0))
    follower.poll([])
    made.run_ended(follower.runs[1])
    assert [(item.kind, item.detail) for item in attention.items] == [("failed", told)]


def test_a_run_that_moves_again_is_no_alarm(alarms, spool):
    """The last notice is the one that is true."""
    made, attention = alarms
    follower = Follower(SpoolFolder(spool.folder, SKIPPED), 2)
    spool(0, Started(1, "host", "", ranks=[0, 1], cell_id="cell"))
    follower.poll([1])
    made.run_hangs(follower.runs[1], "No rank has moved for 30 s.\n  Rank 1: idle")
    made.run_hangs(follower.runs[1], "Rank 0 has not moved for 30 s.\n  Rank 1: has ended the cell")
    assert [item.words for item in attention.items] == ["Run 1 looks hung. Rank 0 has not moved for 30 s."]

    made.run_hangs(follower.runs[1], "")
    assert attention.items == []


def test_a_start_that_failed_says_why(alarms):
    """Its reason, and the fix as the detail."""
    made, attention = alarms
    made.start_failed(StartFailure("Port 5 is taken.", "Name another.", "log"), 0)
    (item,) = attention.items
    assert (item.kind, item.words, item.detail) == (
        "start",
        "World 'name' did not start. Port 5 is taken.",
        "Name another.",
    )


@pytest.mark.parametrize(("value", "words"), [(float("nan"), "NaN"), (float("inf"), "infinite")])
def test_the_first_value_that_is_no_number_is_named(value, words):
    """Rank and step give the order, whichever rank came first."""
    judge = Judge()
    judge.take("loss", 3, columns(1.0, value, 1.0, first=10))
    judge.take("loss", 1, columns(1.0, 1.0, value, value, first=5))
    judge.take("loss", 1, columns(value, first=100))
    (found,) = judge.look(picture())
    assert found.words == f"loss is {words} on rank 1, step 7, and on 1 more"
    assert found.ranks == [1, 3]


def test_a_rank_that_is_apart_is_reported_when_it_stays_so():
    """It is reported for losses only."""
    judge = Judge()
    for rank in range(4):
        judge.take("train/loss", rank, columns(*[1.0 + (10 if rank == 2 else 0)] * 30))
        judge.take("lr", rank, columns(*[1.0 + (10 if rank == 3 else 0)] * 30))
    assert [kinds(judge, picture()) for _ in range(4)] == [[], [], [("apart", [2])], [("apart", [2])]]
    judge.take("train/loss", 2, columns(*[1.0] * 20))
    assert kinds(judge, picture()) == []


@pytest.mark.parametrize("case", APART, ids=lambda case: case["name"])
def test_a_rank_is_apart_where_the_page_finds_it(case):
    """A saved notebook has no server, so the page judges too: labextension/tests/anomalies.test.ts has these cases."""
    judge = Judge()
    for rank, values in enumerate(case["values"]):
        points = (math.nan if value is None else value for value in values)
        judge.take("loss", rank, columns(*points, first=case.get("first", defaultdict(int))[rank]))
    found = [judge.look(picture()) for _ in range(3)][-1]
    words = [f"loss of rank {rank} is {where} the others'" for rank, where in case["apart"].items()]
    assert [one.words for one in found if one.kind == "apart"] == words


def test_a_rank_that_stays_slow_is_reported_and_full_memory_of_a_gpu_is_not():
    """A framework that keeps the memory it has freed for later fills a GPU in every good run."""
    judge = Judge()
    slow = picture(slow=Slow(1, 0.3))
    assert [kinds(judge, slow) for _ in range(3)] == [[], [], [("slow", [1])]]
    assert [kinds(judge, picture(slow=Slow(1, 0.2))) for _ in range(3)] == [[], [], []]
    full = {rank: Sample(1.0, 1, gpu=Gpu(rank, 1.0, used, 100)) for rank, used in enumerate((95, 96))}
    assert kinds(Judge(), picture(samples=full)) == []


def test_why_steps_are_slow_is_reported_in_place_of_that_they_are():
    """The sentence of the panel, with its advice; numbers that change in it make no second item."""
    judge = Judge()
    for share in (38, 39, 37, 40):
        reason = SlowStep("slow loader", [1], f"Rank 1 spends {share}% of a step in loading data.", "Try workers.", 0.3)
        found = judge.look(picture(slow=Slow(1, 0.3), step_time=StepSummary(["data"], [], [reason])))
    assert [(one.kind, one.words, one.ranks, one.detail) for one in found] == [
        ("slow", "Rank 1 spends 40% of a step in loading data.", [1], "Try workers.")
    ]
    attention = Attention(lambda: None)
    for one in found * 2:
        attention.add(one.kind, one.level, ("id", "name"), one.words, run=1, mark=one.mark, detail=one.detail)
    assert [item.count for item in attention.items] == [1]


@pytest.fixture
def spool(tmp_path):
    """Writes what ranks say: ``spool(rank, *bodies)``."""
    numbers = {}

    def write(rank, *bodies):
        path = spool_path(tmp_path, 1, rank)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            for body in bodies:
                numbers[rank] = numbers.get(rank, -1) + 1
                file.write(encode(Event(1, rank, numbers[rank], 100.0 + numbers[rank], body)))

    write.folder = tmp_path
    return write


def test_a_run_is_followed_as_it_is_written(spool):
    """The follower first sees half a line, and later its end."""
    follower = Follower(SpoolFolder(spool.folder, SKIPPED), 2)
    assert not follower.poll([])
    assert not follower.runs
    spool(0, Started(1, "host", "", source="x = 1", ranks=[0, 1], cell=4, cell_id="a-1"))
    follower.poll([])
    run = follower.runs[1]
    assert (run.number, run.ranks, run.source, run.cell_id, run.fold.unfinished) == (1, [0, 1], "x = 1", "a-1", [0, 1])
    spool(1, Started(1, "host", ""), Output("stdout", "text"), Metrics([pack("loss", columns(1.0, 2.0))]))
    follower.poll([])
    told, packet = run.message()
    told = msgspec.to_builtins(told)
    assert ([*told["names"]], [list(one) for one in told["series"]]) == (["loss"], [[0, 1, 2, 0, 1]])
    assert packet.size > 0
    assert run.message()[1] is None
    assert run.document()["seq"] == 1
    spool(0, Finished("ok", 1.0))
    spool(1, Finished("error", 1.0))
    follower.poll([])
    assert (run.fold.unfinished, run.fold.outcome, run.fold.ended) == ([], "error", 103.0)
    assert [type(event.body) for event in run.heard] == [Started, Started, Metrics, Finished, Finished]
    assert tail(str(spool.folder), 1, 1) == ("text", False)


def test_a_step_of_a_pipeline_is_sent_when_it_is_new(spool):
    """It is sent once all its ranks have reported it."""
    follower = Follower(SpoolFolder(spool.folder, SKIPPED), 2)
    spool(0, Started(1, "host", "", ranks=[0, 1]))
    told = []
    for rank in (0, 1):
        actions = pipelines.pack([pipelines.Action("F", rank, 0, float(rank), 1.0)])
        spool(rank, PipelineStep(0, "1F1B", 4, [0, 1], rank, 2, 1, 10.0, actions))
        follower.poll([])
        told.append(msgspec.to_builtins(follower.runs[1].message()[0]).get("pipelines"))
    told.append(msgspec.to_builtins(follower.runs[1].message()[0]).get("pipelines"))
    assert [parts and [part["step"] for part in parts] for parts in told] == [None, [4], None]
    assert [part["step"] for part in follower.runs[1].document()["pipelines"]] == [4]


def test_a_rank_that_died_ends_the_run(spool):
    """It will never send the events that are missing."""
    follower = Follower(SpoolFolder(spool.folder, SKIPPED), 2)
    spool(0, Started(1, "host", "", ranks=[0, 1]), Finished("ok", 1.0))
    spool(1, Started(1, "host", ""))
    follower.poll([])
    follower.runs[1].lose(1, "rank 1 was killed")
    assert (follower.runs[1].fold.outcome, follower.runs[1].run_state.words) == ("lost", {1: "rank 1 was killed"})


def test_what_a_rank_said_before_it_died_is_read_first(spool):
    """Its death may be known before its log has been read to the end."""
    follower = Follower(SpoolFolder(spool.folder, SKIPPED), 2)
    spool(0, Started(1, "host", "", ranks=[0, 1]), Finished("ok", 1.0))
    spool(1, Started(1, "host", ""))
    follower.poll([])
    spool(1, Metrics([pack("loss", columns(1.0, 2.0))]))
    follower.runs[1].doom(1, "rank 1 was killed")
    follower.poll([])
    assert (follower.runs[1].fold.outcome, follower.runs[1].fold.step) == ("running", 1)
    follower.poll([])
    assert follower.runs[1].fold.outcome == "lost"


def test_an_elastic_run_ends_as_those_that_went_on_and_those_that_joined(alarms, spool):
    """It is no alarm, and its panel says what became of the lost rank; a rank that joined and failed is one."""
    made, attention = alarms
    follower = Follower(SpoolFolder(spool.folder, SKIPPED), 2)
    spool(0, Started(1, "host", "", ranks=[0, 1], elastic=True), Output("stdout", "x"))
    spool(1, Started(1, "host", "", elastic=True))
    follower.poll([1])
    run = follower.runs[1]
    run.lose(1, "rank 1 was killed")
    assert (run.fold.outcome, run.document().get("remark", "")) == ("running", "")
    spool(0, Finished("ok", 20.0))
    follower.poll([1])
    assert (run.fold.outcome, run.document()["remark"]) == ("ok", "rank 1 was lost")
    path = spool_path(spool.folder, 2, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    joins = Started(1, "host", "", ranks=[1], joins=1)
    path.write_bytes(encode(Event(2, 1, 0, 100.0, joins)))
    follower.poll([1, 2])
    assert (run.fold.outcome, run.document()["remark"]) == ("ok", "rank 1 was replaced")
    made.run_ended(run)
    assert attention.items == []
    with path.open("ab") as file:
        file.write(encode(Event(2, 1, 1, 100.0, Finished("error", 1.0))))
    follower.poll([1, 2])
    assert run.fold.outcome == "error"
    made.run_ended(run)
    assert [item.kind for item in attention.items] == ["failed"]


def test_the_end_of_much_output_is_cut(spool):
    """It says so."""
    spool(0, *(Output("stdout", f"{number:6} {'x' * 90}\n") for number in range(5000)))
    text, cut = tail(str(spool.folder), 1, 0)
    assert cut
    assert text.endswith(f"{4999:6} {'x' * 90}\n")
    assert 50_000 < len(text) < 131_072


def test_sixty_four_ranks_take_less_than_fifty_kilobytes_a_second(spool):
    """Ten metrics on each, as fast as they can: the messages are thinned, and come more slowly where they are long."""
    follower = Follower(SpoolFolder(spool.folder, SKIPPED), 64)
    values = [float(value) for value in range(500)]
    for rank in range(64):
        spool(rank, Started(1, "host", "", ranks=list(range(64)) if rank == 0 else []))
    follower.poll([])
    taken = sent = 0.0
    for turn in range(5):
        for rank in range(64):
            points = [pack(f"metric-{name}", columns(*values, first=turn * 500)) for name in range(10)]
            spool(rank, Metrics(points), Sample(98.7654321, 123_456_789, step=turn))
        while follower.poll([]):
            pass
        message, packet = follower.runs[1].message()
        size = len(msgspec.json.encode(message)) + packet.size * 4 // 3
        estimate = 60 * 64 + packet.size * 4 // 3
        taken += max(FLUSH, estimate / BYTES_PER_SECOND)
        sent += size
    print(f"{sent / taken / 1000:.1f} kB/s")
    assert sent / taken < 50_000
