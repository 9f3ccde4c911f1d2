"""Replaces dead ranks and changes how many ranks there are: the steward's part of a heal and of a resize.

:mod:`jupyter_dtrain.rank.healing` is the ranks'. A resize is a heal with another number of ranks at its end.

The living ranks say whether they are idle. Those that the world is to lose are ended. Then the others are asked to form
MPI's world with a new process for each dead rank and each further one; each reports that it has, and each new rank that
it is ready. Only then are all of them told to take that world, and clients hear of the new ranks. New ranks have the
numbers of the dead, or follow the highest one. A rank that lives gets another number only where a resize drops ranks
below it: :mod:`.state`.

A heal may also happen beside runs that the asking client names: they use nothing of all ranks, such as a training that
goes on without those that have died. Ranks that work on them form the world on a thread of their own, too.

Works on the supervisor's thread; no client is needed. Under failure: a rank that dies meanwhile, or does not come,
ends the try: the new processes are killed, the living ranks forget that world, and another try replaces all that are
dead by then. After :data:`TRIES` tries, or where healing cannot work at all, the heal says why and names the restart;
the living ranks have their variables and their old world then. Ranks that were ended for a resize are dead then, and a
heal starts them again. Every step has a deadline.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jupyter_dtrain.core.errors import Refused, package_gone
from jupyter_dtrain.core.world import AddressedRank, count_ranks, moves, numbers_without, quantity
from jupyter_dtrain.wire.agent_messages import SendSignal
from jupyter_dtrain.wire.healing_messages import (
    AbandonWorld,
    FormWorld,
    Heal,
    HealBegun,
    HealState,
    Heritage,
    ReadHeal,
    ReadHeritage,
    TakeWorld,
)
from jupyter_dtrain.wire.questions import Answers, Questions, ask_agents, silent
from jupyter_dtrain.wire.reports import Died, Formed, Reached
from jupyter_dtrain.wire.steward_messages import Broadcast, OpenRun, RanksReplaced

from .placement import PARTS_BY_NUMBER, RESTART, SAVE, fix, obstacle, place
from .state import Process, number_of, process_of

if TYPE_CHECKING:
    from jupyter_dtrain.core.world import AddressedWorld
    from jupyter_dtrain.wire.channels import RanksChannel
    from jupyter_dtrain.wire.requests import WorldRequest

    from .placement import Seats
    from .state import State

TRIES = 3
"""How often a heal tries, where ranks die meanwhile."""
PATIENCE = 3.0
"""Seconds that an idle rank may take to answer."""
FIRST_PATIENCE = 10.0
"""Seconds without a step after which the first try is over; later ones have as long as a start. See :meth:`_keep`."""
END_PATIENCE = 15.0
"""Seconds that ranks may take to end: the system frees their memory, which can be much."""
PAUSE = 0.3
"""Seconds between two tries, in which the new processes of the first one end."""

_log = logging.getLogger(__name__)


class HealOwner(NamedTuple):
    """The part of the supervisor that a heal needs."""

    state: State
    open_runs: Callable[[], list[OpenRun]]
    """The runs that go on."""
    died: Callable[[Died], None]
    """Gets the end of a rank that was new."""
    replaced: Callable[[list[int]], None]
    """Gets the numbers of new ranks."""
    notice: Callable[[str], None]
    """Shows users a sentence."""
    gpus: Mapping[str, int]
    """The GPUs of each host, by its watch."""
    seats: Seats
    """Where new ranks run."""


class Healing:
    """The heals of one world, one at a time."""

    def __init__(
        self,
        request: WorldRequest,
        owner: HealOwner,
        questions: Questions,
        bound: Callable[[], tuple[AddressedWorld, RanksChannel] | None],
        post: Callable[[Callable[[], None]], None],
        broadcast: Callable[[Broadcast], None],
    ) -> None:
        """``questions``, ``bound``, ``post`` and ``broadcast``: see :class:`.RankControl`."""
        self._request = request
        self._owner = owner
        self._state = owner.state
        self._questions = questions
        self._bound = bound
        self._post = post
        self._broadcast = broadcast
        self._starting = threading.Lock()
        """Held while a heal begins: a client asks on one thread, and the world heals itself on another."""
        self._number = 0
        self._heal: HealState | None = None
        """The newest heal; None before the first."""
        self._size = 0
        """How many ranks the world has after the newest heal."""
        self._leaving: list[int] = []
        """The ranks that are not part of the world after the newest heal."""
        self._numbers: dict[int, int] = {}
        """The number that each rank that stays has after the newest heal, by its number before."""
        self._local_ranks: dict[int, int] = {}
        """The local ranks that the living ranks have after the heal, as they report them."""
        self._dropped: list[int] = []
        """The ranks that the newest heal has ended, or ends, because the world is to lose them."""
        self._alone = False
        """Whether the world heals itself, without a client that asked for it."""
        self._beside: set[int] = set()
        """The runs that may go on during the heal."""
        self._tries, self._began = 0, 0.0
        self._notes: list[str] = []
        self._try = 0
        """The number of the newest try; no two tries of a world have one number."""
        self._forming: set[int] = set()
        """The living ranks that are yet to form the world; the new ones that are yet to be ready are in ``_coming``."""
        self._coming: set[int] = set()
        self._ordered: list[int] = []
        """The numbers of the new ranks of the newest try."""
        self._processes: set[Process] = set()
        """The new processes of the newest try."""
        self._kept: set[Process] = set()
        """New processes of tries that stood still. While they live, ``mpiexec`` gives their connections to no other."""
        self._new: dict[int, AddressedRank] = {}
        self._ends: list[Died] = []
        """Ends of new ranks that came while the others take the world: they count once that is done."""
        self._stage = ""
        """``asking``, ``dropping``, ``forming``, ``taking``, ``pausing``; empty outside a heal."""
        self._deadline = math.inf
        self._left_alone: list[int] = []
        """The dead ranks that could not be replaced, so that the world does not try it again by itself."""
        self.answers: dict[type[msgspec.Struct], Callable[[Any], msgspec.Struct]] = {
            Heal: self._asked,
            ReadHeal: self._read,
        }
        """The function that answers each request of a client, by the type of the request. Any thread may call it."""

    # Requests of clients.

    def _asked(self, heal: Heal) -> HealBegun:
        now = self._state.request.size
        size = now if heal.size is None else heal.size
        leaving = sorted({*heal.drop}) or list(range(size, now))
        if heal.drop:
            size = now - len(leaving)
        with self._starting:
            if self._goes_on and (size, leaving) != (self._size, self._leaving):
                raise Refused("a replacement or resize is still running: try again when it has ended")
            if self._goes_on:
                return HealBegun(self._number)
            if strange := [rank for rank in leaving if rank not in range(now)]:
                raise Refused(f"it has no {count_ranks(strange)}")
            if why := self._nothing_to_do(heal) or self._too_few_gpus(size) or self._obstacle(size, leaving):
                raise Refused(why)
            # A resize would change the numbers by which the runs divide their work.
            beside = heal.beside if heal.size is None and not heal.drop else ()
            return HealBegun(self._start(size, leaving, alone=False, beside=beside))

    def _nothing_to_do(self, heal: Heal) -> str:
        if self._state.dead or self._state.phase != "running" or heal.drop:
            return ""
        if heal.size is None:
            return "no rank is dead. %distributed broadcast copies variables from one rank to the others"
        return f"it has {heal.size} ranks already" if heal.size == self._state.request.size else ""

    def _too_few_gpus(self, size: int) -> str:
        """Why further ranks, which only this machine takes, cannot have the GPUs that ``--gpus-per-rank`` promises."""
        each, gpus = self._request.options.gpus_per_rank or 0, sum(self._owner.gpus.values())
        if size <= self._state.request.size or size * each <= gpus:
            return ""
        return f"it has {quantity(gpus, 'GPU')}, too few for {quantity(size, 'rank')} with {each} each"

    def _read(self, request: ReadHeal) -> HealState:
        if self._heal is None or request.number != self._number:
            raise Refused("There is no such replacement.")
        return self._heal

    @property
    def _step_patience(self) -> float:
        """Seconds that one step of this try may take."""
        longest = self._request.settings.start_timeout
        return min(FIRST_PATIENCE, longest) if self._tries == 1 else longest

    @property
    def _goes_on(self) -> bool:
        return self._heal is not None and self._heal.phase == "going on"

    def _obstacle(self, size: int, leaving: Collection[int] = ()) -> str:
        return package_gone().rstrip(".") or obstacle(self._state, self._owner.seats, size, leaving)

    def _fix(self) -> str:
        return fix(self._state, self._size)

    def _start(self, size: int, leaving: list[int], *, alone: bool, beside: Iterable[int] = ()) -> int:
        """Begin a heal and return its number. The caller holds ``_starting``."""
        self._number += 1
        self._beside = set(beside)
        now = self._state.request.size
        self._size, self._leaving, self._numbers = size, leaving, numbers_without(leaving, now)
        self._state.changing = (
            f"The world is being resized from {now} to {size} ranks" if size != now else "Dead ranks are being replaced"
        )
        self._heal = HealState("going on", "asking the living ranks")
        # Whatever goes wrong from here on, no cell waits for ever.
        self._stage, self._deadline = "asking", time.monotonic() + 2 * PATIENCE
        self._alone = alone
        self._post(self._begin)
        return self._number

    # The supervisor's thread.

    def _begin(self) -> None:
        self._tries, self._began, self._notes, self._dropped = 0, time.monotonic(), [], []
        self._questions.ask(self._living(), PATIENCE, self._heard, ReadHeritage())

    def _living(self) -> list[int]:
        return [rank.rank for rank in self._state.ranks if not rank.has_ended]

    def _heard(self, answers: Answers[Heritage]) -> None:
        if not self._goes_on:
            return
        busy = {rank: one.run for rank, one in answers.items() if one is not None and one.run is not None}
        busy = {rank: run for rank, run in busy.items() if run not in self._beside}
        if busy:
            ranks = count_ranks(sorted(busy))
            self._fail(
                f"{ranks} still {'work' if len(busy) > 1 else 'works'} on run {max(busy.values())}: wait until "
                f"it ends, or interrupt it with %distributed interrupt"
            )
        elif mute := [rank for rank in silent(answers) if rank in self._living()]:
            they, them = ("do", "them") if len(mute) > 1 else ("does", "it")
            self._fail(
                f"{count_ranks(mute)} {they} not answer; %distributed kill {','.join(map(str, mute))} ends {them}, "
                f"and %distributed replace replaces {them} too"
            )
        elif why := next((words for one in answers.values() if one is not None for words in one.obstacles), ""):
            self._fail(f"{why}: {self._fix()}")
        elif (self._leaving and (set(answers) & {*self._leaving} or moves(self._numbers))) and (
            why := next((words for one in answers.values() if one is not None for words in one.spread), "")
        ):
            self._fail(f"{why}. {SAVE if set(answers) & {*self._leaving} else PARTS_BY_NUMBER}")
        else:
            self._notes = list(
                dict.fromkeys(words for one in answers.values() if one is not None for words in one.notes)
            )
            self._drop()

    def _drop(self) -> None:
        """Kill the ranks that leave the world, or go on at once if there are none."""
        self._dropped = [rank for rank in self._living() if rank in self._leaving]
        if not self._dropped:
            self._form()
            return
        self._stage, self._deadline = "dropping", time.monotonic() + END_PATIENCE
        self._say(f"ending {count_ranks(self._dropped)}")
        self._signal(
            [process_of(rank) for rank in self._state.ranks if rank.rank in self._dropped], "by %distributed resize"
        )

    def _form(self) -> None:
        """Begin a try: ask the living ranks to form MPI's world with new processes."""
        bound, living = self._bound(), self._living()
        if bound is None or (why := self._obstacle(self._size, self._leaving)):
            self._fail(why if bound is not None else "the world has ended")
            return
        self._tries += 1
        self._try += 1
        try:
            seats = place(self._state, self._owner.seats, self._size, self._numbers)
        except Refused as refused:
            self._fail(f"{refused}: {self._fix()}")
            return
        self._ordered = [*seats]
        self._stage, self._new, self._ends, self._local_ranks = "forming", {}, [], {}
        self._processes = set()
        self._forming, self._coming = set(living), set(self._ordered)
        self._deadline = time.monotonic() + self._step_patience
        self._say(f"starting {count_ranks(self._ordered)}" if self._ordered else "joining the ranks that stay")
        generation, command = self._state.next_generation(), self._owner.seats.command
        hosts = [seat.host for seat in seats.values() if seat.host]
        keeps = any(self._owner.gpus.get(rank.watch, 0) for rank in self._state.ranks)
        order = FormWorld(self._try, self._size, self._ordered, generation, command, hosts, self._leaving, keeps)
        ask_agents(*bound, living, order)

    def reached(self, report: Reached) -> None:
        """Take the report of a new process about how far it is."""
        if self._stage != "forming" or process_of(report) in self._kept:
            self._kill([process_of(report)])  # it comes too late
            return
        self._processes.add(process_of(report))
        self._deadline = time.monotonic() + self._step_patience
        self._say(f"rank {report.rank} {'has joined MPI' if report.step == 'mpi' else 'starts'}")

    def formed(self, report: Formed) -> None:
        """Take the report of a living rank that it has formed the world, or why it could not."""
        if report.number != self._try or self._stage != "forming":
            return
        if report.words:
            self._again(f"rank {report.rank}: {report.words}")
            return
        self._forming.discard(report.rank)
        self._local_ranks[report.rank] = report.local_rank
        self._take_if_whole()

    def ready(self, rank: AddressedRank) -> None:
        """Take the report of a new rank that it can run cells."""
        if self._stage != "forming" or rank.rank not in self._coming or process_of(rank) in self._kept:
            self._kill([process_of(rank)])
            return
        self._coming.discard(rank.rank)
        self._new[rank.rank] = rank
        self._take_if_whole()

    def number_of(self, died: Died) -> int | None:
        """The rank that has died; None where the process is no rank of the world, or not yet under its number."""
        number = number_of(self._state.ranks, died)
        if self._stage == "taking" and number != died.rank:
            self._ends.append(died)
            return None
        if self._stage == "forming" and number is None and process_of(died) in self._processes:
            self._again(died.words)
        return number

    def rank_died(self, rank: int) -> None:
        """Note that a rank of the world has died: a try in which that happens is over."""
        if self._stage == "dropping" and not {*self._dropped} & {*self._living()}:
            self._form()
        elif self._stage == "forming":
            self._again(f"rank {rank} died during the {'heal' if self._size == self._state.request.size else 'resize'}")

    def _take_if_whole(self) -> None:
        if self._forming or self._coming:
            return
        if runs := [run for run in self._owner.open_runs() if run.run not in self._beside]:
            # Its cell was on its way when the ranks said that they are idle.
            self._abandon()
            self._fail(f"run {runs[-1].run} began meanwhile: try again when it has ended")
            return
        self._stage, self._deadline = "taking", time.monotonic() + 2 * PATIENCE
        self._questions.ask(self._living(), PATIENCE, lambda _: self._done(), TakeWorld(self._try))

    def _done(self) -> None:
        if self._stage != "taking":
            return
        ranks, ends = [self._new[number] for number in sorted(self._new)], self._ends
        generation = self._state.replace(ranks, self._size, self._numbers, self._local_ranks)
        numbers, others = [rank.rank for rank in ranks], moves(self._numbers).values()
        moved = [rank for rank in self._state.ranks if rank.rank in others and rank.rank not in numbers]
        self._owner.replaced(numbers + [rank.rank for rank in moved])
        self._broadcast(RanksReplaced(ranks=ranks + moved, size=self._size, generation=generation))
        seconds = time.monotonic() - self._began
        self._stage, self._deadline, self._state.changing = "", math.inf, ""
        self._dropped, self._processes = [], set()
        self._end_kept()
        self._heal = HealState("done", f"{seconds:.1f} s", ranks, self._size, generation, self._notes, moved)
        words = "The world has %s ranks after %.1f s, new are %s, without %s of before"
        _log.info(words, self._size, seconds, numbers, self._leaving)
        if self._alone:
            old = min(rank for rank in self._living() if rank not in numbers)
            self._owner.notice(
                f"The world has replaced {count_ranks(numbers)} by itself, in {seconds:.1f} s. New ranks have no "
                f"variables. %distributed broadcast --from {old} NAMES copies the variables that you name from rank "
                f"{old}." + "".join(f" {words}." for words in self._notes)
            )
        for died in ends:
            self._owner.died(died)

    def _again(self, why: str) -> None:
        _log.warning("Try %s to replace ranks has failed: %s", self._tries, why)
        self._abandon()
        if self._tries >= TRIES:
            self._fail(f"{why}, and this was try {TRIES} of {TRIES}: try again; otherwise, {self._fix()}")
        else:
            self._stage, self._deadline = "pausing", time.monotonic() + PAUSE
            self._say(f"trying again: {why}")

    def _abandon(self) -> None:
        if (bound := self._bound()) is not None:
            ask_agents(*bound, self._living(), AbandonWorld())
        self._kill(self._processes)
        self._new, self._coming, self._forming = {}, set(), set()

    def _kill(self, processes: Iterable[Process]) -> None:
        """Kill new processes. A number says too little: a living rank may have it, until the world is taken."""
        known = {process_of(rank) for rank in self._state.ranks if not rank.has_ended}
        self._signal({*processes} - known, "because the ranks were replaced")

    def _signal(self, processes: Iterable[Process], reason: str) -> None:
        """Have the watches kill ``processes`` (SIGKILL); ``reason`` stands in the report of their deaths."""
        if (bound := self._bound()) is not None:
            for watch, pid in processes:
                bound[1].ask(watch, SendSignal(-1, int(signal.SIGKILL), reason, pid))

    def _keep(self) -> None:
        """Let the new processes of a try in which nothing moved live until the heal is over.

        ``mpiexec`` may have given them connections that it does not answer (see docs/architecture/10). The next try
        would get the same ones if these were free.
        """
        self._kept |= self._processes
        self._processes = set()

    def _end_kept(self) -> None:
        kept, self._kept = self._kept, set()
        self._kill(kept)

    def _fail(self, why: str) -> None:
        self._end_kept()
        self._stage, self._deadline, self._state.changing = "", math.inf, ""
        self._left_alone = self._state.dead
        dropped, self._dropped = self._dropped, []
        if ended := [rank for rank in dropped if rank in self._left_alone]:
            why += f". The resize had already ended {count_ranks(ended)}"
            if not self._obstacle(self._state.request.size):
                why += f"; %distributed replace replaces {'them' if len(ended) > 1 else 'it'}"
        self._heal = HealState("failed", why)
        if self._alone:
            self._owner.notice(f"The world could not replace {count_ranks(self._left_alone)} by itself: {why}.")

    def _say(self, words: str) -> None:
        self._heal = HealState("going on", words)

    def forget(self) -> None:
        """End the heal without a result: the ranks are gone."""
        if self._goes_on:
            self._heal = HealState("failed", "the world was restarted or has ended")
        self._stage, self._deadline, self._left_alone = "", math.inf, []
        self._kept.clear()
        self._state.changing = ""

    def tick(self, now: float) -> float:
        """Do what is due; return when more is due, in ``time.monotonic()`` seconds."""
        if self._stage in ("dropping", "forming", "pausing") and not self._state.healable:
            self._abandon()
            self._fail(self._obstacle(self._size, self._leaving))
        if now >= self._deadline:
            if self._stage == "pausing" and any(rank.state == "unreachable" for rank in self._state.ranks):
                self._deadline = now + PAUSE  # it counts as dead once its last output has come
            elif self._stage == "pausing":
                self._form()
            elif self._stage == "dropping":
                left = [rank for rank in self._dropped if rank in self._living()]
                self._fail(f"{count_ranks(left)} did not end within {END_PATIENCE:g} s")
            elif self._stage == "forming":
                missing = sorted(self._forming | self._coming)
                self._keep()
                self._again(f"{count_ranks(missing)} made no progress for {self._step_patience:g} s")
            else:
                self._kill(self._processes)
                words = f"a fault of jupyter-dtrain stopped it (step {self._stage!r}), and the world's log says why"
                self._fail(f"{words}: {RESTART}")
        if self._request.options.auto_replace and not self._goes_on:
            self._heal_alone()
        return self._deadline

    def _heal_alone(self) -> None:
        dead = self._state.dead
        if not dead or dead == self._left_alone or self._owner.open_runs():
            return
        if any(rank.state == "unreachable" for rank in self._state.ranks):
            return  # they are replaced together
        if self._state.phase != "running" or len(dead) == len(self._state.ranks):
            return
        size = self._state.request.size
        with self._starting:
            if self._goes_on:
                return
            if why := self._obstacle(size):
                self._alone = True
                self._fail(why)
            else:
                self._start(size, [], alone=True)
