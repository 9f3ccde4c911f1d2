"""The profile of one rank starts and stops between two steps, whatever comes in between."""

from __future__ import annotations

import signal
import time
from typing import ClassVar

import pytest
from msgspec import structs

from jupyter_dtrain.core.world import Rank, World
from jupyter_dtrain.plugins.framework import Recording
from jupyter_dtrain.rank import profiling
from jupyter_dtrain.rank.interrupts import STOP_SIGNAL, Interrupts, Shield
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.profiling import RankProfile
from jupyter_dtrain.wire.profile_messages import BeginProfile, EndProfile, ProfileState, ReadProfile, ReadTrace
from jupyter_dtrain.wire.profiling import Profiling


class Made(Recording):
    """A profiler, which records nothing."""

    on = 0
    """How many are on."""
    settled = True
    done: ClassVar = []
    """What was called."""

    def __init__(self):
        self.began = False

    def prepare(self):
        pass

    def complete(self):
        self.done.append("complete")
        self.amid_complete()
        return True

    def amid_complete(self):
        pass

    def start(self):
        self.done.append("start")
        Made.on += 1
        self.began = True
        self.amid_start()

    def may_stop(self):
        return Made.settled

    def stop(self):
        if self.began:
            self.amid_stop()
            Made.on -= 1
            self.began = False

    def amid_start(self):
        pass

    def amid_stop(self):
        pass

    def write(self, path):
        path.write_text("{}")
        return []


class Plugin:
    def recording(self):
        return Made()


@pytest.fixture
def interrupts():
    """The rank's handler in this process, and what delays it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, STOP_SIGNAL)}
    shield = Shield()
    made = Interrupts(lambda file: file == __file__, shield)
    made.install()
    yield made, shield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def profile(interrupts, monkeypatch):
    monkeypatch.setattr(Made, "on", 0)
    monkeypatch.setattr(Made, "done", [])
    monkeypatch.setattr(profiling, "MOMENT", 0.01)
    made = RankProfile(Plugins([("made", Plugin())], print), interrupts[1])
    made.begin()
    return made


def order(profile, key="mine", after=2, steps=2):
    return profile.answer(BeginProfile(key, after, steps), 1)


def state(profile, key="mine"):
    """The state once nothing is being written, and the words."""
    deadline = time.monotonic() + 20
    while (found := profile.answer(ReadProfile(key), 1)).state == "writing":
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found.state, found.words


def make(profile, *steps):
    for step in steps:
        profile.step(step)


def wait():
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(0.001)


def strike(*_):
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_for_the_stop(profile, interrupts, monkeypatch):
    """The profile is whole, and the next one works."""
    monkeypatch.setattr(Made, "amid_stop", strike)
    order(profile)
    with interrupts[0].enabled():
        make(profile, 1, 2, 3)
        with pytest.raises(KeyboardInterrupt):
            profile.step(4)
    assert Made.on == 0
    profile.end(failed=True)
    assert state(profile) == ("done", "")

    profile.begin()
    profile.answer(EndProfile("mine"), 1)
    order(profile, "next")
    make(profile, 1, 2, 3, 4)
    assert (Made.on, state(profile, "next")) == (0, ("done", ""))


def test_an_interrupt_waits_for_the_start(profile, interrupts, monkeypatch):
    """The cell's end stops the profiler."""
    monkeypatch.setattr(Made, "amid_start", strike)
    order(profile)
    with interrupts[0].enabled():
        profile.step(1)
        with pytest.raises(KeyboardInterrupt):
            profile.step(2)
    assert Made.on == 1
    profile.end(failed=True)
    assert (Made.on, state(profile)) == (0, ("failed", "the cell was interrupted or failed, before a step was over"))


def test_an_interrupt_amid_a_cut_reaches_the_cell(profile, interrupts, monkeypatch):
    """The interpreter calls what cuts a profile off, and drops what that raises."""
    monkeypatch.setattr(Made, "amid_stop", strike)
    monkeypatch.setattr(profiling, "LONGEST", 0.05)
    order(profile)
    with interrupts[0].enabled():
        make(profile, 1, 2, 3)
        with pytest.raises(KeyboardInterrupt):
            wait()
    assert Made.on == 0
    profile.end(failed=True)
    assert state(profile) == ("done", "1 of 2 steps: it was cut off after 0.05 s")


def test_a_stop_that_was_broken_is_repeated(profile, monkeypatch):
    """At the cell's end, or after the next step of a loop that goes on."""

    def broken(_):
        monkeypatch.setattr(Made, "amid_stop", lambda _: None)
        raise KeyboardInterrupt

    for key, go_on in (("end", lambda: profile.end(failed=True)), ("step", lambda: profile.step(5))):
        monkeypatch.setattr(Made, "amid_stop", broken)
        profile.begin()
        order(profile, key)
        make(profile, 1, 2, 3)
        with pytest.raises(KeyboardInterrupt):
            profile.step(4)
        assert Made.on == 1
        go_on()
        assert Made.on == 0
        assert state(profile, key)[0] == "done"
        profile.answer(EndProfile(key), 1)


def test_it_stops_no_earlier_than_it_may(profile, monkeypatch):
    """The loop goes on, and the profile has the steps that were asked for."""
    monkeypatch.setattr(Made, "settled", False)
    order(profile)
    make(profile, 1, 2, 3, 4, 5)
    assert (Made.on, state(profile)[0]) == (1, "recording")
    Made.settled = True
    profile.step(6)
    assert Made.on == 0
    assert state(profile) == ("done", "operators of 2 more steps are in it: communication was under way")
    assert len(profile.answer(ReadProfile("mine"), 1).marks) == 3


@pytest.mark.parametrize("failed", [True, False])
def test_one_that_may_never_stop_stops_all_the_same(profile, monkeypatch, failed):
    """At once at the end of a cell that has failed; a loop, or another cell, waits longer."""
    monkeypatch.setattr(Made, "settled", False)
    monkeypatch.setattr(profiling, "PATIENCE", 600.0 if failed else 0.05)
    order(profile)
    make(profile, 1, 2, 3)
    began = time.monotonic()
    profile.end(failed=failed)
    assert time.monotonic() - began < 20
    why = "the cell was interrupted or failed" if failed else "the cell has ended"
    assert (Made.on, state(profile)) == (0, ("done", f"1 of 2 steps: {why}"))


def test_the_loop_drops_an_order(profile):
    """Not the control thread, which would race with the start; another may take the place at once."""
    order(profile)
    profile.step(1)
    profile.answer(EndProfile("mine"), 1)
    assert state(profile)[0] == "armed"
    profile.step(2)
    assert (Made.on, state(profile)) == (0, ("failed", "nobody has asked for it any more"))

    order(profile, "second", after=5)
    profile.answer(EndProfile("second"), 1)
    assert order(profile, "third", after=5).state == "armed"
    make(profile, 4, 5, 6, 7)
    assert (Made.on, state(profile, "third")) == (0, ("done", ""))


def log(profile, *names):
    for name in names:
        profile.point(name)


def test_a_loop_without_an_optimizer_is_counted_by_the_series_that_has_most_points(profile):
    """One value of an epoch before the first step, and several of each step, do not count."""
    log(profile, "epoch", "loss", "loss", "accuracy", "loss", "accuracy")
    assert profile.answer(ReadProfile("mine"), 1).step == 3
    order(profile, after=5)
    log(profile, "epoch", "loss", "loss", "accuracy", "loss")
    assert Made.on == 1
    log(profile, "loss")
    assert (Made.on, state(profile)) == (0, ("done", ""))
    assert len(profile.answer(ReadProfile("mine"), 1).marks) == 3


def test_an_optimizer_that_steps_counts_from_then_on(profile):
    """What was logged before its first step does not."""
    log(profile, "loss", "loss", "loss")
    profile.step(1)
    log(profile, "loss")
    assert profile.answer(ReadProfile("mine"), 1).step == 1
    profile.end()
    profile.begin()
    log(profile, "loss")
    assert profile.answer(ReadProfile("mine"), 1).step == 1


def test_each_step_is_complete_before_its_time_is_taken(profile):
    """Also the one after which the profile begins."""
    order(profile)
    make(profile, 1, 2, 3, 4, 5)
    assert Made.done == ["complete", "start", "complete", "complete"]
    assert state(profile) == ("done", "")


def test_a_profile_that_is_cut_off_amid_the_wait_for_a_step_has_the_steps_before(profile, interrupts, monkeypatch):
    """The step that did not come to its end is not in it."""
    monkeypatch.setattr(profiling, "LONGEST", 0.05)
    order(profile, steps=5)
    make(profile, 1, 2, 3)

    def cut_off(_):
        deadline = time.monotonic() + 20
        while Made.on and time.monotonic() < deadline:
            time.sleep(0.001)

    monkeypatch.setattr(Made, "amid_complete", cut_off)
    make(profile, 4, 5)
    assert Made.on == 0
    assert state(profile) == ("done", "1 of 5 steps: it was cut off after 0.05 s")
    assert len(profile.answer(ReadProfile("mine"), 1).marks) == 2


def test_a_step_that_takes_too_long_to_complete_is_the_last_that_is_waited_for(profile, monkeypatch):
    """What it waits for may never come, and the loop must not be held at each step."""
    monkeypatch.setattr(Made, "complete", lambda made: made.done.append("late"))
    order(profile, steps=3)
    make(profile, 1, 2, 3, 4, 5)
    assert Made.done == ["late", "start"]
    assert state(profile)[0] == "done"
    assert "still under way" in state(profile)[1]


def test_a_trace_that_is_to_be_fetched_keeps_its_place_as_long_as_somebody_asks(profile, monkeypatch):
    """Afterwards the next step drops it: it takes memory."""
    order(profile)
    make(profile, 1, 2, 3, 4)
    assert state(profile)[0] == "done"
    assert order(profile, "other", after=9).state == "failed"
    assert profile.answer(ReadTrace("mine", 0), 1).data

    monkeypatch.setattr(profiling, "FORGOTTEN", 0.0)
    profile.step(5)
    assert state(profile)[0] == "none"
    assert order(profile, "other", after=9).state == "armed"


def usable(answer):
    """``answer`` of a rank whose framework is in use, and of a loop that steps when it is asked."""
    return structs.replace(answer, profilers=["made"], pace=0.0) if isinstance(answer, ProfileState) else answer


@pytest.mark.parametrize("refuses", [True, False])
def test_a_rank_that_refuses_or_is_replaced_is_named_and_others_do_not_wait_for_it(profile, interrupts, refuses):
    """One rank makes steps, and the other has another's order, or is new in the middle."""
    other = RankProfile(Plugins([("made", Plugin())], print), interrupts[1])
    ranks = {0: profile, 1: other}
    world = World("w", "w", [Rank(rank, 0, "here", rank, "cpu", 1, "running") for rank in ranks])
    make(profile, 1, 2)
    make(other, 1, 2)
    if refuses:
        order(other, "others", after=1000)
    made = 2

    def ask(asked, _timeout, question):
        nonlocal made
        answers = {rank: ranks[rank].answer(question, 1) for rank in asked}
        answers = {rank: usable(answer) for rank, answer in answers.items()}
        if isinstance(question, ReadProfile):
            made += 1
            profile.step(made)
            if Made.on and not refuses:
                ranks[1] = RankProfile(Plugins([("made", Plugin())], print), interrupts[1])
        return answers

    one = Profiling(ask, lambda: world, [0, 1], 3, timeout=20.0)
    traces = one.take()
    why = "another profile is being made; try again once it is there" if refuses else "was replaced"
    assert [trace.rank for trace in traces] == [0]
    assert any(note.startswith(f"Rank 1: missing: {why}") for note in one.notes)
