"""Random faults at random moments: ``make storm SEED=1 DRAWS=100``.

    python -m tests.faults.storm [--seed 1] [--draws 100] [--only K]

Each draw is a cell of some collectives. On its way one rank or two meet a fault: an exception (a hostile one, too), an
end, a signal, a loop, a wait in native code, a child. The driver does what people do meanwhile: it presses Stop, queues
cells, kills a rank, leaves and attaches again, takes the world over, restarts it, stops it, starts another one; and a
rank may be killed while one of these goes on. Four promises hold for every draw:
the cell ends in time and names a cause; ranks that nothing happened to keep their variables; the next cell gives the
right numbers; and in the end nothing is left behind.

The seed and the number of a draw make the same draw again (``--only``). Each draw is a line of ``build/storm.jsonl``; a
storm that is begun again leaves out what was good there, if the code is still the same. The exit status is 0 only if no
draw broke a promise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from jupyter_dtrain import DistributedError, DistributedInterrupt, DtrainError, Run, Session, Settings, StartFailed
from jupyter_dtrain.core.causes import blocks
from tests.faults.__main__ import ROOT, digest, keep, lines
from tests.faults.draws import DIES, HINTS, PREPARE, RAISES, STUCK, UNSTOPPABLE, Act, Draw, draw
from tests.faults.play import SLACK
from tests.faults.stage import Stage
from tests.faults.worlds import left_of, new_mark
from tests.processes import loose_segments
from tests.steward.until import running, until

LINES = ROOT / "build" / "storm.jsonl"
STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""A terminal's style in a text."""
SETTINGS = Settings(hang_notice=3.0, interrupt_raise=2.0, interrupt_timeout=3.5)
PATIENCE = 12.0
"""Seconds in which a cell whose ranks fail, or none of whose ranks is stuck, ends by itself."""
LOOK = 3.5
"""Seconds after which Stop is pressed in a cell of which a rank is stuck."""
STOPPED = SETTINGS.interrupt_timeout + 2.0 + SLACK
"""Seconds in which a cell ends after Stop."""
LONGEST = 60.0
"""Seconds that an act may take, a start or a restart on a busy machine too."""


class Storm:
    """Plays draws, one after the other, in worlds that live as long as they can."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def play(self, drawn: Draw) -> list[str]:
        """The promises that were broken, in words."""
        problems: list[str] = []
        try:
            self._play(drawn, problems)
        except (Exception, DistributedInterrupt) as error:  # noqa: BLE001 — what a broken world does is a finding
            problems.append(f"{type(error).__name__}: {str(error)[:300]}")
        ends = ("end", "start", "restart")
        if problems or any(act.kind == "end" or (act.kill is not None and act.kind in ends) for act in drawn.acts):
            problems += self._stage.discard(drawn.size, old_mpi=False)
        return problems

    def _play(self, drawn: Draw, problems: list[str]) -> None:
        world = self._stage.world(drawn.size, old_mpi=False)
        world.session.run(PREPARE, view=None, timeout=60)
        before = world.session.run("(os.getpid(), kept_id)", view=None, timeout=30)
        pids = [rank.pid for rank in world.session.world.ranks]
        owned = {rank: result.data["text/plain"] for rank, result in before.results.items()}
        run = world.session.run(drawn.cell, wait=False, view=None)
        queued: list[Run] = []
        acted = set()
        for act in drawn.acts:
            run.wait(act.delay)
            acted.add(act.kind)
            began = time.monotonic()
            if act.kind == "start":
                problems += self._stage.discard(drawn.size, old_mpi=False)
                self._start(drawn, act, problems)
            else:
                self._act(act, drawn, world, queued)
            self._expect(problems, time.monotonic() - began < LONGEST, f"{act} takes more than {LONGEST:g} s")
            if act.kill is not None:
                acted.add("kill")
            if act.kind in ("end", "start"):
                self._expect(problems, running(pids) == [], "ranks outlive their world")
                self._expect(problems, run.wait(SLACK), "the cell outlives its world")
                return
            if act.kind in ("leave", "take-over"):
                others = [*world.session.running, world.session.last_run]
                run = next((other for other in others if other and other.number == run.number), run)
            if act.kind == "restart":
                self._expect(problems, run.wait(SLACK), "the cell outlives its ranks")
                return
        stuck = bool(drawn.kinds(STUCK))
        if not run.wait(LOOK if stuck else PATIENCE):
            if not stuck:
                where = world.session.stacks()
                problems.append(f"the cell goes on after {PATIENCE:g} s, though no rank is stuck: {where}")
            world.session.interrupt()
            acted.add("stop")
            self._expect(problems, run.wait(STOPPED), f"the cell goes on {STOPPED:g} s after Stop")
        # Queued cells; after a change of the driver the session knows them, too.
        for other in [*queued, *world.session.running]:
            self._expect(problems, other.wait(STOPPED), "a queued cell does not end")
        self._check_cause(drawn, run, acted, problems)
        self._check_ranks(drawn, world.session, acted, owned, problems)

    def _start(self, drawn: Draw, act: Act, problems: list[str]) -> None:
        """A world comes up whole, or with its dead rank named, or not at all; then nothing of it is left."""
        mark, shared = new_mark(), loose_segments()
        try:
            with _killing(act, mark, drawn.size - 1):
                self._stage.world(drawn.size, old_mpi=False, mark=mark)
        except (DtrainError, DistributedError) as error:
            self._expect(problems, act.kill is not None, f"the start fails: {error}")
            if isinstance(error, StartFailed):
                problems += left_of(mark, [], shared)

    def _act(self, act: Act, drawn: Draw, world: Any, queued: list[Run]) -> None:
        with _killing(act, world.mark, drawn.size - 1) as killed:
            if act.kind in ("leave", "take-over"):
                self._change_driver(act, world)
            elif act.kind == "end":
                world.session.stop()
            elif act.kind == "restart":
                # A start in which a rank dies may fail; then the world has ended.
                with contextlib.suppress(*([StartFailed] if act.kill is not None else [])):
                    world.session.restart()
            else:
                with contextlib.suppress(DtrainError, DistributedError):  # the cell has ended, a rank is dead or busy
                    self._press(act, drawn, world.session, queued)
        if killed and act.kind in ("leave", "take-over"):
            # Its watch reports it within half a second, once it has ended; another one may be dead before.
            until(lambda: world.session.world.ranks[drawn.size - 1].has_ended, SLACK)

    @staticmethod
    def _change_driver(act: Act, world: Any) -> None:
        before: Session = world.session
        if act.kind == "leave":
            before.leave()
        world.session = Session.attach(world.mark, view=None)
        if act.kind == "take-over":
            world.session.take_over()
            before.leave()

    @staticmethod
    def _press(act: Act, drawn: Draw, session: Session, queued: list[Run]) -> None:
        match act.kind:
            case "stop":
                session.interrupt()
            case "stop-twice":
                session.interrupt()
                session.interrupt()
            case "queue":
                queued += [session.run("with_mpi()", wait=False, view=None) for _ in range(2)]
            case "kill":
                session.kill([drawn.size - 1])

    def _check_cause(self, drawn: Draw, run: Run, acted: set[str], problems: list[str]) -> None:
        """A cell that failed names what failed first, or one of what failed at once."""
        if acted & {"stop", "stop-twice", "kill"} or run.outcome in ("ok", "running"):
            self._expect(
                problems,
                run.outcome != "ok" or not [one for one in drawn.faults if one.kind != "stray"],
                "a cell with a fault is called ok",
            )
            return
        text = STYLE.sub("", "\n".join(blocks(run)))
        named = [*drawn.kinds(RAISES), *drawn.kinds(DIES)]
        self._expect(problems, bool(named), f"the cell ended as {run.outcome}: {text[:300]}")
        hints = HINTS | dict.fromkeys(("raising", "based", "pressed", "noted", "stray"), drawn.words)
        wanted = [hints.get(one.kind, f"ank {one.rank}") for one in named]
        self._expect(problems, any(hint in text for hint in wanted), f"none of {wanted} is in {text[:600]!r}")

    def _check_ranks(
        self, drawn: Draw, session: Session, acted: set[str], owned: dict[int, str], problems: list[str]
    ) -> None:
        """Only ranks with a fault are dead or busy; the others keep their variables; the next cell is right."""
        may_die = {one.rank for one in drawn.kinds(DIES)} | ({drawn.size - 1} if "kill" in acted else set())
        may_be_busy = {one.rank for one in drawn.kinds(UNSTOPPABLE)}
        collectives = {collective for _, collective in drawn.way}
        if "with_window" in collectives and (may_die or drawn.kinds(RAISES, STUCK)):
            # Open MPI 5.0 may crash where another rank dies in a window, and where a rank is released that makes one.
            may_die = set(range(drawn.size))
        if "with_large_sends" in collectives and drawn.kinds(("holding",)):
            may_be_busy = set(range(drawn.size))  # MPI never refuses a large message to a rank that cannot run
        with contextlib.suppress(AssertionError):  # a second press ends a cell before all ranks have left it
            until(lambda: may_be_busy.issuperset(session._fold.left_behind()), SLACK)
        busy = sorted(session._fold.left_behind())
        if not may_be_busy.issuperset(busy):
            where = session.stacks()
            problems.append(f"ranks {busy} are busy, not among {sorted(may_be_busy)}: {where}")
        if busy:
            session.kill(busy)
        dead = {rank.rank for rank in session.world.dead}
        self._expect(
            problems,
            dead <= may_die | set(busy),
            f"ranks {sorted(dead)} are dead, not among {sorted(may_die)}: {[one.words for one in session.world.dead]}",
        )
        living = [rank for rank in range(drawn.size) if rank not in dead]
        after = session.run("(os.getpid(), id(kept))", living, view=None, timeout=30) if living else None
        for rank in living:
            assert after is not None
            found = after.results[rank].data["text/plain"]
            self._expect(problems, found == owned[rank], f"rank {rank} was {owned[rank]} and is {found}")
        if dead:
            session.restart()
            session.run(PREPARE, view=None, timeout=60)
        numbers = session.run("with_torch(), with_mpi(), in_thread(), with_window()", view=None, timeout=30)
        found = {result.data["text/plain"] for result in numbers.results.values()}
        self._expect(problems, found == {repr((float(drawn.size),) * 4)}, f"the next cell gives {found}")

    @staticmethod
    def _expect(problems: list[str], condition: bool, words: str) -> None:  # noqa: FBT001 — it reads as a sentence
        if not condition:
            problems.append(words)


@contextlib.contextmanager
def _killing(act: Act, mark: str, rank: int) -> Iterator[list[int]]:
    """Kill a rank of a world at the act's moment, if it has one; for a world that starts, once the rank is there.

    Gives the processes that it has killed, once it is over.
    """
    over = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not (found := _watches(mark, rank)) and not over.wait(0.02):
            pass
        if found and not over.wait(act.kill):
            for process in found[-1].children()[-1:] or found[-1:]:
                process.kill()
                killed.append(process.pid)

    def guarded() -> None:
        with contextlib.suppress(psutil.Error):  # it has ended by itself
            kill()

    if act.kill is None:
        yield killed
        return
    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def _watches(mark: str, rank: int) -> list[psutil.Process]:
    """The processes of a rank in the world of that name whose parent is its launcher, in the order of their start."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.environ()
            if words.get("DTRAIN_TEST_MARK") == mark and words.get("OMPI_COMM_WORLD_RANK") == str(rank):
                parent = process.parent()
                if parent is not None and parent.environ().get("OMPI_COMM_WORLD_RANK") is None:
                    found.append(process)
    return sorted(found, key=lambda one: one.create_time())


def main() -> int:
    """Play the draws."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="which draws (default: 1)")
    parser.add_argument("--draws", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--only", type=int, help="one draw alone, by its number")
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that worlds are ended
    code = digest()
    done = {line["draw"] for line in lines(LINES) if line["code"] == code and not line["problems"]}
    draws = [draw(wanted.seed, number) for number in (range(wanted.draws) if wanted.only is None else [wanted.only])]
    todo = [one for one in draws if wanted.only is not None or str(one) not in done]
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("RUNTIME", "DATA", "CONFIG"):
            os.environ[f"JUPYTER_{kind}_DIR"] = f"{folder}/{kind.lower()}"
        stage = Stage(Path(folder), SETTINGS)
        try:
            storm = Storm(stage)
            for drawn in todo:
                began = time.monotonic()
                problems = storm.play(drawn)
                seconds = time.monotonic() - began
                keep(LINES, {"code": code, "draw": str(drawn), "seconds": round(seconds, 1), "problems": problems})
                print(f"{drawn} ({seconds:.1f} s): {'; '.join(problems) or 'good'}", flush=True)
                broken += [f"{drawn}: {words}" for words in problems]
        finally:
            left = stage.close()
    before = f" ({len(draws) - len(todo)} of them before)" if len(todo) < len(draws) else ""
    print(f"{len(draws)} draws of seed {wanted.seed}{before}, {len(broken)} promises broken", *broken, *left, sep="\n")
    return int(bool(broken or left))


if __name__ == "__main__":
    sys.exit(main())
