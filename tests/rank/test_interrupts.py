"""SIGINT ends the cell that runs, and nothing else."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from jupyter_dtrain.rank.interrupts import STOP_SIGNAL, CellStopped, Interrupts, Overdue, Shield


@pytest.fixture
def shield():
    return Shield()


@pytest.fixture(autouse=True)
def handlers():
    """Each test leaves the handlers of signals as before: sessions in this process look for Python's own one."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, STOP_SIGNAL)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def interrupts(shield):
    """The rank's handler in this process. This file counts as a cell."""
    made = Interrupts(lambda file: file == __file__, shield)
    made.install()
    return made


@pytest.fixture
def engine():
    """The engine's own handler of SIGTERM: a second SIGTERM arrives while it works. A list of what it has done."""
    done = []

    def handle(_number, _frame):
        if not done:
            done.append("begun")
            signal.raise_signal(signal.SIGTERM)
            done.append("told to end")

    signal.signal(signal.SIGTERM, handle)
    return done


def wait_for_ever() -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(0.01)


def test_between_cells_an_interrupt_is_ignored(interrupts):
    """The signal and the request."""
    signal.raise_signal(signal.SIGINT)

    assert not interrupts.send()
    assert not interrupts.requested


def test_a_second_request_to_end_does_not_cut_the_first_short(engine, request):
    """The watch repeats it: where 64 ranks shared two processors, some ranks ended their cell and lived on."""
    interrupts = request.getfixturevalue("interrupts")
    with pytest.raises(KeyboardInterrupt), interrupts.enabled():
        signal.raise_signal(signal.SIGTERM)

    assert interrupts.ending
    assert engine == ["begun", "told to end"]


def test_within_a_cell_it_raises(interrupts):
    """The rank remembers it until the next cell."""
    with pytest.raises(KeyboardInterrupt), interrupts.enabled():
        interrupts.send() or wait_for_ever()

    assert interrupts.requested
    with interrupts.enabled():
        assert not interrupts.requested


def test_an_interrupt_that_native_code_has_made_an_error_of_is_one_again(interrupts):
    """An error of a cell without an interrupt stays as it is."""
    words = "pybind11::error_already_set: MISMATCH of original and normalized active exception types: ORIGINAL "
    words += "UnavailableError REPLACED BY {}: <EMPTY MESSAGE>"
    mixed = RuntimeError(words.format("KeyboardInterrupt"))
    assert interrupts.restored(mixed) is mixed

    with pytest.raises(KeyboardInterrupt), interrupts.enabled():
        interrupts.send() or wait_for_ever()
    found = interrupts.restored(mixed)
    assert type(found) is KeyboardInterrupt
    assert type(interrupts.restored(RuntimeError(words.format("CellStopped")))) is CellStopped
    for other in (RuntimeError(words.format("ValueError")), RuntimeError("REPLACED BY KeyboardInterrupt:"), None):
        assert interrupts.restored(other) is other
    # As in TensorFlow, whose wrapper raises it again ``from None``.
    for kind in (KeyboardInterrupt, CellStopped, ValueError):
        error = SystemError("<built-in method __array__> returned a result with an exception set")
        error.__context__ = kind()
        found = interrupts.restored(error)
        assert found is (error if kind is ValueError else error.__context__)


def test_a_bounded_call_ends_by_its_deadline_and_by_force_alone(interrupts):
    """It runs at the end of a cell, where an ordinary interrupt has no effect."""
    with interrupts.closing():
        with pytest.raises(Overdue, match=r"it did not return within 0\.05 s"):
            interrupts.bounded(wait_for_ever, 0.05)
        signal.raise_signal(signal.SIGINT)
        timer = threading.Timer(0.05, lambda: interrupts.send(force=True))
        timer.start()
        with pytest.raises(CellStopped):
            interrupts.bounded(wait_for_ever, 20)
        timer.join()
        assert interrupts.bounded(lambda: 5, 20) == 5
    assert not interrupts.send(force=True)


class Late(Interrupts):
    """Its signals leave once ``go`` is set, as when the system lets the sending thread wait."""

    def __init__(self, shield: Shield) -> None:
        super().__init__(lambda file: file == __file__, shield)
        self.wants, self.go, self.gone = threading.Event(), threading.Event(), threading.Event()

    def _raise_in_main(self, number: int) -> None:
        self.wants.set()
        self.go.wait(20)
        super()._raise_in_main(number)
        self.gone.set()

    def arrive(self) -> str:
        """The signal arrives here."""
        self.go.set()
        assert self.gone.wait(20)
        time.sleep(0)  # Python hands it over
        return "unharmed"


@pytest.mark.parametrize("asker", ["deadline", "stop"])
@pytest.mark.parametrize("place", ["call", "cell"])
def test_a_signal_that_comes_after_its_call_ends_nothing_else(shield, asker, place):
    """Neither the next call at the end of the cell, nor the next cell."""
    late = Late(shield)
    late.install()
    presses = threading.Thread(target=lambda: late.send(force=True))
    with late.closing():
        if asker == "stop":
            presses.start()
        # Native code holds the call up beyond its deadline, so that the call ends just before the signal.
        assert late.bounded(lambda: late.wants.wait(20), 0.01 if asker == "deadline" else 20)
        if place == "call":
            assert late.bounded(late.arrive, 20) == "unharmed"
    with late.closing() if place == "call" else late.enabled():
        assert late.arrive() == "unharmed"
    if asker == "stop":
        presses.join(20)


def test_another_thread_reaches_the_main_one(interrupts):
    """The control thread's way."""

    def send() -> None:
        while not interrupts.requested:
            interrupts.send()
            time.sleep(0.001)

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(KeyboardInterrupt), interrupts.enabled():
        wait_for_ever()
    thread.join(10)


def test_a_shield_holds_it_back_until_the_work_is_done(interrupts, shield):
    """Nested ones, too; then it comes at once."""
    steps = []

    def work() -> None:
        with shield:
            with shield:
                interrupts.send()
                steps.append("inner")
            steps.append("outer")
        steps.append("never")

    with pytest.raises(KeyboardInterrupt), interrupts.enabled():
        work()

    assert ["inner", "outer"] == steps


def test_a_brief_shield_lets_it_in_where_it_is_lifted_and_when_its_time_is_over(interrupts, shield, monkeypatch):
    """Whatever else holds one back: the code of others, which waits for somebody in turn."""
    steps = []

    def interrupted(then) -> None:
        with interrupts.enabled(), shield.briefly():
            interrupts.send()
            steps.append("held")
            then()
            steps.append("never")

    def lift() -> None:
        with shield.lifted():
            steps.append("never")

    def leave() -> None:
        with interrupts.enabled():
            with shield.briefly(), shield.lifted():
                steps.append("lifted")
            interrupts.send()
            steps.append("never")

    with pytest.raises(KeyboardInterrupt):
        interrupted(lift)
    with pytest.raises(KeyboardInterrupt):
        leave()
    monkeypatch.setattr("jupyter_dtrain.rank.interrupts.BRIEF", 0.2)
    again = threading.Timer(0.4, interrupts.send)
    again.start()
    with pytest.raises(KeyboardInterrupt):
        interrupted(wait_for_ever)

    assert steps == ["held", "lifted", "held"]


def test_a_shield_without_an_interrupt_does_nothing(interrupts, shield):
    """The shield may have held one back before."""
    with pytest.raises(KeyboardInterrupt), interrupts.enabled(), shield:
        interrupts.send()
    with interrupts.enabled(), shield:
        pass


def test_a_shield_of_another_thread_does_not_hold_it_back(interrupts, shield):
    """Only the main thread is interrupted."""
    inside, leave = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with shield:
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    inside.wait(20)
    with pytest.raises(KeyboardInterrupt), interrupts.enabled():
        interrupts.send() or wait_for_ever()
    leave.set()
    thread.join()


def test_an_awaited_call_is_cancelled(interrupts):
    """No code of the cell is on the stack then, and the loop's own frames stay whole."""

    async def main() -> str:
        asyncio.get_running_loop().call_later(0.05, threading.Thread(target=interrupts.send).start)
        with interrupts.enabled():
            try:
                await interrupts.wait_for(asyncio.sleep(20))
            except asyncio.CancelledError:
                return "cancelled"
        return "went on"

    # The loop's frames are beneath this file's own: ask as if no file were a cell's.
    interrupts._in_cell = lambda _: False

    assert "cancelled" == asyncio.run(main())
    assert interrupts.requested
