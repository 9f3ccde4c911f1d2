"""Has all ranks of a run hold after the same step, carry out what a person asks for, and go on.

One act of the world after the other. The ranks say how far their loops are; the steward chooses a step that lies ahead
of the furthest, and tells it to all. Where one has passed it by then, nothing has happened, and a later step is tried.
Only once all ranks stand is the act looked at on each, and only where all can do it is it carried out. A pause leaves
them there until ``resume``, another client's too.

Works on the supervisor's thread; no client is needed. Under failure: where a rank makes no step in time, ends the cell
or dies before all stand, the others go on, nothing has happened, and the words say which rank it was. An act that a
rank carries out may take as long as a cell: Stop ends it. Ranks that hear nothing go on by themselves.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.events import Acted
from jupyter_dtrain.core.steering import SOURCES, check_act, describe_act, refusal
from jupyter_dtrain.core.world import count_ranks, quantity
from jupyter_dtrain.wire.messages import AgentRequest, Done
from jupyter_dtrain.wire.questions import Answers, Questions, silent
from jupyter_dtrain.wire.steering_messages import (
    CarryOut,
    HoldSteps,
    LeaveSteps,
    ReadSteer,
    ReadSteps,
    Steer,
    SteerBegun,
    SteerState,
    StepState,
    WithdrawSteer,
)

if TYPE_CHECKING:
    from jupyter_dtrain.wire.steward_messages import OpenRun

ANSWER: Final = 1.0
"""Seconds in which a rank says where its loop is."""
POLL: Final = 0.03
"""Seconds between two looks at ranks that come to a step, or carry out an act."""
SLOW_POLL: Final = 0.5
"""Seconds between two looks at ranks that carry out an act which takes long."""
LOOKS: Final = 0.1
"""Seconds between two looks from which the pace of a loop is taken."""
STILL: Final = 0.5
"""Seconds without a step after which a loop counts as slow: a step that lies one ahead is enough then."""
MARGINS: Final = (0.15, 0.5, 1.5, 4.0)
"""Seconds that the chosen step lies ahead, in the first try and in the later ones."""
KEEP: Final = 4.0
"""Seconds between two looks at ranks that are paused."""
LEAVING: Final = 12
"""How often a rank is told to go on that does not answer."""
KEPT: Final = 100
"""Acts whose outcome is remembered."""
MOST: Final = 8
"""Acts that wait for their turn."""


class _Hold:
    """A step after which all ranks of a run stand, or are to stand."""

    def __init__(self, run: OpenRun, source: str, at: int) -> None:
        self.key = uuid.uuid4().hex
        self.run = run
        self.source = source
        self.at = at
        self.stage = 0
        """The newest stage that the ranks were given."""
        self.keep_at = math.inf
        """When the ranks are asked next, in a pause."""


class _Act:
    """An act on its way."""

    def __init__(self, number: int, request: Steer, run: OpenRun) -> None:
        self.number = number
        self.request = request
        self.run = run
        self.state = SteerState("going on", "It waits for the act before it.", run.run)
        self.next: Callable[[], None] = lambda: None
        """The next step of its way."""
        self.due = 0.0
        """When that is to happen."""
        self.began = time.monotonic()
        self.deadline = math.inf
        self.first: dict[int, StepState] = {}
        """Where the loops were at the first look."""
        self.looked = 0.0
        self.tries = 0
        self.hold: _Hold | None = None
        self.counts: dict[int, int] = {}
        """The newest steps of the ranks on their way to the hold."""
        self.answers: Answers[StepState] = {}
        """The newest answers of the ranks."""
        self.armed: dict[int, StepState] = {}
        """Where the loops were when all ranks knew of the hold."""
        self.past: set[str] = set()
        """What has counted steps, and does so no more."""

    @property
    def kind(self) -> str:
        return self.request.act.kind


class Steering:
    """The acts on the loops of one world, one at a time."""

    def __init__(
        self,
        questions: Questions,
        runs: Callable[[], list[OpenRun]],
        post: Callable[[Callable[[], None]], None],
        check_driver: Callable[[str], None],
    ) -> None:
        """``questions`` belongs to the supervisor's thread; the other arguments: see :class:`.RankControl`."""
        self._questions = questions
        self._runs = runs
        self._post = post
        self._check_driver = check_driver
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        """Guards the acts, which clients read on another thread."""
        self._acts: dict[int, _Act] = {}
        self._waiting: deque[_Act] = deque()
        self._act: _Act | None = None
        self._asking = False
        """Whether an answer of the ranks is awaited."""
        self._holds: dict[int, _Hold] = {}
        """The runs that are paused, by number."""
        self._unpaused: dict[int, str] = {}
        """Why the pauses of runs have ended that nobody has ended, as a clause."""
        self.answers: dict[type[msgspec.Struct], Callable[[Any], msgspec.Struct]] = {
            Steer: self._asked,
            ReadSteer: self._read,
            WithdrawSteer: self._withdrawn,
        }
        """The function that answers each request of a client, by the type of the request. Any thread may call it."""

    # Requests of clients.

    def _asked(self, request: Steer) -> SteerBegun:
        self._check_driver(request.client)
        check_act(request.act)
        run = _chosen([run for run in self._runs() if run.working], request.run)
        with self._lock:
            if len(self._waiting) >= MOST:
                raise Refused(f"{quantity(MOST, 'act')} wait for their turn already")
            act = _Act(next(self._numbers), request, run)
            self._acts[act.number] = act
            for old in list(self._acts)[:-KEPT]:
                del self._acts[old]
            self._waiting.append(act)
        self._post(lambda: None)
        return SteerBegun(act.number)

    def _read(self, request: ReadSteer) -> SteerState:
        with self._lock:
            if (act := self._acts.get(request.number)) is None:
                raise Refused("There is no such act.")
            return act.state

    def _withdrawn(self, request: WithdrawSteer) -> Done:
        def withdraw() -> None:
            act = self._acts.get(request.number)
            if act is None or act.state.phase != "going on" or act.request.client != request.client:
                return
            with self._lock:
                waits = act in self._waiting
                if waits:
                    self._waiting.remove(act)
            if waits:
                self._refuse(act, "It was withdrawn.")
            elif act is self._act and act.deadline < math.inf:
                self._fail(act, "It was withdrawn.")

        self._post(withdraw)
        return Done()

    # The supervisor's thread.

    def tick(self, now: float) -> float:
        """Do what is due; return when more is due, in ``time.monotonic()`` seconds."""
        wake = self._hurry(now)
        if self._act is None and self._waiting:
            with self._lock:
                act = self._act = self._waiting.popleft()
            self._begin(act, now)
        if (current := self._act) is not None and not self._asking:
            if now >= current.due:
                current.next()
            wake = current.due if self._act is current and not self._asking else wake
        for hold in list(self._holds.values()):
            if now >= hold.keep_at:
                hold.keep_at = now + KEEP
                self._keep(hold)
            wake = min(wake, hold.keep_at)
        if self._act is None and self._waiting:
            wake = now
        return wake

    def _hurry(self, now: float) -> float:
        """End what others wait for in vain; return when a waiting act has waited too long."""
        with self._lock:
            waiting = list(self._waiting)
        current = self._act
        # It may go on for as long as a training, and these say what is to become of that.
        replaced = [one for one in waiting if one.kind in ("pause", "resume")] if current is not None else []
        if current is not None and current.kind == "step" and any(one.run.run == current.run.run for one in replaced):
            self._fail(current, "Another act takes its place.")
        for act in waiting:
            if now >= act.began + act.request.patience and self._act is not None:
                with self._lock:
                    self._waiting.remove(act)
                self._refuse(act, f"The act before it, {self._act.request.act.kind}, is not over yet.")
        return min((act.began + act.request.patience for act in waiting if act in self._waiting), default=math.inf)

    def rank_died(self, rank: int) -> None:
        """Note that ``rank`` has died: nothing is asked of its run any more."""
        for run, hold in list(self._holds.items()):
            if rank in hold.run.ranks:
                del self._holds[run]
                self._unpaused[run] = f"rank {rank} has died"
                self._leave(hold)
        if (act := self._act) is not None and rank in act.run.ranks:
            self._fail(act, f"Rank {rank} has died meanwhile.")

    def forget(self) -> None:
        """Forget all that concerns the present ranks: they are gone."""
        self._holds.clear()
        self._unpaused.clear()
        self._end_all("The ranks have ended.", lambda _: True)

    def given_up(self, run: int) -> None:
        """Note that ``run`` has ended without the ranks that still work on it."""
        if (hold := self._holds.pop(run, None)) is not None:
            self._leave(hold)
        self._end_all("The cell was ended meanwhile.", lambda act: act.run.run == run)

    def _end_all(self, words: str, concerns: Callable[[_Act], bool]) -> None:
        with self._lock:
            ended = [act for act in self._waiting if concerns(act)]
            for act in ended:
                self._waiting.remove(act)
        for act in ended:
            self._refuse(act, words)
        if self._act is not None and concerns(self._act):
            self._fail(self._act, words)

    # The way of an act.

    def _begin(self, act: _Act, now: float) -> None:
        act.deadline = now + act.request.patience
        hold = self._holds.get(act.run.run)
        if act.kind == "resume":
            if hold is None:
                self._fail(act, f"No loop is paused{self._why_unpaused(act)}.")
                return
            del self._holds[act.run.run]
            self._leave(hold)
            self._end(act, f"The loop goes on after step {hold.at}.", hold.at)
        elif act.kind == "step":
            if hold is None:
                why = self._why_unpaused(act) or ": %distributed pause is first"
                self._fail(act, f"No loop is paused{why}.")
                return
            act.hold = hold
            self._hold(act, hold.source, hold.at + max(1, act.request.act.count))
        elif act.kind == "pause" and hold is not None:
            self._end(act, f"The loop is paused already, after step {hold.at}.", hold.at)
        elif hold is not None:
            act.hold = hold
            hold.keep_at = math.inf
            self._check(act)
        else:
            act.next = lambda: self._look(act)

    def _look(self, act: _Act) -> None:
        if dead := self._questions.dead(act.run.ranks):
            has = "has" if len(dead) == 1 else "have"
            self._fail(act, f"{count_ranks(dead).capitalize()} {has} died: not all ranks of the cell come to a step.")
            return
        self._say(act, "The ranks are asked how far their loops are.")
        self._ask(act, act.run.ranks, lambda found: self._looked(act, found), ReadSteps(""))

    def _looked(self, act: _Act, found: dict[int, StepState]) -> None:
        now = time.monotonic()
        if len(found) < len(act.run.ranks):
            self._again(act, lambda: self._look(act), LOOKS)
            return
        if why := self._unfit(act, found):
            self._fail(act, why)
            return
        if any(one.run != act.run.run for one in found.values()):  # it is yet to begin the cell
            self._again(act, lambda: self._look(act), LOOKS)
            return
        if not act.first:
            act.first, act.looked = found, now
            self._again(act, lambda: self._look(act), LOOKS)
            return
        moved = [
            source
            for source in SOURCES
            if all(one.counts.get(source, 0) > act.first[rank].counts.get(source, 0) for rank, one in found.items())
        ]
        # A loop whose steps are slow has made some, and none since the first look.
        slow = now - act.looked >= STILL
        made = [
            source
            for source in SOURCES
            if source not in act.past and all(one.counts.get(source, 0) > 0 for one in found.values())
        ]
        if not moved and not (slow and made):
            self._again(act, lambda: self._look(act), LOOKS)
            return
        source = moved[0] if moved else made[0]
        counts = {rank: one.counts[source] for rank, one in found.items()}
        made_now = max(counts[rank] - act.first[rank].counts.get(source, 0) for rank in counts)
        pace = made_now / max(now - act.looked, 0.001)
        self._hold(act, source, max(counts.values()) + max(1, math.ceil(pace * MARGINS[act.tries])))

    def _unfit(self, act: _Act, found: dict[int, StepState]) -> str:
        """Why the run cannot be steered; empty where it can."""
        run = act.run.run
        if gone := sorted(rank for rank, one in found.items() if one.run != run and one.newest >= run):
            return f"{count_ranks(gone).capitalize()} {'has' if len(gone) == 1 else 'have'} ended the cell."
        return next((f"This cell cannot be steered: {one.unfit}." for one in found.values() if one.unfit), "")

    def _hold(self, act: _Act, source: str, at: int) -> None:
        """Have the ranks hold after step ``at``; those that are paused go on once all know of it."""
        paused, act.hold = act.hold, _Hold(act.run, source, at)
        act.tries += 1
        act.counts = {}
        request = act.request
        order = HoldSteps(act.hold.key, act.run.run, source, at, act.number, request.act.words, request.by)
        self._say(act, f"The ranks are to stand after step {at}.")

        def armed(found: dict[int, StepState]) -> None:
            ready = len(found) == len(act.run.ranks) and all(one.state in ("armed", "held") for one in found.values())
            if ready and paused is not None:
                self._holds.pop(act.run.run, None)
                self._leave(paused)
            if ready:
                act.armed = found
                self._again(act, lambda: self._await(act), POLL)
            elif all(one.state in ("armed", "held") for one in found.values()):
                self._again(act, tell, POLL)  # some are silent
            elif paused is not None:
                self._fail(act, "Not all ranks took the step.")
            else:
                self._retry(act, found)

        def tell() -> None:
            self._ask(act, act.run.ranks, armed, order)

        tell()

    def _retry(self, act: _Act, found: dict[int, StepState]) -> None:
        """Try a later step, since not all ranks have stood after the one that was chosen."""
        hold, act.hold = act.hold, None
        if hold is not None:
            self._leave(hold)
        if found and (why := self._unfit(act, found)):
            self._fail(act, why)
        elif act.tries >= len(MARGINS):
            self._fail(act, "The ranks did not come to stand after one step: their loops are not alike.")
        else:
            act.first = {}
            self._again(act, lambda: self._look(act), POLL)

    def _await(self, act: _Act) -> None:
        assert act.hold is not None
        self._ask(act, act.run.ranks, lambda found: self._awaited(act, found), ReadSteps(act.hold.key))

    def _awaited(self, act: _Act, found: dict[int, StepState]) -> None:
        hold = act.hold
        assert hold is not None
        late = sorted(rank for rank, one in found.items() if one.state in ("late", "left", "none"))
        if why := self._unfit(act, found):
            self._fail(act, why)
        elif late and act.kind == "step":
            self._fail(act, f"{count_ranks(late).capitalize()} did not stop after step {hold.at}. The loop goes on.")
        elif late:
            self._retry(act, found)
        elif len(found) == len(act.run.ranks) and all(one.state == "held" for one in found.values()):
            if act.kind in ("pause", "step"):
                self._pause(act, hold)
            else:
                self._check(act)
        else:
            counts = {rank: one.counts.get(hold.source, 0) for rank, one in found.items()}
            if any(count > act.counts.get(rank, -1) for rank, count in counts.items()):
                act.deadline = time.monotonic() + act.request.patience
            act.counts.update(counts)
            if act.kind != "step" and self._is_past(act, hold, found):
                act.past.add(hold.source)
                self._retry(act, found)
            else:
                self._again(act, lambda: self._await(act), POLL)

    def _is_past(self, act: _Act, hold: _Hold, found: dict[int, StepState]) -> bool:
        """Whether the loop that was to stand has ended, as it seems, and the cell is in another one."""
        if time.monotonic() < act.deadline - act.request.patience / 2 or len(found) < len(act.armed):
            return False
        grown = {
            source
            for source in SOURCES
            for rank, one in found.items()
            if one.counts.get(source, 0) > act.armed[rank].counts.get(source, 0)
        }
        others = [source for source in grown if all(one.counts.get(source, 0) for one in found.values())]
        return hold.source not in grown and bool(others)

    def _why_unpaused(self, act: _Act) -> str:
        why = self._unpaused.get(act.run.run, "")
        return f" any more: {why}" if why else ""

    def _pause(self, act: _Act, hold: _Hold) -> None:
        self._holds[act.run.run] = hold
        self._unpaused.pop(act.run.run, None)
        hold.keep_at = time.monotonic() + KEEP
        self._end(act, f"All ranks are paused after step {hold.at}. %distributed resume lets them go on.", hold.at)

    def _check(self, act: _Act) -> None:
        self._carry_out(act, check=True, then=lambda found: self._checked(act, found))

    def _checked(self, act: _Act, found: dict[int, Acted]) -> None:
        if act.kind == "rewind" and all(one.ok for one in found.values()):
            self._choose_state(act, found)
        elif all(one.ok for one in found.values()):
            self._carry_out(act, check=False, then=lambda done: self._done(act, done))
        else:
            self._fail(act, refusal(found))

    def _choose_state(self, act: _Act, found: dict[int, Acted]) -> None:
        """Have the ranks load a state that all of them have: one may have kept none where its part was not finite."""
        kept = [{int(step) for step in one.text.split(",")} for one in found.values()]
        steps = sorted(set.intersection(*kept), reverse=True)
        wanted = act.request.act.count
        if wanted > len(steps):
            self._fail(act, f"The ring has {quantity(len(steps), 'state')} that all ranks have.")
            return
        chosen = msgspec.structs.replace(act.request.act, count=steps[wanted - 1])
        act.request = msgspec.structs.replace(act.request, act=chosen)
        self._carry_out(act, check=False, then=lambda done: self._done(act, done))

    def _carry_out(self, act: _Act, *, check: bool, then: Callable[[dict[int, Acted]], None]) -> None:
        hold, ranks = act.hold, act.run.ranks
        assert hold is not None
        hold.stage += 1
        act.deadline = time.monotonic() + act.request.patience if check else math.inf
        order = CarryOut(hold.key, hold.stage, act.number, act.request.by, act.request.act, check)
        began = time.monotonic()
        what = "look whether it can be done" if check else "do it"
        self._say(act, f"The ranks stand after step {hold.at}, and {what}.")

        def said(found: dict[int, StepState]) -> None:
            acted = {
                rank: one.found for rank, one in found.items() if one.done >= order.stage and one.found is not None
            }
            gone = sorted(rank for rank, one in found.items() if rank not in acted and one.state not in _STANDS)
            if gone:
                self._fail(act, f"{count_ranks(gone).capitalize()} {'was' if len(gone) == 1 else 'were'} stopped.")
            elif len(acted) == len(ranks):
                then(acted)
            else:
                pause = min(SLOW_POLL, POLL + (time.monotonic() - began) / 20)
                self._again(act, lambda: self._ask(act, ranks, said, order), pause)

        self._ask(act, ranks, said, order)

    def _done(self, act: _Act, found: dict[int, Acted]) -> None:
        hold = act.hold
        assert hold is not None
        words, failed = describe_act(act.kind, hold.at, found), ""
        if raised := sorted(rank for rank, one in found.items() if not one.ok):
            goes_on = "The loop is paused still." if self._is_paused(act) else "The loop goes on."
            if act.request.act.strict:
                goes_on = "The loop has ended on all ranks, as --strict asks for."
                failed = (
                    f"The code between two steps has raised on {count_ranks(raised)}, and was asked for with --strict."
                )
            words = f"{words} {goes_on}"
        if not self._is_paused(act) or failed:
            self._holds.pop(act.run.run, None)
            self._leave(hold, failed)
        else:
            hold.keep_at = time.monotonic() + KEEP
        self._end(act, words, hold.at, found)

    # Parts of it.

    def _is_paused(self, act: _Act) -> bool:
        return act.hold is not None and self._holds.get(act.run.run) is act.hold

    def _ask(
        self,
        act: _Act,
        ranks: list[int],
        then: Callable[[dict[int, StepState]], None],
        question: AgentRequest[StepState],
    ) -> None:
        """Ask ranks; ``then`` gets the answers of those that have answered, unless the act is over by then."""

        def said(answers: Answers[StepState]) -> None:
            if self._act is act:
                self._asking, act.answers = False, answers
                then({rank: one for rank, one in answers.items() if one is not None})

        self._asking = True
        self._questions.ask(ranks, ANSWER, said, question)

    def _late(self, act: _Act) -> str:
        """The words for an act whose time is over."""
        seconds = f"{act.request.patience:g} s"
        if unheard := silent(act.answers):
            return f"{count_ranks(unheard).capitalize()} did not answer within {seconds}."
        states = {rank: one for rank, one in act.answers.items() if one is not None}
        if act.hold is not None and act.hold.stage:
            still = sorted(rank for rank, one in states.items() if one.done < act.hold.stage)
            return f"{count_ranks(still).capitalize()} did not look at it within {seconds}."
        if act.hold is not None:
            still = sorted(rank for rank, one in states.items() if one.state != "held")
        else:
            still = sorted(rank for rank, one in states.items() if not any(one.counts.values()))
        if still and len(still) < len(states):
            has = "has" if len(still) == 1 else "have"
            return (
                f"{count_ranks(still).capitalize()} {has} made no step within {seconds}: %distributed stacks shows "
                f"where."
            )
        return (
            f"No step was seen within {seconds}. Steps are those of an optimizer, the items of progress() and tqdm, or "
            f"calls of jupyter_dtrain.step() in your loop."
        )

    def _again(self, act: _Act, then: Callable[[], None], seconds: float) -> None:
        """Do ``then`` in so many seconds, unless the act's time is over."""
        now = time.monotonic()
        if now >= act.deadline:
            goes_on = act.kind == "step" and act.run.run not in self._holds
            self._fail(act, f"{self._late(act)} The loop goes on." if goes_on else self._late(act))
            return
        act.next, act.due = then, now + seconds
        self._post(lambda: None)

    def _say(self, act: _Act, words: str) -> None:
        act.state = SteerState("going on", words, act.run.run)

    def _end(self, act: _Act, words: str, step: int, found: dict[int, Acted] | None = None) -> None:
        act.state = SteerState("done", words, act.run.run, step, found or {})
        self._act, self._asking = None, False
        self._post(lambda: None)

    def _fail(self, act: _Act, words: str) -> None:
        """End an act that was not carried out on all ranks, and let those go on that it has held."""
        hold = act.hold
        began = hold is not None and hold.stage > 0 and act.deadline == math.inf
        if hold is not None and not self._is_paused(act):
            self._leave(hold)
        elif hold is not None:
            hold.keep_at = time.monotonic() + KEEP
        paused = "The loop is paused still." if act.run.run in self._holds else ""
        self._refuse(act, words, paused, began=began)
        self._act, self._asking = None, False
        self._post(lambda: None)

    def _refuse(self, act: _Act, words: str, more: str = "", *, began: bool = False) -> None:
        nothing = "It may have been done on some ranks." if began else "Nothing was changed."
        if act.kind in ("pause", "resume", "step"):
            nothing = ""
        said = " ".join(filter(None, (words, nothing, more)))
        act.state = SteerState("failed", said, act.run.run, act.hold.at if act.hold is not None else 0)

    def _leave(self, hold: _Hold, failed: str = "") -> None:
        """Let ranks go on, or forget the step if they have not come to it; silent ones are told again."""
        order = LeaveSteps(hold.key, failed)

        def tell(ranks: list[int], tries: int) -> None:
            def said(answers: Answers[StepState]) -> None:
                if tries > 1 and (unheard := silent(answers)):
                    tell(unheard, tries - 1)

            self._questions.ask(ranks, ANSWER, said, order)

        tell(hold.run.ranks, LEAVING)

    def _keep(self, hold: _Hold) -> None:
        """Have paused ranks hear that they are still wanted, and end a pause that a rank has left, as by Stop."""

        def said(answers: Answers[StepState]) -> None:
            gone = [rank for rank, one in answers.items() if one is not None and one.state not in _STANDS]
            if gone and self._holds.get(hold.run.run) is hold:
                # The others must not stand for ever, while it waits for them.
                del self._holds[hold.run.run]
                self._unpaused[hold.run.run] = f"{count_ranks(gone)} {'was' if len(gone) == 1 else 'were'} stopped"
                self._leave(hold)

        self._questions.ask(hold.run.ranks, ANSWER, said, ReadSteps(hold.key))


_STANDS: Final = ("held", "working")


def _chosen(runs: list[OpenRun], number: int | None) -> OpenRun:
    """The run ``number``, or the only one of ``runs``. Raises :class:`Refused`."""
    if not runs:
        raise Refused("no cell is running in this world, so there is no loop to act on")
    if number is None and len(runs) == 1:
        return runs[0]
    found = next((run for run in runs if run.run == number), None)
    if found is None:
        going = ", ".join(str(run.run) for run in runs)
        raise Refused(
            f"several cells are running ({going}): name one with --run"
            if number is None
            else f"run {number} does not go on; {going} does"
        )
    return found
