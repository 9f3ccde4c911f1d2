"""A client's link to its world: what it knows of the world, the way to ranks and steward, and the lease.

A world has one driver, the client that may run cells and renews the lease; every other client observes. The steward
decides which client drives: when a link is made, and whenever another client takes over.

Under failure: the link sends a request that gets no answer again. The steward's answers make up for a lost broadcast:
its answer to each renewal of the lease, and to the question before each cell, repeats the news of earlier broadcasts.
When a rank does not answer, the link renews at once. The link notices within a second that its steward is gone, and a
request notices at once; from then on every call raises :class:`~jupyter_dtrain.core.errors.WorldLost`, and the link's
threads and sockets end. Thread-safe.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from jupyter_dtrain.core.errors import NoWorld, RanksBusy, RanksDead, ReadOnly, Refused, StartFailed, WorldLost
from jupyter_dtrain.core.processes import own_process
from jupyter_dtrain.core.start_failures import AGAIN
from jupyter_dtrain.core.world import AddressedRank, AddressedWorld, Client, Ranks, count_ranks, parse_ranks
from jupyter_dtrain.launch import worlds
from jupyter_dtrain.wire.messages import PROTOCOL, StewardRequest
from jupyter_dtrain.wire.steward_messages import (
    Advance,
    AnyBroadcast,
    Driven,
    DriverChanged,
    InterruptWanted,
    Join,
    KillRanks,
    Leave,
    Noticed,
    OpenRun,
    RankDied,
    RankPaused,
    RanksReleased,
    RanksReplaced,
    RanksStuck,
    ReleaseRun,
    Renew,
    Stop,
    StoreRuns,
    TakeUpInterrupt,
    WorldEnded,
    WorldRestarting,
    explain_read_only,
    name_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jupyter_dtrain.core.events import Event
    from jupyter_dtrain.core.settings import Settings
    from jupyter_dtrain.wire.channels import RanksChannel, StewardChannel
    from jupyter_dtrain.wire.steward_messages import Followed, WorldNews, WorldState

    from .notices import Notices
    from .run_scheduler import RunScheduler

A = TypeVar("A", bound=msgspec.Struct)

_log = logging.getLogger(__name__)

LOOK_PERIOD = 1.0
"""Seconds between two checks that the steward lives; a request to it finds out at once."""
LISTEN = 0.25
FRESH = 0.25
"""Seconds for which an answer of the steward is news enough for a cell, unless a broadcast came or a run failed.

Cells that follow each other closely ask once; they might lack only news whose broadcast was lost in that time."""
CONFIRM = 1.0
"""Seconds in which the steward may name the driver."""
LEAVING = 1.0
"""Seconds that the steward may take to acknowledge that this client leaves."""
LINGER = 200
"""Milliseconds in which a cell that was sent just before leaves this process."""
STORE_POLL = 0.02
SCHEDULING = 1.0
"""Seconds that the steward may take to answer the scheduler's thread, which stands still meanwhile."""


class Link:
    """One client's link. Methods may be called from any thread."""

    def __init__(
        self, listing: worlds.Listing, steward: StewardChannel, settings: Settings, news: Notices, words: str
    ) -> None:
        """``words`` name this client to others, such as ``the kernel of a.ipynb``."""
        self.listing = listing
        self.closed = False
        """Whether it was closed on purpose."""
        self._steward = steward
        self._settings = settings
        self._notices = news
        self.me = Client(uuid.uuid4().hex, *own_process(), words, _kernel_id())
        """This client, as others see it."""
        self._driver: Client | None = None
        self._world: AddressedWorld | None = None
        self._channel: RanksChannel | None = None
        self._incarnation = self._joining = 0
        """The number of the set of ranks that this client talks to, and of the set that it joins."""
        self._next_run = 1
        self._lost = ""
        self._lets_go = True
        """Whether the listening thread closes what leads to a lost world; otherwise :meth:`close` will."""
        self._fresh_until = 0.0
        """Until when a cell need not ask the steward for news (monotonic); 0 once something has happened."""
        self._renew_wanted = False
        """Whether the next renewal of the lease should not wait."""
        self._lock = threading.RLock()
        self._leaving = threading.Lock()
        self._restarting = ""
        """The error message for requests while another client restarts the world."""
        self.rejoin: Callable[[int, str], None] = lambda _incarnation, _by: None
        """The link calls it, in a thread of its own, when another client restarts the world that this one drives. Its
        arguments are the number of the new set of ranks, and that client's name."""
        self._scheduler: RunScheduler | None = None
        self._listener = threading.Thread(target=self._listen, name="dtrain-world", daemon=True)

    # Connecting.

    def connect(self, state: WorldState, scheduler: RunScheduler, *, greet: bool) -> None:
        """Connect to the ranks of ``state``; ``scheduler`` gets their events.

        ``greet``: wait until each rank has answered, which it does when it is idle. Raises :class:`StartFailed` when
        one does not answer.
        """
        from jupyter_dtrain.wire.channels import RanksChannel

        self._scheduler = scheduler
        world = state.world
        channel = RanksChannel(state.client_file, scheduler.hear)
        living = [rank for rank in world.ranks if rank.state != "dead"]
        deadline = time.monotonic() + max(self._settings.request_timeout, self._settings.start_timeout)
        silent = channel.hello([rank.engine for rank in living], deadline) if greet else []
        if silent:
            channel.close(linger=0)
            numbers = [rank.rank for rank in living if rank.engine in silent]
            raise StartFailed(f"World {self.listing.name!r}: {count_ranks(numbers)} did not answer.", AGAIN)
        with self._lock:
            if self.over:
                channel.close(linger=0)
            self.check()
            old, self._channel, self._world = self._channel, channel, world
            self._incarnation = state.incarnation
            self._next_run = max(self._next_run, state.last_run + 1)
            self._restarting = ""
        scheduler.bind(world, channel, state.spool)
        for words in state.notices:
            self._notices.hear(words)
        if old is not None:
            old.close(linger=0)

    def join(self, *, take_over: bool) -> Client:
        """Follow the world, and drive it where no other client does, or with ``take_over``; returns its driver."""
        joined = self._steward.ask(Join(self.me, take_over, PROTOCOL))
        self._set_driver(joined.driver)
        if self._world is not None:
            self._set_world(generation=max(self._world.generation, joined.generation))
        if self._listener.ident is None:
            self._listener.start()
        return joined.driver

    def tell_auto(self, *, auto: bool) -> None:
        """Show other clients whether plain cells go to the ranks too; does not wait for a silent steward."""
        self.me = msgspec.structs.replace(self.me, auto=auto)
        if self.controls and not self.over:
            with contextlib.suppress(WorldLost, Refused):
                self._steward.ask(Join(self.me, take_over=False, protocol=PROTOCOL), LEAVING)

    def close(self) -> None:
        """Leave the world; this client no longer follows it."""
        self.closed = True
        if self._listener.is_alive() and threading.current_thread() is not self._listener:
            self._listener.join(timeout=2)
        if worlds.is_alive(self.listing):
            with contextlib.suppress(WorldLost, Refused):
                self._steward.ask(Leave(self.me.id), LEAVING)
        self._let_go()

    def _let_go(self) -> None:
        """End the threads and close the sockets that lead to the world. Called again, it does nothing."""
        with self._leaving:
            if self._scheduler is not None:
                self._scheduler.close()
            with self._lock:
                channel = self._channel
            if channel is not None:
                channel.close(linger=LINGER)
            self._steward.close()

    # The state of the world.

    @property
    def over(self) -> bool:
        """Whether it was closed, or has lost its world."""
        return self.closed or bool(self._lost)

    @property
    def loss(self) -> str:
        """Why the world is gone; empty while it is there."""
        return self._lost

    @property
    def controls(self) -> bool:
        """Whether this client is the driver."""
        return self._driver is not None and self._driver.id == self.me.id

    @property
    def controller(self) -> str:
        """The notebook or process that is the driver, in words; empty where none is known."""
        return name_of(self._driver.words) if self._driver else ""

    @property
    def world(self) -> AddressedWorld:
        """The world as it is now. Raises as :meth:`check`."""
        return self.bound()[0]

    def bound(self) -> tuple[AddressedWorld, RanksChannel]:
        """The world, and the way to its ranks. Raises as :meth:`check`."""
        with self._lock:
            self.check()
            self._check_up()
            assert self._world is not None
            assert self._channel is not None
            return self._world, self._channel

    def check(self) -> None:
        """Raise :class:`NoWorld` or :class:`WorldLost` where there is no world any more."""
        name = self.listing.name
        if self.closed:
            raise NoWorld(f"World {name!r} was stopped: start one with %distributed start.")
        if self._lost:
            raise WorldLost(f"World {name!r} is gone ({self._lost}): start one with %distributed start.")

    def check_drives(self) -> None:
        """Raise as :meth:`check`, and :class:`ReadOnly` where another client drives the world.

        Raises :class:`RanksBusy` while another client has it restarted.
        """
        self.check()
        self._check_up()
        if not self.controls:
            raise ReadOnly(explain_read_only(self.listing.name, self._driver.words if self._driver else ""))

    def check_ranks(self, ranks: list[int]) -> None:
        """Raise :class:`RanksDead` when one of ``ranks`` is dead, and as :meth:`check`."""
        check_living(self.world, ranks)

    def choose(self, ranks: Ranks) -> list[int]:
        """The numbers that ``ranks`` stand for. Raises as :meth:`check`, :class:`BadRequest` for ranks of no world."""
        return parse_ranks(ranks, self.world.size)

    def choose_living(self, ranks: Ranks) -> list[int]:
        """As :meth:`choose`, of ranks to act on. Raises as :meth:`check_drives` and :meth:`check_ranks`, too."""
        self.check_drives()
        chosen = self.choose(ranks)
        self.check_ranks(chosen)
        return chosen

    def confirm_drives(self, *, may_skip: bool = False) -> list[OpenRun]:
        """Like :meth:`check_drives`, but ask the steward first for news that may be on its way, or lost.

        ``may_skip``: it need not ask where the steward has answered within :data:`FRESH` seconds. It waits at most
        twice :data:`CONFIRM` seconds for the answer. Returns the runs that go on in the world.
        """
        self.check_drives()
        runs: list[OpenRun] = []
        now = time.monotonic()
        if may_skip and now < self._fresh_until:
            return runs
        with contextlib.suppress(WorldLost, Refused):
            # It announces the number of the next run too: a client that takes over now gives its own another one.
            # Twice the time: the listening thread may wait for an answer first, and one request goes at a time.
            driven = self._steward.ask(self._renewal(self._next_run), 2 * CONFIRM)
            runs = self._take_driven(driven)
            check_still(driven.news)
            self._fresh_until = now + FRESH
        self.check_drives()
        return runs

    def _check_up(self) -> None:
        if self._restarting:
            raise RanksBusy(self._restarting)

    def check_alive(self) -> None:
        """Notice at once, rather than within a second, that the steward is gone."""
        if not self.over and not worlds.is_alive(self.listing):
            self.lose("its main process has ended")

    def number_run(self) -> int:
        """The number of a new run."""
        with self._lock:
            number, self._next_run = self._next_run, self._next_run + 1
            return number

    def skip_run(self, number: int) -> None:
        """Note that another client has begun a run with this number."""
        with self._lock:
            self._next_run = max(self._next_run, number + 1)

    # Requests.

    def ask(self, request: StewardRequest[A], timeout: float | None = None) -> A:
        """The steward's answer.

        Raises as :meth:`check`, and :class:`WorldLost` when it does not answer within ``timeout`` seconds (default:
        the setting ``request_timeout``), and :class:`~jupyter_dtrain.core.errors.Refused`.
        """
        self.check()
        try:
            return self._steward.ask(request, timeout)
        except WorldLost:
            # Report a steward that has ended, also to every thread that waits for a run.
            self.check_alive()
            self.check()
            raise

    def release(self, run: int) -> None:
        """Have the steward free the ranks that wait for others in ``run``. Raises as :meth:`ask`."""
        self.ask(ReleaseRun(run), SCHEDULING)

    def kill(self, ranks: list[int], reason: str) -> None:
        """Have the steward kill the processes of ``ranks``. Raises as :meth:`ask`."""
        self.ask(KillRanks(ranks, reason), SCHEDULING)

    def advance(self, run: int) -> int:
        """The generation of the cells after ``run``, whose process groups are broken. Raises as :meth:`ask`."""
        return self.ask(Advance(run), SCHEDULING).generation

    def store_runs(self, patience: float) -> None:
        """Have the store know all that the ranks have said by now. It gives up after ``patience`` seconds."""
        deadline = time.monotonic() + patience
        followed = self._notices.to_tell()
        with contextlib.suppress(WorldLost, Refused):  # what there is of the run is stored when the steward ends
            answer = self._steward.ask(StoreRuns(followed=followed), patience)
            self._notices.was_told(followed)
            while not answer.done and (left := deadline - time.monotonic()) > 0:
                time.sleep(STORE_POLL)
                answer = self._steward.ask(StoreRuns(answer.ticket), left)

    def stop(self, given_up: Iterable[int] = (), timeout: float | None = None) -> None:
        """Ask the steward to end the world, which may take a while.

        ``given_up``: runs whose end needs no explanation any more.
        """
        with contextlib.suppress(WorldLost, Refused):
            self._steward.ask(Stop(self._notices.to_tell(given_up)), timeout)

    def lose(self, words: str, *, closes: bool = False) -> None:
        """Note that the world is gone; ``words`` give the reason. ``closes``: the caller calls :meth:`close` next."""
        self._lets_go = self._lets_go and not closes
        self._lost = self._lost or words
        if self._scheduler is not None:
            self._scheduler.world_lost(words)

    # The listening thread.

    def _listen(self) -> None:
        """Take the steward's broadcasts, and renew the lease; at last, leave nothing of a lost world."""
        renew_at = look_at = tell_at = 0.0
        while not self.over:
            try:
                event = self._steward.listen(LISTEN)
                if event is not None:
                    self._heard(event)
                    continue
            except Exception:  # noqa: BLE001 — the one thread that listens goes on
                # The next renewal brings the same news.
                _log.exception("An event of the world could not be taken")
                time.sleep(LISTEN)
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK_PERIOD
                self.check_alive()
            if now >= renew_at or (self._notices.waiting and now >= tell_at) or self._renew_wanted:
                self._renew_wanted = False
                tell_at = now + LISTEN
                renew_at = now + min(self._settings.keep_alive / 4, 30.0)
                try:
                    self._renew()
                except (WorldLost, Refused) as error:
                    self._renew_wanted = isinstance(error, WorldLost) and not self.over
                    # The look above notices a steward that has ended, and tells the user.
                    _log.info("World %s was not told that this client is alive: %s", self.listing.name, error)
                except Exception:  # noqa: BLE001 — as above
                    _log.exception("The news of the world could not be taken")
        if not self.closed and self._lets_go:
            try:
                self._let_go()
            except Exception:  # noqa: BLE001 — it is lost all the same
                _log.exception("The channels to world %s could not be closed", self.listing.name)

    def renew_soon(self) -> None:
        """Ask the steward soon what this client may have missed: a rank does not answer. Returns at once."""
        self._renew_wanted = True

    def _renew(self) -> None:
        followed = self._notices.to_tell()
        driven = self._steward.ask(self._renewal(self._next_run - 1, followed), CONFIRM)
        self._notices.was_told(followed)
        self._take_driven(driven)

    def _renewal(self, last_run: int, followed: Sequence[Followed] = ()) -> Renew:
        dead = [] if self._world is None else [rank.rank for rank in self._world.dead]
        return Renew(self.me.id, self.me.auto, last_run, list(followed), dead)

    def _take_driven(self, driven: Driven) -> list[OpenRun]:
        """Take the steward's answer, the driver and missed broadcasts; returns the runs that go on. Any thread."""
        self._set_driver(driven.driver)
        news = driven.news
        if news is None or self._world is None:
            return []
        for words in news.notices:
            self._notices.hear(words)
        by = news.restarted_by
        if news.incarnation > self._incarnation and by is not None and by.client != self.me.id:
            self._restarted_by(by.words, news.incarnation)
        if news.incarnation != self._incarnation:
            return []
        if news.generation < self._world.generation:
            return news.runs  # a broadcast has overtaken it: ranks may have had other numbers
        new = [rank for rank in news.replaced if rank.engine != self._world.rank(rank.rank).engine]
        if new or news.size != self._world.size:
            self.ranks_replaced(new, news.size, news.generation)
        for rank in self._world.ranks:
            if rank.rank in news.dead:
                self._rank_died(rank.rank, news.dead[rank.rank], news.last.get(rank.rank, []))
            elif rank.state != "dead" and (rank.rank in news.stopped) != (rank.state == "stopped"):
                self._set_rank(rank.rank, state="stopped" if rank.rank in news.stopped else "idle")
        self._set_world(generation=max(self._world.generation, news.generation))
        return news.runs

    def _rank_died(self, rank: int, words: str, events: list[Event]) -> None:
        """Take the news of a death, once, from whichever message brings it first."""
        with self._lock:
            if self._world is None or rank >= self._world.size or self._world.ranks[rank].state == "dead":
                return
            self._set_rank(rank, state="dead", words=words)
        if self._scheduler is not None:
            self._scheduler.rank_died(rank, words, events)

    def ranks_replaced(self, ranks: list[AddressedRank], size: int, generation: int) -> None:
        """Take the news of a heal, unless it is late: other processes are ``ranks``, and the world has ``size``."""
        with self._lock:
            assert self._world is not None
            if generation < self._world.generation:
                return
            self._set_world(ranks=self._world.changed(ranks, size).ranks, generation=generation)
        if self._scheduler is not None:
            self._scheduler.ranks_replaced(ranks, size)

    def ask_again(self) -> None:
        """The world may have changed: the next cell asks the steward for news."""
        self._fresh_until = 0.0

    def _heard(self, event: AnyBroadcast) -> None:
        self.ask_again()
        match event:
            case RankDied() | RanksReplaced() | RankPaused() | RanksReleased() | RanksStuck():
                if event.incarnation == self._incarnation:
                    self._heard_of_ranks(event)
            case WorldRestarting() if event.client != self.me.id:
                self._restarted_by(event.by, event.incarnation)
            case InterruptWanted() if self.controls:
                self._interrupted_by(event.by, event.run, force=event.force)
            case Noticed():
                self._notices.hear(event.words)
            case DriverChanged():
                self._set_driver(event.driver)
            case WorldEnded() if not self.closed:
                self.lose(event.words)

    def _heard_of_ranks(self, event: RankDied | RanksReplaced | RankPaused | RanksReleased | RanksStuck) -> None:
        match event:
            case RankDied(rank=rank, words=words):
                self._rank_died(rank, words, event.events)
                self._set_world(generation=event.generation)
            case RanksReplaced():
                self.ranks_replaced(event.ranks, event.size, event.generation)
            case RankPaused():
                self._set_rank(event.rank, state=event.state, words=event.words)
                if event.words and self._scheduler is not None:
                    self._scheduler.rank_fell(event.rank, event.words)
            case RanksReleased():
                self._set_world(generation=event.generation)
            case RanksStuck() if self._scheduler is not None:
                self._scheduler.ranks_stuck(event.run, event.waiting)

    def _restarted_by(self, who: str, incarnation: int) -> None:
        name = self.listing.name
        with self._lock:
            if incarnation <= self._joining:
                return
            self._joining = incarnation
        if not self.controls:
            self.lose(f"{who} has restarted it: %distributed attach {name} joins it again")
            return
        self._restarting = f"World {name!r} is being restarted by {who}: run the cell again when it is up."
        if self._scheduler is not None:
            self._scheduler.world_lost(f"its world was restarted by {who}")
        threading.Thread(target=self.rejoin, args=(incarnation, who), name="dtrain-rejoin", daemon=True).start()

    def _interrupted_by(self, who: str, run: int, *, force: bool) -> None:
        if self._scheduler is not None:
            mine = self._scheduler.followed()
            self._scheduler.interrupt(force=force, by=who, last=run)
            with contextlib.suppress(WorldLost, Refused):
                self._steward.ask(TakeUpInterrupt(sorted(mine)), LEAVING)

    def _set_rank(self, rank: int, **changes: str) -> None:
        with self._lock:
            assert self._world is not None
            changed = self._world.changed([msgspec.structs.replace(self._world.ranks[rank], **changes)])
            self._set_world(ranks=changed.ranks)

    def _set_world(self, **changes: int | list[AddressedRank]) -> None:
        with self._lock:
            assert self._world is not None
            self._world = msgspec.structs.replace(self._world, **changes)
            if self._scheduler is not None:
                self._scheduler.set_generation(self._world.generation)

    def _set_driver(self, driver: Client | None) -> None:
        with self._lock:
            drove, self._driver = self.controls, driver
        if drove and driver is not None and not self.controls:
            if self._scheduler is not None:
                self._scheduler.refuse_queued(f"the world is now controlled by {name_of(driver.words)}")
            name = self.listing.name
            self._notices.hear(
                f"World {name!r} is now controlled by {name_of(driver.words)}; here it is read-only. "
                f"%distributed attach {name} --control takes it back."
            )


def check_still(news: WorldNews | None) -> None:
    """Raise :class:`RanksBusy` while a heal or a resize goes on: the world would change under a cell."""
    if news is not None and news.changing:
        raise RanksBusy(f"{news.changing}: run the cell when this has ended.")


def check_living(world: AddressedWorld, ranks: Sequence[int]) -> None:
    """Raise :class:`RanksDead`, with the ways on, when one of ``ranks`` is dead."""
    dead = [rank for rank in world.dead if rank.rank in ranks]
    if not dead:
        return
    living = [rank.rank for rank in world.ranks if rank.state != "dead"]
    words = "; ".join(rank.words for rank in dead)
    fix = "%distributed restart starts fresh ranks"
    if living:
        run_on = f"-r {','.join(map(str, living))} runs the cell on the others"
        fix = f"%distributed replace replaces what is dead, {fix}, and {run_on}"
    raise RanksDead(f"{words[0].upper()}{words[1:]}. {fix}.")


def _kernel_id() -> str:
    """The id of the Jupyter kernel that this process is, as its server knows it; empty where it is none."""
    from IPython.core.getipython import get_ipython

    if getattr(get_ipython(), "kernel", None) is None:
        return ""
    try:
        from ipykernel.connect import get_connection_file

        name = Path(get_connection_file()).stem
    except Exception:  # noqa: BLE001 — a kernel of another kind, or its file is gone: no pills, and nothing else
        return ""
    return name.removeprefix("kernel-") if name.startswith("kernel-") else ""
