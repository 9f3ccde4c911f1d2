"""Observes one world: its steward's reports, and its runs, those that go on and the newest.

Under failure: a silent steward makes the world ``unreachable`` until it answers; the end of the steward ends the
observation, and the observatory forgets the world.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from jupyter_dtrain.core.errors import Refused
from jupyter_dtrain.core.hangs import HangDetector
from jupyter_dtrain.core.stacks import describe_stacks
from jupyter_dtrain.core.world import AddressedRank, time_left
from jupyter_dtrain.launch import worlds
from jupyter_dtrain.store.source import SpoolFolder
from jupyter_dtrain.view.run_state import rank_state
from jupyter_dtrain.wire.messages import PROTOCOL, check_protocol, explain_protocol
from jupyter_dtrain.wire.steward_messages import (
    ReadState,
    ReadStatus,
    WorldEnded,
    WorldState,
    WorldStatus,
)

from .alarms import Alarms
from .follower import SKIPPED, FollowedRun, Follower, tail
from .messages import Driver, NewsMessage, RanksMessage, RunMessage, World, WorldRank
from .profiles import Profiles
from .replay import Replays
from .steward import Silent, Steward

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyter_dtrain.core.events import RankState
    from jupyter_dtrain.core.stacks import Stacks
    from jupyter_dtrain.core.start_failures import StartFailure
    from jupyter_dtrain.core.world import Client
    from jupyter_dtrain.view.document import RankState as RunRankState

    from .messages import CellOutputs, Message, WorldPhase
    from .pages import Pages

CLOSELY: Final = 0.25
"""Seconds between two looks at a world that a page watches, while it works."""
LOOSELY: Final = 1.0
FLUSH: Final = 0.5
"""Seconds between two messages about a run."""
BYTES_PER_SECOND: Final = 40_000
"""The rough limit for these messages."""
NORMAL: Final = 5.0
"""Seconds for which it is normal that a rank stands still in a call that needs other ranks."""
ASK: Final = 2.0
"""Seconds between two questions about what ranks wait for."""
YOUNG: Final = 10.0
"""Seconds that a new steward may take until its first answer."""
LAST_WORDS: Final = 0.05
"""Seconds in which the last broadcast of a steward that has ended is there, if there is one."""


class Monitor:
    """Observes one world. All methods are for the server's event loop."""

    def __init__(self, listing: worlds.Listing, pages: Pages) -> None:
        self.listing, self.size = listing, listing.size
        self._pages = pages
        self._alarms = Alarms(listing, pages.attention)
        self._steward: Steward | None = None
        self._state: WorldState | WorldStatus | None = None
        """The steward's last report; a :class:`.WorldStatus` if the world speaks another protocol."""
        self._silent = ""
        self._ranks: list[AddressedRank] = []
        self._incarnation = 0
        self._waits: dict[int, str] = {}
        self._frameworks: list[str] = []
        self._ranks_told: list[WorldRank] = []
        self._ranks_at = 0.0
        self._follower: Follower | None = None
        self._replays: Replays | None = None
        self._runs: dict[int, FollowedRun] = {}
        """The runs that go on, and the newest, by number, lowest first."""
        self._hang_notice = 0.0
        self._ask_at = 0.0
        self._failure: StartFailure | None = None
        """Why the newest start has failed."""
        self._expected = False
        """Whether a page has asked for the newest start: it must show how that ends."""
        self._end = ""
        """Why the world has ended, in the steward's words."""
        self._wake = asyncio.Event()
        self._questions: set[asyncio.Task[None]] = set()
        self._profiles = Profiles(listing)
        self.summary = self._summarise()

    # Its state, for pages.

    def _summarise(self) -> World:
        state, listing = self._state, self.listing
        young = state is None and time.time() - listing.created < YOUNG
        phase = "unreachable" if self._silent and not young else "starting" if state is None else state.phase
        if self._failure is not None:
            phase = "failed"
        other = "" if self._speaks_alike else explain_protocol(listing.name, listing.protocol, listing.version)
        runs = list(self._runs.values())
        return World(
            id=listing.id,
            name=listing.name,
            cwd=listing.cwd,
            state=cast("WorldPhase", phase),
            words=self._silent if phase == "unreachable" else other or ("" if state is None else state.reason),
            progress=self._progress() if phase == "starting" else "",
            failure=self._failure,
            size=self.size,
            ready=listing.size if other else len(self._ranks),
            nodes=len({rank.node for rank in self._ranks}),
            dead=sum(rank.state == "dead" for rank in self._ranks),
            frameworks=self._frameworks,
            started=listing.created,
            lease_end=self._lease_end(),
            left=time_left(state.ends) if isinstance(state, WorldState) else "",
            driver=Driver.of(state),
            run=runs[-1].summary() if runs else None,
            runs=[run.summary() for run in runs if run.fold.unfinished],
        )

    def _progress(self) -> str:
        """How far the start has come, in words."""
        state = self._state
        said = (state.progress, state.busy) if isinstance(state, WorldState) else ()
        return "; ".join(word for word in said if word) or "its main process starts"

    def _lease_end(self) -> float | None:
        """When the world ends unless a client drives it; None while one does. Rounded, because it wavers."""
        if self._state is None or self._state.driven:
            return None
        return round((time.time() + self._state.lease_left) / 5) * 5.0

    def introduction(self) -> list[Message]:
        """The messages for a page that begins to watch the world."""
        messages: list[Message] = [self._ranks_message()]
        return messages + [self._start_of(run) for run in self._runs.values()]

    def _ranks_message(self) -> RanksMessage:
        return RanksMessage(world=self.listing.id, ranks=self._rank_rows())

    def _rank_rows(self) -> list[WorldRank]:
        return [
            WorldRank(
                rank.rank,
                rank.node,
                rank.host,
                rank.local_rank,
                rank.device,
                rank.pid,
                state,
                rank.words or self._words_of(rank.rank, state),
                self._waits.get(rank.rank, "") if state in ("running", "waiting") else "",
                rank.role,
                self._is_fresh(rank),
            )
            for rank in self._ranks
            for state in [self._rank_state(rank)]
        ]

    def _words_of(self, rank: int, state: str) -> str:
        """The error that ended the newest run of ``rank``, if it has failed there."""
        runs = [run for run in self._runs.values() if rank in run.ranks]
        return runs[-1].run_state.words.get(rank, "") if runs and state in ("error", "released") else ""

    def _rank_state(self, rank: AddressedRank) -> RankState | RunRankState:
        """The state of ``rank`` in the one word that every place shows, see :func:`.rank_state`."""
        run = self._run_of(rank)
        in_run = None if run is None else run.run_state.shown(rank.rank)
        over = run is None or not run.fold.unfinished
        sample = None if run is None else run.fold.ranks[rank.rank].sample
        waits = rank.rank in self._waits and sample is not None and sample.still >= NORMAL
        replaced = self._is_fresh(rank)
        return rank_state(rank.state, in_run, over=over, waits=waits, replaced=replaced)

    def _run_of(self, rank: AddressedRank) -> FollowedRun | None:
        """The run that goes on in which ``rank`` takes part, or else its newest."""
        runs = [run for run in self._runs.values() if rank.rank in run.ranks]
        return next((run for run in runs if rank.rank in run.fold.unfinished), runs[-1] if runs else None)

    def _is_fresh(self, rank: AddressedRank) -> bool:
        """Whether another process was ``rank`` in that run."""
        run = self._run_of(rank)
        return run is not None and run.fold.pids.get(rank.rank, rank.pid) != rank.pid

    def _start_of(self, run: FollowedRun) -> RunMessage:
        """The message that starts a run on a new page; pages that have it first get their pending changes."""
        with run.lock:
            self._flush(run)  # so that the document and the next message fit together
            return RunMessage(world=self.listing.id, source=run.source, document=run.document())

    # The loop.

    def wake(self) -> None:
        """Have the loop look at the world at once."""
        self._wake.set()

    @property
    def failed(self) -> bool:
        """Whether the newest start of the world has failed."""
        return self._failure is not None

    def expect(self, *, expected: bool = True) -> None:
        """Note that a page has asked for this start or restart; with False, that a person has read how it failed."""
        self._expected = expected
        self.wake()

    async def observe(self) -> None:
        """Observe until the world is gone."""
        while worlds.is_alive(self.listing):
            await self.refresh()
            await self._follow()
            watched = self._pages.is_watched(self.listing.id)
            starts = self._state is not None and self._state.phase == "starting"
            works = any(run.fold.unfinished for run in self._runs.values())
            await self._pause(CLOSELY if starts or (watched and works) else LOOSELY)

    @property
    def _going_on(self) -> list[int] | None:
        """The numbers of the runs that go on; None where the steward does not say."""
        if self._silent or not isinstance(self._state, WorldState):
            return None
        return [one.run for one in self._state.runs]

    async def _pause(self, seconds: float) -> None:
        """Wait for a broadcast of the steward or a call of :meth:`wake`, for ``seconds`` at most."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._wake.wait())]
        if self._steward is not None:
            waits.append(asyncio.ensure_future(self._steward.hear(seconds)))
        try:
            done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        self._wake.clear()
        for task in done:
            with contextlib.suppress(Refused):  # the world speaks another protocol
                self._take_broadcast(task.result())

    def _take_broadcast(self, event: Any) -> None:
        if isinstance(event, WorldEnded):
            self._end = event.words

    async def hear_out(self) -> None:
        """Take what a steward that has ended said last. Not while :meth:`observe` runs."""
        with contextlib.suppress(Refused):
            while self._steward is not None and (event := await self._steward.hear(LAST_WORDS)) is not None:
                self._take_broadcast(event)

    async def refresh(self) -> None:
        """Ask the steward for the world's state."""
        try:
            if self._speaks_alike:
                self._take_state(await self.steward().ask(ReadState()))
            else:
                self._state = await self.steward().ask(ReadStatus())
            self._silent = ""
        except (Silent, Refused) as silent:
            self._silent = str(silent)
        self._send_changes()

    @property
    def _speaks_alike(self) -> bool:
        return self.listing.protocol == PROTOCOL

    def _check_protocol(self) -> None:
        """Raise :class:`OtherVersion` where the world speaks another protocol."""
        check_protocol(self.listing.name, self.listing.protocol, self.listing.version)

    def _take_state(self, state: WorldState) -> None:
        # The first report shows no restart, whatever its number: this monitor has seen nothing before it.
        known, self._state = self._state is not None, state
        self._ranks = state.world.ranks
        self.size = state.size
        if self._follower is None:
            self._hang_notice = state.hang_notice
            self._follower = Follower(SpoolFolder(state.spool, SKIPPED), state.size)
            self._replays = Replays(SpoolFolder(state.spool, ("media",)), self.listing.id)
        self._follower.hosts, self._follower.size = {rank.rank: rank.host for rank in self._ranks}, state.size
        restarted = known and state.incarnation != self._incarnation
        self._incarnation = state.incarnation
        if restarted:
            self._alarms.restarted()
        self._failure = state.failure
        self._report_failure()
        followed = list(self._follower.runs.values())  # also those that a reading under way has just found
        for rank in self._ranks:
            if rank.state == "dead":
                for run in followed:
                    run.doom(rank.rank, rank.words)
        self._alarms.ranks_are(self._ranks)
        over = restarted or state.phase not in ("running", "starting")
        for run in followed if over else ():
            for number in run.fold.unfinished:
                run.doom(number, "its world was restarted" if restarted else "its world has ended")

    def _send_changes(self) -> None:
        summary = self._summarise()
        if summary != self.summary:
            self.summary = summary
            self._pages.worlds_changed.set()
        rows = self._rank_rows()
        for run in self._runs.values():
            if unfinished := set(run.fold.unfinished):
                here = [row for row in rows if row.rank in unfinished]
                shown: dict[int, Any] = {row.rank: row.state for row in here if row.state != "dead"}
                run.show(shown, {row.rank: row.waits for row in here if row.waits})
        # A row takes some 70 bytes: a world of thousands of ranks sends its rows less often, at the same rate of bytes.
        if rows != self._ranks_told and time.monotonic() >= self._ranks_at:
            self._ranks_told, self._ranks_at = rows, time.monotonic() + 70 * len(rows) / BYTES_PER_SECOND
            self._pages.send_about(self.listing.id, self._ranks_message())

    async def _follow(self) -> None:
        follower = self._follower
        if follower is None:
            return
        going_on = self._going_on
        if await asyncio.to_thread(follower.poll, going_on):
            self._wake.set()
        now = time.monotonic()
        for number in sorted(follower.runs.keys() - self._runs.keys()):
            self._begin_run(follower.runs[number], now)
        working = sorted({rank for run in self._runs.values() if run.fold.unfinished for rank in run.ranks})
        watched = self._pages.is_watched(self.listing.id)
        if watched and working and now >= self._ask_at:
            self._ask_at = now + ASK
            self._ask_where(working)
        for run in self._runs.values():
            self._attend(run, now)
            if watched and (now >= run.flush_at or not run.fold.unfinished):
                self._flush(run)
        # Not earlier: the end of a run is reported and flushed above, and afterwards nothing of it can be asked for.
        follower.leave()
        for number in self._runs.keys() - follower.runs.keys():
            del self._runs[number]
        self._send_changes()

    def _attend(self, run: FollowedRun, now: float) -> None:
        """Find what needs the person's attention."""
        for found in run.look(now):
            self._alarms.run_showed(run, found)
        if (asked := run.asked(now)) is not None:
            self._alarms.run_asks(run, asked)
        if run.fold.unfinished and run.failed != len(run.fold.errors):
            run.failed = len(run.fold.errors)
            self._alarms.ranks_failed(run)
        if not run.fold.unfinished and not run.over:
            run.over = True
            self._end_run(run)

    def _begin_run(self, run: FollowedRun, now: float) -> None:
        self._waits = {rank: call for rank, call in self._waits.items() if rank not in run.ranks}
        if run.fold.unfinished:
            fold, size, limit = run.fold, run.size, self._hang_notice
            show = functools.partial(self._alarms.run_hangs, run)
            run.hang_detector = HangDetector(fold, size, limit, self._ask_stacks, show, now)
        self._runs = dict(sorted([*self._runs.items(), (run.number, run)]))
        self._pages.send_about(self.listing.id, self._start_of(run))
        self._ask_at = 0.0
        self._alarms.run_began(run)

    def _end_run(self, run: FollowedRun) -> None:
        self._waits = {rank: call for rank, call in self._waits.items() if rank not in run.ranks}
        self._ask_where(run.ranks[:1])
        self._alarms.run_ended(run)

    def _report_failure(self) -> None:
        if self._failure is not None and self._expected:
            self._alarms.start_failed(self._failure, self._incarnation)

    def _flush(self, run: FollowedRun) -> None:
        """Send the run's changes to the pages that watch the world."""
        if not run.news and not run.points:
            return
        with run.lock:
            news, packet = run.message()
        message = NewsMessage(world=self.listing.id, **msgspec.structs.asdict(news))
        size = news.size
        if packet is not None:
            size += packet.size * 4 // 3
            values, steps = b64encode(packet.values).decode(), b64encode(packet.steps).decode()
            message = msgspec.structs.replace(message, values=values, steps=steps)
        run.flush_at = time.monotonic() + max(FLUSH, size / BYTES_PER_SECOND)
        self._pages.send_about(self.listing.id, message)

    # Questions to ranks, through the steward.

    def _ask_where(self, ranks: list[int]) -> None:
        async def asking() -> None:
            with contextlib.suppress(Silent, Refused):
                answers = (await self.peer().relay("state", ranks)).positions or {}
                found = {rank: one for rank, one in answers.items() if one is not None}
                others = {rank: call for rank, call in self._waits.items() if rank not in found}
                self._waits = others | {rank: one.waits.call for rank, one in found.items() if one.waits is not None}
                seen = {name for one in found.values() for name in one.frameworks}
                self._frameworks = sorted(seen or self._frameworks)
                self._send_changes()

        self._keep(asyncio.ensure_future(asking()))

    def _ask_stacks(self, ranks: list[int], then: Callable[[Stacks], None]) -> None:
        """Ask where ``ranks`` are; ``then`` gets the answers, on the loop. Returns at once."""

        async def asking() -> None:
            with contextlib.suppress(Silent, Refused):
                then((await self.peer().relay("stacks", ranks)).stacks or {})

        self._keep(asyncio.ensure_future(asking()))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    # Requests of a person.

    def steward(self) -> Steward:
        """The channel to the world's steward, opened if needed. Raises :class:`Silent`.

        It serves for the requests that every protocol has; see :meth:`peer` for the others.
        """
        if self._steward is None:
            self._steward = Steward(self.listing)
        return self._steward

    def peer(self) -> Steward:
        """The same for all requests. Raises :class:`Silent`; :class:`OtherVersion` for a world of another protocol."""
        self._check_protocol()
        return self.steward()

    def profiles(self) -> Profiles:
        """The profiles of running loops. Raises :class:`OtherVersion` as :meth:`peer`."""
        self._check_protocol()
        return self._profiles

    @property
    def driver(self) -> Client | None:
        """The client that drives the world, as far as its main process has said; None for another protocol's."""
        return self._state.driver if isinstance(self._state, WorldState) else None

    async def stacks(self, ranks: list[int] | None) -> str:
        """Where ranks are now, in words; None: all. Raises as :meth:`peer`."""
        steward = self.peer()
        if not self._ranks:
            await self.refresh()
        wanted = [rank.rank for rank in self._ranks] if ranks is None else ranks
        return describe_stacks((await steward.relay("stacks", wanted)).stacks or {})

    async def output(self, run: int, rank: int) -> dict[str, Any]:
        """The end of a rank's output.

        Raises :class:`Silent`, :class:`OSError` if no output is kept, and :class:`OtherVersion` as :meth:`peer`.
        """
        self._check_protocol()
        if not isinstance(self._state, WorldState):
            await self.refresh()
        if not isinstance(self._state, WorldState):
            raise Silent(self._silent)
        text, cut = await asyncio.to_thread(tail, self._state.spool, run, rank)
        return {"text": text, "cut": cut}

    async def cell(self, run: int, replay: str, since: int) -> CellOutputs | None:
        """The output of a run's cell after version ``since`` of ``replay``; None where there is no such run.

        Raises as :meth:`peer`.
        """
        self._check_protocol()
        if self._replays is None:
            await self.refresh()
        if self._replays is None:
            raise Silent(self._silent)
        followed, newest, going_on = self._runs.get(run), max(self._runs, default=0), self._going_on
        # The follower knows the end of the runs that it follows; an older one has ended unless the steward names it.
        over = followed is None and run < newest and going_on is not None and run not in going_on
        lost = {} if followed is None else followed.fold.lost
        return await asyncio.to_thread(self._replays.answer, run, self.size, replay, since, lost, over=over)

    def report_end(self) -> bool:
        """Report that the world is gone; return whether the list must keep it, as a page waits for its failed start."""
        self._alarms.ranks_ended()
        if self._failure is None:
            self._alarms.world_ended(self._end or (self._state and self._state.reason) or "its main process has ended")
            return False
        self._report_failure()
        return self._expected

    def close(self) -> None:
        """Stop observing: the world is gone, or no page is left."""
        for task in self._questions:
            task.cancel()
        self._profiles.close()
        if self._steward is not None:
            self._steward.close()
