"""A run's errors appear once for each cause, the root first."""

from __future__ import annotations

import re

import msgspec
import pytest

from jupyter_dtrain.core.causes import LEFT, blocks, summary
from jupyter_dtrain.core.events import Error, Frame

SOURCE = "import torch\n\ndef train(x):\n    y = x @ x\n    return y\n\ntrain(data)\n"
KILLED = "rank 1 was killed (SIGKILL), often out of memory: look at the host's kernel log, or use smaller batches"


def cell(line: int, function: str = "<module>", source: str | None = None, file: str = "cell") -> Frame:
    return Frame(file, line, function, SOURCE.splitlines()[line - 1].strip() if source is None else source, cell=True)


def library(file: str, line: int = 10, function: str = "forward") -> Frame:
    return Frame(file, line, function, "raise", cell=False)


def plain(run) -> str:
    """The words, without the addresses of what they mean."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(blocks(run)))
    return re.sub(r"\s*^What this means: \S+$", "", text, flags=re.MULTILINE)


def value_error(**more) -> Error:
    return Error("ValueError", "bad shape", [cell(7), cell(4, "train")], **more)


def test_ranks_that_share_an_error_share_one_block(ended_run):
    """The same exception at the same place appears once, though the cell's file differs by rank."""
    frames = [[cell(7, file=f"/kernels/{pid}"), cell(4, "train", file=f"/kernels/{pid}")] for pid in (11, 12, 13)]
    run = ended_run(4, {rank: Error("ValueError", "bad shape", frames[rank]) for rank in range(3)}, source=SOURCE)
    text = plain(run)
    assert text.startswith("ValueError on ranks 0-2\n")
    assert text.count("bad shape") == 1
    assert summary(run) == "ValueError: bad shape (ranks 0-2)"


def test_the_same_error_at_another_line_is_another_error(ended_run):
    """The place is part of the cause."""
    run = ended_run(2, {0: value_error(), 1: Error("ValueError", "bad shape", [cell(1)])}, source=SOURCE)
    assert plain(run).count("ValueError: bad shape") == 2


@pytest.mark.parametrize(
    "said",
    [
        "rank {rank} of 3: no file part-{rank}.bin",
        "worker of rank {rank} (pid {pid}) has ended",
        "DataLoader worker (pid(s) {child}) exited unexpectedly",
        "<Model object at {address:#x}> has no attribute 'fc'",
        "cannot reach 127.0.0.1:{port}",
    ],
)
def test_errors_that_differ_in_what_is_each_ranks_own_are_one(said, ended_run):
    """Its number, its pid and those of its children, its addresses. The block says whose words these are."""
    errors = {
        rank: Error(
            "RuntimeError",
            said.format(
                rank=rank,
                pid=4000 + rank,
                child=f"{77 + rank}, {99 + 2 * rank}",
                address=140011 << 8 | rank,
                port=900 + rank,
            ),
            [cell(7)],
        )
        for rank in range(3)
    }
    run = ended_run(3, errors, source=SOURCE, pids={rank: 4000 + rank for rank in range(3)})
    text = plain(run)
    assert text.startswith("RuntimeError on ranks 0-2\n")
    assert text.endswith("(as rank 0 says it; the others name their own numbers or addresses)")


def test_errors_that_differ_in_any_other_number_are_two(ended_run):
    """A loss that happens to begin with the rank's number is no number of the rank."""
    for said in ("size {0}", "loss {1}.5", "index {0} of rank {1}"):
        errors = {rank: Error("ValueError", said.format(rank + 7, rank), [cell(7)]) for rank in (0, 1)}
        assert plain(ended_run(2, errors, source=SOURCE)).count("ValueError on rank ") == 2


def test_a_block_shows_the_lines_of_the_cell_around_each_frame(ended_run):
    """The cell's own frames come with context and an arrow."""
    text = plain(ended_run(1, {0: value_error()}, source=SOURCE))
    assert text == (
        "ValueError\n"
        "  line 7\n"
        "         5     return y\n"
        "         6 \n"
        "   ----> 7 train(data)\n"
        "  line 4, in train\n"
        "         2 \n"
        "         3 def train(x):\n"
        "   ----> 4     y = x @ x\n"
        "         5     return y\n"
        "         6 \n"
        "ValueError: bad shape"
    )


def test_frames_of_another_cell_show_only_their_own_line(ended_run):
    """Lines of this cell must not be shown for code that stands elsewhere."""
    error = Error("ValueError", "x", [cell(7), cell(4, "helper", "z = 1 / 0", file="earlier cell")])
    text = plain(ended_run(1, {0: error}, source=SOURCE))
    assert "  earlier cell, line 4, in helper\n   ----> 4 z = 1 / 0\nValueError: x" in text


def test_library_frames_are_one_line(ended_run):
    """Seven frames of torch say where it ended, not how."""
    deep = [library(f"/env/lib/python3.11/site-packages/torch/nn/m{n}.py") for n in range(7)]
    text = plain(ended_run(1, {0: Error("RuntimeError", "boom", [cell(7), *deep])}, source=SOURCE))
    assert "  … 7 library frames (torch/nn/m0.py … torch/nn/m6.py:10 in forward)\n" in text
    alone = plain(ended_run(1, {0: Error("RuntimeError", "boom", [cell(7), deep[0]])}, source=SOURCE))
    assert "  … 1 library frame (torch/nn/m0.py:10 in forward)\n" in alone


def test_notes_and_the_cause_are_shown(ended_run):
    """The text shows the notes of the exception and the exception behind it."""
    text = plain(ended_run(2, {1: value_error(notes=["try smaller"], cause="KeyError: 'x'")}, source=SOURCE))
    assert text.endswith("ValueError: bad shape\ntry smaller\nCaused by KeyError: 'x'")


def test_a_syntax_error_shows_its_caret(ended_run):
    """The line and the caret stand in place of frames."""
    error = Error("SyntaxError", "invalid syntax", [], syntax="    x = = 1\n        ^\n")
    text = plain(ended_run(2, {0: error, 1: error}))
    assert text == "SyntaxError on ranks 0-1\n    x = = 1\n        ^\nSyntaxError: invalid syntax"


@pytest.mark.parametrize(
    ("lost", "step"),
    [
        ({1: KILLED}, "The other ranks keep their variables and take cells (-r); %distributed replace replaces"),
        ({0: KILLED, 1: KILLED}, "%distributed restart replaces all ranks."),
        ({1: "rank 1 was lost: its world was stopped"}, ""),
        ({0: f"rank 0 is lost: {LEFT}", 1: f"rank 1 is lost: {LEFT}"}, "The cell goes on while its world does: "),
    ],
)
def test_a_lost_rank_has_a_next_step(ended_run, lost, step):
    """There is none where the world has ended or was restarted; one that this client has left needs no new ranks."""
    said = plain(ended_run(2, {}, source=SOURCE, lost=lost)).rstrip().splitlines()[-1]
    assert said.startswith(step) if step else "%distributed" not in said
    assert ("restart" in said) == (KILLED in lost.values())


def test_the_root_comes_before_lost_ranks_and_those_before_echoes(ended_run):
    """A library's complaint that its peer has gone comes last, in one line."""
    echo = Error("RuntimeError", "[gloo] Connection closed by peer [127.0.0.1]:2342", [cell(7)])
    run = ended_run(4, {0: echo, 2: value_error(), 3: echo}, source=SOURCE, lost={1: KILLED})
    text = plain(run)
    places = [text.index(words) for words in ("ValueError on rank 2", "Rank 1 was killed", "Because of that:")]
    assert places == sorted(places)
    assert text.splitlines()[-3].endswith("Connection closed by peer [127.0.0.1]:2342 (ranks 0,3)")
    assert summary(run) == f"ValueError: bad shape (rank 2); {KILLED}; ranks 0,3 stopped because of that"


def test_an_error_that_came_after_the_release_stands_below_the_one_before_it(ended_run):
    """Threads were released, or lost their connection to one that was: the cells missed what they were to bring."""
    missed = Error("IndexError", "list index out of range", [cell(4, "train")])
    run = ended_run(3, {0: missed, 1: msgspec.structs.replace(missed, released=True), 2: value_error()}, source=SOURCE)
    heads = [line for line in plain(run).splitlines() if " on rank" in line]
    assert heads == ["ValueError on rank 2", "IndexError on ranks 0-1"]
    assert summary(run) == "ValueError: bad shape (rank 2); IndexError: list index out of range (ranks 0-1)"


def test_what_came_after_a_death_stands_below_it_and_what_came_before_above(ended_run):
    """A thread lost its connection to the dead rank, and its cell missed what it was to bring."""
    missed = Error("IndexError", "list index out of range", [cell(4, "train")])
    times = {0: 20.004, 1: 20.006, 2: 4.0, 3: 30.0}
    run = ended_run(4, {0: missed, 2: value_error(), 3: value_error()}, source=SOURCE, lost={1: KILLED}, times=times)
    heads = [line for line in plain(run).splitlines() if re.match(r"(\w+ on|Rank) ", line)]
    assert [head.partition(" (")[0] for head in heads] == [
        "ValueError on ranks 2-3",
        "Rank 1 was killed",
        "IndexError on rank 0",
    ]
    said = "ValueError: bad shape (ranks 2-3); {}; IndexError: list index out of range (rank 0)"
    assert summary(run) == said.format(KILLED)


def test_a_rank_that_died_stands_above_those_that_ended_with_their_world(ended_run):
    """Its death came first."""
    lost = {0: "rank 0 is lost: its world was stopped", 1: KILLED, 2: "rank 2 is lost: its world was stopped"}
    run = ended_run(3, {}, source=SOURCE, lost=lost)
    assert plain(run).startswith("Rank 1 was killed")
    assert summary(run).startswith(KILLED)


def test_an_elastic_cell_that_goes_on_without_a_dead_rank_failed_of_what_came_later(ended_run):
    """It is made for such ends."""
    run = ended_run(2, {0: value_error()}, source=SOURCE, lost={1: KILLED}, times={0: 20.0, 1: 5.0})
    run.fold.elastic = True
    assert plain(run).startswith("ValueError on rank 0\n")


def test_a_rank_that_hears_of_a_release_before_its_own_counts_as_released(ended_run):
    """TensorFlow passes the abort of one rank's collective on to the ranks that wait in it."""
    words = "Collective ops is aborted by: another rank has failed or was interrupted"
    told = Error("UnavailableError", words, [cell(7)], waited="fit", released=True)
    late = Error("UnavailableError", f"Graph execution error:\n{words}", [cell(7)], waited="fit")
    text = plain(ended_run(3, {0: late, 1: told, 2: value_error()}, source=SOURCE))
    assert text.startswith("ValueError on rank 2\n")
    assert text.splitlines()[-1] == "Because of that: ranks 0-1 waited in fit and were released"


def test_echoes_are_shown_in_full_when_nothing_else_is_known(ended_run):
    """The text has to name some cause."""
    run = ended_run(2, {1: Error("RuntimeError", "Connection reset by peer", [cell(7)])}, source=SOURCE)
    assert plain(run).startswith("RuntimeError on rank 1\n  line 7\n")
    assert summary(run) == "RuntimeError: Connection reset by peer (rank 1)"


def test_an_interrupt_names_the_ranks_that_are_still_busy_and_what_ends_them(ended_run):
    """The next step is part of the message."""
    stop = Error("KeyboardInterrupt", "", [cell(7)])
    run = ended_run(3, {0: stop, 1: stop}, source=SOURCE, busy=(2,))
    run.release()
    assert run.outcome == "interrupted"
    assert summary(run) == "Interrupted; still busy: rank 2 (%distributed kill 2 ends it)"
    text = plain(run)
    assert text.startswith("KeyboardInterrupt on ranks 0-1\n")
    assert text.splitlines()[-1] == (
        "Still busy: rank 2. %distributed kill 2 ends it; the others keep their variables."
    )
    stuck = ended_run(2, {}, source=SOURCE, busy=(0, 1))
    stuck.release()
    assert plain(stuck).splitlines()[-1] == "Still busy: ranks 0-1. %distributed kill 0-1 ends them."


def test_a_keyboard_interrupt_of_the_cells_own_is_the_root(ended_run):
    """No person pressed Stop: the ranks that waited stopped because of it."""
    freed = Error("Exception", "MPI_ERR_REVOKED", [cell(7)], waited="Barrier", released=True)
    run = ended_run(2, {0: Error("KeyboardInterrupt", "mine", [cell(7)]), 1: freed}, source=SOURCE, outcome="error")
    assert summary(run) == "KeyboardInterrupt: mine (rank 0); rank 1 stopped because of that"
    text = plain(run)
    assert text.startswith("KeyboardInterrupt on rank 0\n")
    assert text.splitlines()[-1] == "Because of that: rank 1 waited in Barrier and was released"


def test_a_stop_stands_above_the_ranks_that_it_has_released(ended_run):
    """They do not tell why; a lost connection may, if nobody was released."""
    stop, said = Error("KeyboardInterrupt", "", [cell(7)]), "MPI_ERR_REVOKED: Communication Object Revoked"
    freed = Error("Exception", said, [cell(7)], waited="allreduce", released=True)
    cut = Error("RuntimeError", "Connection closed by peer", [cell(7)], waited="all_reduce")
    text = plain(ended_run(3, {0: freed, 1: stop, 2: freed}, source=SOURCE, outcome="interrupted"))
    assert text.startswith("KeyboardInterrupt on rank 1\n")
    assert text.splitlines()[-1] == "Because of that: ranks 0,2 waited in allreduce and were released"
    text = plain(ended_run(2, {0: cut, 1: stop}, source=SOURCE, outcome="interrupted"))
    assert text.startswith("RuntimeError on rank 0\n")


def test_an_error_that_led_to_an_interrupt_is_still_shown(ended_run):
    """Interrupting the ranks that waited does not hide why they waited."""
    run = ended_run(2, {0: value_error(), 1: Error("KeyboardInterrupt", "", [cell(7)])}, source=SOURCE)
    run.interrupted = True
    run.release()
    assert summary(run) == "Interrupted; ValueError: bad shape (rank 0)"
    assert plain(run).startswith("ValueError on rank 0\n")


def test_many_distinct_errors_stay_readable(ended_run):
    """Sixty-four ranks with different messages do not make sixty-four tracebacks."""
    errors = {rank: Error("ValueError", f"size {rank + 7}", [cell(7)]) for rank in range(64)}
    run = ended_run(64, errors, source=SOURCE)
    lines = plain(run).splitlines()
    assert len(lines) < 60
    assert "[4] ValueError: size 11" in lines
    assert lines[-1] == "… and 44 more"
    assert summary(run).endswith("ValueError: size 9 (rank 2); 61 more errors")


def test_a_long_message_is_short_in_the_summary(ended_run):
    """The summary is one line."""
    run = ended_run(1, {0: Error("ValueError", "x" * 1000 + "\nmore", [])})
    assert len(summary(run)) < 220
    assert "\n" not in summary(run)


def test_a_world_of_one_rank_speaks_of_no_ranks(ended_run):
    """An error looks like an ordinary one."""
    run = ended_run(1, {0: Error("ValueError", "", [])})
    assert summary(run) == "ValueError"
    assert plain(run) == "ValueError\nValueError"


def test_a_run_that_ended_well_has_no_messages(ended_run):
    """No error, no words."""
    run = ended_run(2)
    run.release()
    assert blocks(run) == []
    assert summary(run) == ""


def test_a_run_that_was_not_sent_says_why(ended_run):
    """The reason stands alone."""
    run = ended_run(2)
    run.not_sent = "Rank 1 is still busy."
    assert summary(run) == "Rank 1 is still busy."
    assert plain(run) == "Rank 1 is still busy."


def test_the_members_of_a_group_stand_below_it(ended_run):
    """Each with its frames, indented; those that were not kept are counted."""
    inner = Error("ExceptionGroup", "inner", [], members=[Error("KeyError", "'x'", [cell(4, "train")])], left_out=2)
    group = Error("ExceptionGroup", "outer", [cell(7)], members=[inner, Error("OSError", "disk", [])])
    lines = plain(ended_run(2, {0: group, 1: group}, source=SOURCE)).splitlines()
    after = lines[lines.index("ExceptionGroup: outer") + 1 :]

    assert lines[0] == "ExceptionGroup on ranks 0-1"
    assert [line for line in after if not re.match(r" *(----> )?\d+ ", line)] == [
        "  (1) ExceptionGroup",
        "    ExceptionGroup: inner",
        "      (1) KeyError",
        "          line 4, in train",
        "        KeyError: 'x'",
        "      … and 2 more",
        "  (2) OSError",
        "    OSError: disk",
    ]


def test_groups_that_differ_in_a_member_are_different_errors(ended_run):
    """Though they say the same."""
    groups = {
        rank: Error("ExceptionGroup", "x", [], members=[Error("KeyError", f"x{rank + 7}", [])]) for rank in (0, 1)
    }

    assert "ExceptionGroup on rank 0" in plain(ended_run(2, groups))
    assert "ExceptionGroup on rank 1" in plain(ended_run(2, groups))
