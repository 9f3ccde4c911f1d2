"""The stop button: real signals, as they fall amid what must not be torn apart."""

from __future__ import annotations

import os
import signal
import threading
import weakref

import pytest

from jupyter_dtrain.core import stop_button
from jupyter_dtrain.core.stop_button import Latch, StopButton, Withdrawn
from tests.steward.until import PATIENCE, until


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_a_press_raises_where_it_is_asked_for_and_nowhere_else():
    with StopButton() as presses:
        press()
        held_back = presses.fell
        with pytest.raises(KeyboardInterrupt):
            presses.check()

    assert held_back
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_presses_are_handed_on_also_those_that_fell_before():
    heard = []
    with StopButton() as presses:
        press()
        before = list(heard)
        presses.pass_to(lambda: heard.append("heard"))
        press()

    assert before == []
    assert heard == ["heard", "heard"]


def test_a_press_amid_handing_on_is_handed_on_once():
    heard = []

    def hear():
        heard.append("heard")
        if len(heard) == 1:
            press()

    with StopButton() as presses:
        presses.pass_to(hear)
        press()

    assert heard == ["heard", "heard"]


def test_a_program_with_its_own_handler_keeps_it():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("own"))
    try:
        with StopButton() as presses:
            press()
    finally:
        signal.signal(signal.SIGINT, before)

    assert heard == ["own"]
    assert not presses.fell


def never():
    return False


def question(then):
    """A question that nobody answers; ``then()`` happens meanwhile. As a kernel's, it goes on after any Exception."""
    try:
        then()
        threading.Event().wait(PATIENCE)
    except Exception:  # noqa: BLE001 — as ipykernel's raw_input
        threading.Event().wait(PATIENCE)
    pytest.fail("nothing ended the question")


def test_a_press_ends_a_question_and_is_counted():
    heard = []
    with StopButton() as presses:
        presses.pass_to(lambda: heard.append("heard"))
        with pytest.raises(Withdrawn), presses.asking(never):
            question(press)
        press()  # after the question it raises nothing

    assert presses.fell
    assert heard == ["heard", "heard"]


def test_a_question_after_a_press_does_not_begin():
    begun = []
    with StopButton() as presses:
        press()
        with pytest.raises(Withdrawn), presses.asking(never):
            begun.append(1)

    assert begun == []


def test_a_question_that_needs_no_answer_is_withdrawn():
    """Another thread has found that out."""
    asked = threading.Event()
    with StopButton() as presses:
        with pytest.raises(Withdrawn), presses.asking(asked.is_set):
            question(asked.set)

        assert not presses.fell
    until(lambda: not questions())


def test_nothing_is_kept_of_what_heard_a_press():
    """The handler of a question stays for good; a session that has heard of presses must not."""

    def heard():
        pytest.fail("nothing was pressed")

    with StopButton() as presses:
        presses.pass_to(heard)
        with presses.asking(never):
            pass
    kept = weakref.ref(heard)
    del heard, presses

    assert kept() is None


def questions():
    return [thread for thread in threading.enumerate() if thread.name == "dtrain-question"]


def test_an_answer_that_comes_as_the_question_is_withdrawn_ends_it_once(monkeypatch):
    """Whichever is first: nothing is raised after the question, and nothing of it is left."""
    monkeypatch.setattr(stop_button, "LOOK", 0.0001)
    ended = []
    with StopButton() as presses:
        for turn in range(300):
            try:
                with presses.asking(lambda: True):
                    for _ in range(turn * 20):
                        pass
                ended.append("answered")
            except Withdrawn:
                ended.append("withdrawn")
            for _ in range(2000):
                pass

    assert len(ended) == 300
    until(lambda: not questions())


def test_a_latch_lets_all_pass_once_it_is_open():
    latch = Latch()
    passed = []
    threads = [threading.Thread(target=lambda: passed.append(latch.wait(30))) for _ in range(3)]
    for thread in threads:
        thread.start()
    early = latch.wait(0.01)
    latch.open()
    for thread in threads:
        thread.join(30)

    assert early is False
    assert passed == [True] * 3
    assert latch.is_open
    assert latch.wait(0)


def test_a_waiting_thread_passes_a_latch_whose_lock_was_snatched():
    latch = Latch()
    passed = []
    thread = threading.Thread(target=lambda: passed.append(latch.wait(30)))
    thread.start()
    latch.is_open = True  # another one has snatched the lock when it was given back
    thread.join(30)

    assert passed == [True]
