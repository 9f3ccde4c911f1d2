"""A clock and ranks for tests with deadlines: the clock moves, and the ranks answer, when the test says so."""

from __future__ import annotations

from functools import partial

from jupyter_dtrain.wire.agent_messages import InterruptRank, RankPosition, ReadStack, Signalled

SENT, NOT_SENT = Signalled(sent=True), Signalled(sent=False)


def position(run, *, finished=False, upcoming=0, waits=None):
    """The position of a rank that has begun ``run``; ``upcoming``: the number of its next event."""
    return RankPosition(
        rank=0,
        state="idle" if run is None or finished else "running",
        run=run,
        next=upcoming,
        finished=finished,
        waits=waits,
        frameworks=[],
    )


class Clock:
    """``clock()`` is the time."""

    def __init__(self, now=100.0):
        self.now = now

    def __call__(self):
        return self.now

    def run(self, machine, seconds):
        """Let time pass, and call the machine whenever it wants to be, or half a second later."""
        end = self.now + seconds
        wanted = machine.tick(self.now)
        while self.now < end:
            self.now = min(end, self.now + 0.5, wanted if wanted is not None and wanted > self.now else end)
            wanted = machine.tick(self.now)


class Ranks:
    """Asks ranks, as :class:`jupyter_dtrain.wire.questions.Questions` does; the test answers for them."""

    def __init__(self, clock):
        self.clock = clock
        self.asked = []
        """``(time, ranks, question)``, in order."""
        self.greeted = []
        """``(time since the clock's 100, rank, patience, then)``, in order."""
        self.slow = False
        """Whether ranks do not say at once where they are."""
        self.looks = []
        """Calls by which they say it."""
        self.answer = lambda rank, question: None  # noqa: ARG005 — what tests replace has these

    def ask(self, ranks, patience, then, question):  # noqa: ARG002 — the protocol's shape
        """The answers come at once."""
        self.asked.append((self.clock(), list(ranks), question))
        then({rank: self.answer(rank, question) for rank in ranks})

    def interrupt(self, run, ranks, patience, then, *, force=False):
        """The ranks that took the interrupt."""

        def said(answers):
            then([rank for rank, answer in answers.items() if answer is not None and answer.sent])

        self.ask(ranks, patience, said, InterruptRank(run, force))

    def greet(self, rank, patience, then):
        """The rank says nothing until the test calls ``then``."""
        self.greeted.append((self.clock() - 100, rank, patience, then))

    def stacks(self, ranks, patience, then):  # noqa: ARG002 — the protocol's shape
        """No rank says where it is, at once or when the test looks."""
        self.asked.append((self.clock(), list(ranks), ReadStack()))
        self.looks.append(partial(then, dict.fromkeys(ranks)))
        if not self.slow:
            self.looks.pop()()

    def times(self, *questions):
        """The times of these questions, since the clock's 100."""
        return [at - 100 for at, _, question in self.asked if question in questions]


class Steward:
    """Does each act on request, and records it."""

    def __init__(self, clock):
        self.clock = clock
        self.did = []
        """``(time, what, arguments)``, in order."""
        self.fails = None

    def release(self, run):
        """No rank waits."""
        self._do("release", run)

    def kill(self, ranks, reason):
        """No rank dies."""
        self._do("kill", list(ranks), reason)

    def _do(self, what, *arguments):
        self.did.append((self.clock() - 100, what, arguments))
        if self.fails is not None:
            raise self.fails

    def times(self, what):
        """The times of this act, since the clock's 100."""
        return [at for at, did, _ in self.did if did == what]


class Working:
    """A run that ranks work on until the test takes them out."""

    def __init__(self, ranks=(0, 1), number=7):
        self.number = number
        self.unfinished = list(ranks)
