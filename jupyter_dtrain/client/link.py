"""A client's link to its world: what it knows of it, the way to its ranks and its steward, and the lease.

A world has one driver, the client that may run cells and whose word renews the lease; every other client observes.
Which one this is the steward decides, when the link is made and whenever somebody takes over.

Under failure: a steward that is gone is noticed within a second, and by a request to it at once; from then on
everything raises :class:`~jupyter_dtrain.core.errors.WorldLost`. Thread-safe.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from jupyter_dtrain.core.clients import Client, own_process
from jupyter_dtrain.core.errors import NotDriver, NoWorld, RanksBusy, RanksDead, StartFailed, WorldLost
from jupyter_dtrain.core.events import Event
from jupyter_dtrain.core.world import World, count_ranks
from jupyter_dtrain.launch import worlds

from .notebook import kernel_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jupyter_dtrain.core.settings import Settings
    from jupyter_dtrain.wire.channels import RanksChannel, StewardChannel

    from .fold import Fold
    from .notices import Notices

LOOK_PERIOD = 1.0
"""Seconds between two looks whether the steward lives; a request to it finds out at once."""
LISTEN = 0.25
CONFIRM = 1.0
"""Seconds in which the steward may say who drives; no cell waits longer for that."""
LEAVING = 1.0
"""Seconds that the steward may take to hear that this client leaves."""


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
        self._me = Client(uuid.uuid4().hex, *own_process(), words, kernel_id())
        self._driver: Client | None = None
        self._world: World | None = None
        self._channel: RanksChannel | None = None
        self._incarnation = 0
        self._next_run = 1
        self._lost = ""
        self._lock = threading.RLock()
        self._restarting = ""
        """What is told of a restart by another client, while it goes on."""
        self.rejoin: Callable[[int, str], None] = lambda _incarnation, _by: None
        """Called when another client has the world restarted that this one drives, in a thread of its own: with the
        number of the new set of ranks, and who it was."""
        self._fold: Fold | None = None
        self._listener = threading.Thread(target=self._listen, name="dtrain-world", daemon=True)

    # Making it.

    def connect(self, state: dict[str, Any], fold: Fold, *, greet: bool) -> None:
        """Talk to the ranks that ``state``, of the steward, tells of; ``fold`` hears them.

        ``greet``: wait until each has answered, which ranks do when they are idle. Raises :class:`StartFailed` when
        they do not.
        """
        from jupyter_dtrain.wire.channels import RanksChannel

        self._fold = fold
        world = msgspec.convert(state["world"], World)
        channel = RanksChannel(state["client_file"], fold.hear)
        living = [rank for rank in world.ranks if rank.state != "dead"]
        deadline = time.monotonic() + self._settings.request_timeout
        silent = channel.hello([rank.engine for rank in living], deadline) if greet else []
        if silent:
            channel.close(linger=0)
            numbers = [rank.rank for rank in living if rank.engine in silent]
            raise StartFailed(f"World {self.listing.name!r}: {count_ranks(numbers)} did not answer.")
        with self._lock:
            old, self._channel, self._world = self._channel, channel, world
            self._incarnation = state["incarnation"]
            self._next_run = max(self._next_run, state["last_run"] + 1)
            self._restarting = ""
        fold.bind(world, channel, state["spool"])
        for words in state["notices"]:
            self._notices.hear(words)
        if old is not None:
            old.close(linger=0)

    def join(self, *, take_over: bool) -> Client:
        """Ask to drive the world, and follow what happens to it from now on; the client that drives it.

        That is this one where nobody else does, and where ``take_over`` says so.
        """
        answer = self._steward.ask("join", client=msgspec.to_builtins(self._me), take_over=take_over)
        driver = self._set_driver(answer["driver"])
        if self._world is not None:
            self._set_world(generation=max(self._world.generation, int(answer["generation"])))
        if self._listener.ident is None:
            self._listener.start()
        return driver

    def tell_auto(self, *, auto: bool) -> None:
        """Tell others whether plain cells go to the ranks too. A world that does not hear it is not waited for."""
        self._me = msgspec.structs.replace(self._me, auto=auto)
        if self.drives and not self.over:
            with contextlib.suppress(WorldLost):
                self._steward.ask("join", timeout=LEAVING, client=msgspec.to_builtins(self._me), take_over=False)

    def close(self) -> None:
        """Let go of the world; what it does is not this client's any more."""
        self.closed = True
        if self._listener.is_alive() and threading.current_thread() is not self._listener:
            self._listener.join(timeout=2)
        if worlds.is_alive(self.listing):
            with contextlib.suppress(WorldLost):
                self._steward.ask("leave", timeout=LEAVING, client=self._me.id)
        if self._fold is not None:
            self._fold.close()
        if self._channel is not None:
            self._channel.close(linger=0)
        self._steward.close()

    # What is known.

    @property
    def over(self) -> bool:
        """Whether it was closed, or has lost its world."""
        return self.closed or bool(self._lost)

    @property
    def drives(self) -> bool:
        """Whether this client is the driver."""
        return self._driver is not None and self._driver.id == self._me.id

    @property
    def world(self) -> World:
        """The world as it is now. Raises as :meth:`check`."""
        return self.bound()[0]

    def bound(self) -> tuple[World, RanksChannel]:
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
        """Raise as :meth:`check`, and :class:`NotDriver` where another client drives the world.

        Raises :class:`RanksBusy` while another client has it restarted.
        """
        self.check()
        self._check_up()
        if not self.drives:
            name = self.listing.name
            who = self._driver.words if self._driver is not None else "nobody yet"
            raise NotDriver(
                f"World {name!r} is driven by {who}; here it can only be looked at. "
                f"%distributed attach {name} --take-over drives it from here."
            )

    def check_ranks(self, ranks: list[int]) -> None:
        """Raise :class:`RanksDead` when one of ``ranks`` is dead, and as :meth:`check`."""
        world = self.world
        dead = [rank for rank in world.dead if rank.rank in ranks]
        if dead:
            living = [rank.rank for rank in world.ranks if rank.state != "dead"]
            words = "; ".join(rank.words for rank in dead)
            go_on = f", or go on without with -r {','.join(map(str, living))}" if living else ""
            raise RanksDead(f"{words[0].upper()}{words[1:]}. Make the world whole with %distributed restart{go_on}.")

    def confirm_drives(self) -> None:
        """As :meth:`check_drives`, by the steward's word: that another client has taken over may be on its way here.

        A steward that does not answer within :data:`CONFIRM` seconds is not waited for.
        """
        self.check_drives()
        with contextlib.suppress(WorldLost):
            self._set_driver(self._steward.ask("driver", timeout=CONFIRM)["driver"])
        self.check_drives()

    def _check_up(self) -> None:
        if self._restarting:
            raise RanksBusy(self._restarting)

    def check_alive(self) -> None:
        """Notice at once, rather than within a second, that the steward is gone."""
        if not self.over and not worlds.is_alive(self.listing):
            self.lose("its steward has ended")

    def number_run(self) -> int:
        """The number of a new run."""
        with self._lock:
            number, self._next_run = self._next_run, self._next_run + 1
            return number

    def skip_run(self, number: int) -> None:
        """Another client has begun a run of this number."""
        with self._lock:
            self._next_run = max(self._next_run, number + 1)

    # Requests.

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """The steward's answer. Raises as :meth:`check`, and :class:`WorldLost` when it does not answer."""
        self.check()
        try:
            return self._steward.ask(op, **arguments)
        except WorldLost:
            # One that has ended is told of as such, and to everybody who waits.
            self.check_alive()
            self.check()
            raise

    def restart(self) -> dict[str, Any]:
        """Ask the steward for fresh ranks; its answer. Raises as :meth:`ask`."""
        return self.ask("restart", client=self._me.id, by=self._me.words)

    def stop(self, given_up: Iterable[int] = (), **options: Any) -> None:
        """Tell the steward to end the world; it may take a while. ``given_up``: runs that nobody wants to hear of."""
        with contextlib.suppress(WorldLost):
            self._steward.ask("stop", **options, **self._notices.to_tell(given_up))

    def lose(self, words: str) -> None:
        """The world is gone."""
        self._lost = self._lost or words
        if self._fold is not None:
            self._fold.world_lost(words)

    # The listening thread.

    def _listen(self) -> None:
        """Hear what the steward broadcasts, and renew the lease."""
        renew_at = look_at = 0.0
        while not self.over:
            with contextlib.suppress(Exception):
                event = self._steward.listen(LISTEN)
                if event is not None:
                    self._heard(event)
                    continue
            now = time.monotonic()
            if now >= look_at:
                look_at = now + LOOK_PERIOD
                self.check_alive()
            if now >= renew_at or self._notices.waiting:
                renew_at = now + min(self._settings.lease / 4, 30.0)
                with contextlib.suppress(WorldLost):
                    news = self._notices.to_tell()
                    me: dict[str, Any] = {"client": self._me.id, "auto": self._me.auto}
                    answer = self._steward.ask("renew", last_run=self._next_run - 1, **me, **news)
                    self._notices.was_told(news)
                    self._set_driver(answer["driver"])

    def _heard(self, event: dict[str, Any]) -> None:
        match event["kind"]:
            case "died" if event["incarnation"] == self._incarnation:
                rank, words = int(event["rank"]), str(event["words"])
                self._set_rank(rank, state="dead", words=words)
                self._set_world(generation=int(event["generation"]))
                if self._fold is not None:
                    self._fold.rank_died(rank, words, msgspec.convert(event["events"], list[Event]))
            case "paused" if event["incarnation"] == self._incarnation:
                self._set_rank(int(event["rank"]), state=event["state"])
            case "restarting" if event["client"] != self._me.id:
                self._restarted_by(str(event["by"]), int(event["incarnation"]))
            case "interrupt" if self.drives:
                self._interrupted_by(str(event["by"]), int(event["run"]), force=bool(event["force"]))
            case "released" if event["incarnation"] == self._incarnation:
                self._set_world(generation=int(event["generation"]))
            case "notice":
                self._notices.hear(str(event["words"]))
            case "driver":
                self._set_driver(event["driver"])
            case "ended" if not self.closed:
                self.lose(str(event["words"]))

    def _restarted_by(self, who: str, incarnation: int) -> None:
        name = self.listing.name
        if not self.drives:
            self.lose(f"{who} has restarted it: %distributed attach {name} joins it again")
            return
        self._restarting = f"World {name!r} is being restarted by {who}: run the cell again when it is up."
        if self._fold is not None:
            self._fold.world_lost(f"its world was restarted by {who}")
        threading.Thread(target=self.rejoin, args=(incarnation, who), name="dtrain-rejoin", daemon=True).start()

    def _interrupted_by(self, who: str, run: int, *, force: bool) -> None:
        if self._fold is not None:
            self._fold.interrupt(force=force, by=who, last=run)
            with contextlib.suppress(WorldLost):
                self._steward.ask("interrupting", timeout=LEAVING)

    def _set_rank(self, rank: int, **changes: Any) -> None:
        with self._lock:
            ranks = list(self._world.ranks if self._world is not None else ())
            ranks[rank] = msgspec.structs.replace(ranks[rank], **changes)
            self._set_world(ranks=ranks)

    def _set_world(self, **changes: Any) -> None:
        with self._lock:
            assert self._world is not None
            self._world = msgspec.structs.replace(self._world, **changes)
            if self._fold is not None:
                self._fold.set_generation(self._world.generation)

    def _set_driver(self, told: dict[str, Any]) -> Client:
        driver = msgspec.convert(told, Client)
        with self._lock:
            drove, self._driver = self.drives, driver
        if drove and not self.drives:
            if self._fold is not None:
                self._fold.refuse_queued(f"the world was taken over by {driver.words}")
            name = self.listing.name
            self._notices.hear(
                f"World {name!r} was taken over by {driver.words}: what runs is still followed here. "
                f"%distributed attach {name} --take-over takes it back."
            )
        return driver
