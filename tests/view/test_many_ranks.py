"""1,024 ranks on 128 hosts: what people read and notebooks keep is bounded, and the odd ranks come first."""

from __future__ import annotations

import base64
import json
import struct
import time
from array import array

import pytest

from jupyter_dtrain.core.causes import blocks, summary
from jupyter_dtrain.core.events import (
    Batch,
    Event,
    Finished,
    Gpu,
    Metrics,
    Output,
    Progress,
    Result,
    Sample,
    Started,
    Totals,
)
from jupyter_dtrain.core.metrics import Columns, Slow, newest_points, newest_value, pack
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.core.world import Rank, World, count_ranks, parse_ranks
from jupyter_dtrain.magics import worlds
from jupyter_dtrain.view.document import MIME, SAVED_BYTES, document, status
from jupyter_dtrain.view.labels import label
from jupyter_dtrain.view.lines import LineMerger
from jupyter_dtrain.view.panel import KEPT_BYTES
from jupyter_dtrain.view.rank_summary import ODD, counted, standing
from jupyter_dtrain.view.rich import MOST_RESULTS
from jupyter_dtrain.view.run_state import RunState
from jupyter_dtrain.view.saved import bundle, text

SIZE = 1024
FAILED, KILLED, SLOW = 517, range(64, 72), 900
HOSTS = {rank: f"gpu{rank // 8}" for rank in range(SIZE)}


def said(rank):
    """The events of one rank that trains for 300 steps, with everything that a rank may report."""
    slow = 2.0 if rank == SLOW else 1.0
    steps = array("q", range(300))
    times = array("d", [100 + slow * step for step in steps])
    values = array("d", [1 / (step + 1) + (0.5 if rank == 77 else 0) for step in steps])
    bodies = [Started(1, HOSTS[rank], f"/tmp/spool/{rank}")]
    bodies += [Metrics([pack(name, Columns(steps, times, values))]) for name in ("loss", "lr", "tokens/s")]
    bodies += [Sample(99.9, 10**11, 299, Gpu(rank % 8, 99.9, 10**11, 10**11), 10**12)]
    bodies += [Progress(bar, "epoch" * 10, 100.0 + rank % 20, 200, 50.0, "") for bar in range(8)]
    if rank == FAILED:
        bodies.append(Finished("error", 300.0))
    elif rank not in KILLED:
        bodies.append(Finished("ok", 300.0))
    return [Event(1, rank, seq, 100.0, body) for seq, body in enumerate(bodies)]


@pytest.fixture(scope="module")
def ended():
    """The fold of a run in which one rank has failed, a host's ranks were killed, and one is slow."""
    state = RunState(1, range(SIZE), SIZE, HOSTS)
    for rank in range(SIZE):
        for event in said(rank):
            state.take(event)
    for rank in KILLED:
        state.fold.lose(rank, f"Rank {rank} died: it was killed by SIGKILL (signal 9). " + "x" * 500)
    return state.picture("error")


def test_the_saved_document_keeps_its_limit_and_its_metrics(ended):
    """All ranks, all metrics and all bars are in it."""
    saved = bundle(ended)
    kept = saved[MIME]
    assert len(json.dumps(kept)) <= SAVED_BYTES
    assert [row[0] for row in kept["ranks"]] == list(range(SIZE))
    assert kept["nodes"] == [f"gpu{node}" for node in range(128)]
    assert {part["name"] for part in kept["metrics"]} == {"loss", "lr", "tokens/s"}
    assert "left_out" not in kept or kept["left_out"] == 0
    (loss,) = (part for part in kept["metrics"] if part["name"] == "loss")
    [value] = struct.unpack("<f", base64.b64decode(loss["last"]["value"]))
    assert value == pytest.approx(newest_value(newest_points(ended.metrics["loss"])), rel=1e-6)
    assert 77 in [line[0] for part in kept["metrics"] for line in part["series"]]
    assert len(saved["image/svg+xml"]) < 200_000


def test_a_copy_for_late_pages_keeps_its_limit_too(ended):
    """Where there is no room for all cells of all ranks, the odd ones have theirs."""
    copy = document(ended, KEPT_BYTES)
    assert len(json.dumps(copy)) <= KEPT_BYTES
    assert copy["metrics"]
    whole = [row[0] for row in copy["ranks"] if len(row) > 4]
    assert whole == sorted([FAILED, SLOW, *KILLED])
    assert [row[2] for row in copy["ranks"] if row[0] == FAILED] == ["error"]


def test_a_bar_of_many_ranks_has_its_ends_and_about_its_mean(ended):
    """A page computes mean, slowest and fastest from the parts, and whether all have ended."""
    bar = status(ended).bars[0]
    done = [part.done for part in bar.parts]
    assert len(done) <= 64
    assert (min(done), max(done)) == (100.0, 119.0)
    assert sum(done) / len(done) == pytest.approx(109.5, abs=1)
    assert next(part for part in bar.parts if part.done == 100.0).rank == 0


def test_a_bar_that_one_rank_has_not_ended_has_not_ended(ended):
    """That rank is among the few that stand for all."""
    progress = {rank: [Progress(1, "", 100.0 + rank, 2000, 1.0, "", ended=rank != 300)] for rank in range(SIZE)}
    ended.progress, before = progress, ended.progress
    try:
        (bar,) = status(ended).bars
    finally:
        ended.progress = before
    assert [part.rank for part in bar.parts if not part.ended] == [300]


def test_words_about_all_ranks_are_cut_when_all_have_some(ended):
    """A whole world is lost: each rank has the beginning of why."""
    ended.words, before = dict.fromkeys(range(SIZE), "killed by SIGKILL " + "x" * 500), ended.words
    try:
        kept = document(ended)
    finally:
        ended.words = before
    assert len(json.dumps(kept)) <= SAVED_BYTES
    assert len(kept["words"]) == SIZE
    assert kept["words"]["3"].startswith("killed by SI")


def test_the_text_names_the_odd_ranks_with_their_hosts_first(ended):
    """Then the state of all others, in one line; the whole is as short as with nine ranks."""
    lines = text(ended).splitlines()
    assert lines[1:4] == ["  dead: ranks 64-71 (gpu8)", "  error: rank 517 (gpu64)", "  ok: all others"]
    assert len(lines) < 20
    assert max(map(len, lines)) <= 400


def test_odd_ranks_are_few_and_the_gravest_come_first():
    """Ranks that share the most common state are never odd."""
    states = {rank: "dead" if rank % 4 == 0 else "error" if rank == 1 else "waiting" for rank in range(SIZE)}
    found = standing(states, HOSTS)
    assert (len(found.odd), found.more, found.common) == (ODD, SIZE // 4 + 1 - ODD, "waiting")
    assert found.odd[:3] == [0, 4, 8]
    assert [ranks for _, ranks in found.hosts][1] == list(range(8, 16))
    assert standing(dict.fromkeys(range(SIZE), "error"), HOSTS).odd == []
    assert counted(["ok", "error", "ok"]) == "1 error, 2 ok"
    # In a hang the one that does not wait is odd.
    assert standing({rank: "running" if rank == 5 else "waiting" for rank in range(SIZE)}, HOSTS).odd == [5]


def test_a_slow_rank_is_odd_however_many_others_are():
    """It takes the last place."""
    states = {rank: "dead" if rank < 100 else "running" for rank in range(SIZE)}
    odd = standing(states, HOSTS, Slow(SLOW, 1.0)).odd
    assert len(odd) == ODD
    assert odd[-1] == SLOW


def test_a_label_of_scattered_ranks_is_no_longer_than_a_line():
    """It counts them; those of up to 64 ranks are whole."""
    assert label(range(0, SIZE, 2), SIZE) == "[512 ranks: 0,2,4,6,8,10,12,14,16,…] "
    assert label(range(SIZE), SIZE) == "[0-1023] "
    assert len(label(range(0, 64, 2), 64)) < 100
    assert "…" not in label(range(0, 64, 2), 64)
    assert count_ranks(range(0, SIZE, 8)).startswith("128 ranks (0,8,16,")
    assert count_ranks([3, 5]) == "ranks 3,5"
    assert parse_ranks("0,2", SIZE) == [0, 2]


def test_the_result_that_differs_comes_first(scene):
    """1,023 ranks agree, and one does not."""
    stage = scene(SIZE)
    for rank in range(SIZE):
        stage.say(rank, Result({"text/plain": "5" if rank == FAILED else "4"}), Finished("ok", 1.0))
    stage.close()
    shown = [call[1] for call in stage.painter.calls if call[0] == "display"]
    assert shown == ["[517] 5", "[0-516,518-1023] 4"]


def test_results_that_all_differ_are_bounded(scene):
    """The rest is counted, with the way to it."""
    stage = scene(SIZE)
    for rank in range(SIZE):
        stage.say(rank, Result({"text/plain": str(rank)}), Finished("ok", 1.0))
    stage.close()
    assert stage.painter.kinds().count("display") == MOST_RESULTS
    assert f"results of {SIZE - MOST_RESULTS} more ranks: Run.results has them" in stage.painter.text()


def test_a_world_that_is_lost_is_told_in_few_lines():
    """The first ranks have their words; the others are a range."""
    run = Run(1, "pass\n", list(range(SIZE)), SIZE, lambda *_: [])
    for rank in range(1, SIZE):
        run.mark_lost(rank, f"rank {rank} was killed by SIGKILL (signal 9)")
    run.apply(Batch(1, 0, 0, 0, [Event(1, 0, 0, 0.0, Finished("ok", 1.0))]))
    run.end()
    lines = blocks(run)
    assert len(lines) < 45
    assert "Ranks 17-1023 are dead, too." in "\n".join(lines)
    assert len(summary(run)) < 400


def test_status_has_the_odd_ranks_and_a_row_for_each_host():
    """Odd ranks keep their own row; a host's row counts the states of its ranks."""
    ranks = [
        Rank(rank, rank // 8, HOSTS[rank], rank % 8, f"cuda:{rank % 8}", 1000 + rank)
        if rank != FAILED
        else Rank(rank, 64, "gpu64", 5, "cuda:5", 1517, "dead", "killed by SIGKILL")
        for rank in range(SIZE)
    ]
    rows = worlds._rows_by_host(World("many", "an-id", ranks), [])
    assert len(rows) == 1 + 128
    assert rows[0][:2] + rows[0][-2:] == [517, "gpu64", "dead", "killed by SIGKILL"]
    assert rows[1][:2] + rows[1][-2:] == ["0-7", "gpu0", "8 idle", ""]
    assert rows[65][-2] == "1 dead, 7 idle"


def test_a_line_costs_about_the_same_with_many_ranks():
    """A look at every rank for every line would make 1,024 ranks eight times as dear a line as 128."""

    def cost(size):
        merger = LineMerger(range(size))
        began = time.process_time()
        for line in range(10):
            for rank in range(size):
                merger.push(rank, "stdout", f"line {line}", line)
                merger.ready(line)
        assert merger.deadline() is None
        return (time.process_time() - began) / size

    ratio = min(cost(SIZE) for _ in range(3)) / min(cost(SIZE // 8) for _ in range(3))
    print(f"a line of 1,024 ranks takes {ratio:.2f} times as long as one of 128")
    assert ratio < 4


def test_output_of_all_ranks_is_shown_once(scene):
    """A thousand equal lines are one; a count says what was left out."""
    stage = scene(SIZE)
    for rank in range(SIZE):
        stage.say(rank, Output("stdout", "hello\n"))
    assert stage.painter.text() == "[0-1023] hello\n"
    for rank in range(SIZE):
        stage.say(rank, Output("stdout", "x" * 1000 + "\n"), totals=Totals(5000, 5, ["x" * 300] * 5), omitted=1)
    stage.close()
    assert len(stage.painter.text()) < 20_000
