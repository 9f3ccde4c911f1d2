"""Some steps of a loop that runs, recorded by all its ranks together, and put into one file.

Ranks say how far they are, while the cell runs, and are told after which step to begin. Whoever asks waits, takes the
traces, and merges them: a notebook (:mod:`jupyter_dtrain.client.profiling`), or a process of the Jupyter server
(:mod:`jupyter_dtrain.server.profiler`). All of it is questions to the agents, so the cell goes on.

Under failure: every wait has a deadline, and the ranks are told when the asker gives up, also by an interrupt. A rank
that dies, or whose profiler fails, is named, and the traces of the others are merged all the same.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import math
import os
import statistics
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jupyter_dtrain.core.declarations import declarations, load
from jupyter_dtrain.core.errors import BadRequest, DtrainError, ProfileFailed, RanksDead
from jupyter_dtrain.core.traces import Analysis, DamagedTrace, RankTrace, analyse, merge
from jupyter_dtrain.core.world import World, count_ranks, quantity

from .profile_messages import BeginProfile, EndProfile, ProfileState, ReadProfile, ReadTrace

if TYPE_CHECKING:
    from .questions import Answers

STEPS: Final = 5
MOST_STEPS: Final = 1000
PATIENCE: Final = 60.0
"""Seconds for the steps to be made, unless the pace of the loop says that they take longer."""
_ASKING: Final = 2.0
"""Seconds that a rank may take to answer."""
_SILENT: Final = 10.0
"""Seconds after which a rank that does not answer is given up."""
_MARGINS: Final = (0.5, 2.5)
"""Seconds between the first question and the first step, in the first try and in the second."""
_BEGINNING: Final = 5.0
"""Seconds that a cell which was just sent may take to begin and to import its framework."""
_PAUSE: Final = 0.1
_READING: Final = 10.0
"""Seconds that a rank may take to send a part of its trace."""


def check_request(steps: int, path: str | os.PathLike[str] | None = None) -> None:
    """Raise :class:`BadRequest` for a number of steps, or a file, that no profile can have."""
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MOST_STEPS:
        raise BadRequest(f"A profile has 1 to {MOST_STEPS} steps, not {steps!r}.")
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise BadRequest(f"{str(Path(path).parent)!r} is no folder: make it first, or choose another file.")


class Profiling:
    """One profile on its way. For one thread, which calls :meth:`take`, :meth:`end` and :meth:`save`."""

    def __init__(
        self,
        ask: Callable[[list[int], float, Any], Answers[Any]],
        world: Callable[[], World],
        ranks: list[int],
        steps: int = STEPS,
        timeout: float = PATIENCE,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``ask`` gets agents' answers to a question within some seconds; ``world``: the world as it is now.

        ``tell`` gets what is going on, as a sentence.
        """
        self._ask_agents = ask
        self._world = world
        self._key = uuid.uuid4().hex
        self._timeout = timeout
        self._tell = tell
        self._ranks = ranks
        self.steps = steps
        self.run = self.after = 0
        """The number of the run, and the step after which the profile begins; the first step of a cell is 1."""
        self.notes: list[str] = []
        """What is missing from it, as sentences."""

    def take(self) -> list[RankTrace]:
        """The traces of the ranks. Raises :class:`BadRequest`, :class:`RanksDead` and :class:`ProfileFailed`."""
        self._choose()
        states = self._begin_and_wait(_MARGINS)
        done = {rank: state for rank, state in states.items() if state.state == "done"}
        if not done:
            raise ProfileFailed(f"There is no profile. {' '.join(self.notes)}".rstrip())
        self._tell(f"Fetching the {'trace' if len(done) == 1 else 'traces'} of {count_ranks(sorted(done))}.")
        traces = []
        hosts = {rank.rank: rank.host for rank in self._world().ranks}
        for rank, state in sorted(done.items()):
            self._ask(ReadProfile(self._key))  # they drop what nobody asks for any more
            if (data := self._read(rank, state.size)) is None:
                self.notes.append(f"Rank {rank} is not in the trace: it has not sent its part.")
            else:
                traces.append(RankTrace(rank, hosts.get(rank, ""), state.marks, state.framework, data, state.groups))
        if not traces:
            raise ProfileFailed(f"There is no profile. {' '.join(self.notes)}")
        return traces

    def end(self) -> None:
        """Have the ranks drop what they have. Returns at once: a rank that does not hear it drops it later."""
        with contextlib.suppress(DtrainError):
            self._ask_agents(self._living(), _ASKING, EndProfile(self._key))

    def _living(self) -> list[int]:
        world = self._world()
        return [rank for rank in self._ranks if rank < world.size and not world.ranks[rank].has_ended]

    def _ask(self, question: Any) -> Answers[ProfileState]:
        return self._ask_agents(self._living(), _ASKING, question)

    def _choose(self) -> Mapping[int, ProfileState]:
        """Leave those of the ranks that run a cell whose steps can be profiled. Raises :class:`BadRequest`."""
        living = self._living()
        if not living:
            raise RanksDead(
                f"{count_ranks(self._ranks).capitalize()} {_is(self._ranks)} dead: nothing can be profiled."
            )
        if dead := sorted({*self._ranks} - {*living}):
            self.notes.append(f"{count_ranks(dead).capitalize()}: missing: dead.")
        answers = self._hear(time.monotonic() + min(_BEGINNING, self._timeout))
        if silent := [rank for rank, state in answers.items() if state is None]:
            self.notes.append(f"{count_ranks(silent).capitalize()}: missing: does not answer.")
        found = {rank: state for rank, state in answers.items() if state is not None}
        running = {rank: state for rank, state in found.items() if state.run is not None}
        if not running:
            if not found:
                raise ProfileFailed(f"There is no profile. {' '.join(self.notes)}")
            raise BadRequest(
                f"Nothing runs on {count_ranks(sorted(found))}, so there is nothing to profile: start the loop with "
                f"%%distributed --no-wait, or profile from another notebook while its cell runs."
            )
        usable = {rank: state for rank, state in running.items() if state.profilers}
        if not usable:
            known = [one.title or one.name for one in declarations() if one.trace]
            raise BadRequest(
                f"The loop cannot be profiled: {_why_not(running.values(), known)}. Loops of {' and '.join(known)} "
                f"can be, once they have begun."
            )
        if idle := sorted({*found} - {*usable}):
            self.notes.append(f"{count_ranks(idle).capitalize()}: missing: runs nothing that has a profiler.")
        self.run = max(state.run or 0 for state in usable.values())
        self._ranks = sorted(usable)
        return usable

    def _hear(self, deadline: float) -> Answers[ProfileState]:
        """The first answers: a cell that was just sent may not have begun, nor imported its framework."""
        while True:
            answers = self._ask(ReadProfile(self._key))
            sent = {one.rank for one in self._world().ranks if one.state == "running"}
            found = {rank: state for rank, state in answers.items() if state is not None}
            begins = any(state.run is None and rank in sent for rank, state in found.items())
            imports = any(state.run is not None and not state.profilers for state in found.values())
            if not (begins or imports) or time.monotonic() > deadline:
                return answers
            time.sleep(_PAUSE)

    def _begin_and_wait(self, margins: tuple[float, ...]) -> Mapping[int, ProfileState]:
        """The last states of the ranks, once no rank has anything left to do."""
        answers = {rank: state for rank, state in self._ask(ReadProfile(self._key)).items() if state is not None}
        counts = {rank: state.step for rank, state in answers.items()}
        pace = statistics.median([state.pace for state in answers.values()] or [0.0])
        self.after = max(counts.values(), default=0) + max(2, math.ceil(margins[0] / pace) if pace else 2)
        expected = 3 * pace * (self.after - min(counts.values(), default=0) + self.steps)
        deadline = time.monotonic() + max(self._timeout, expected)
        states = {
            rank: state
            for rank, state in self._ask(BeginProfile(self._key, self.after, self.steps)).items()
            if state is not None
        }
        heard = dict.fromkeys(self._ranks, time.monotonic())
        while True:
            begun = any(state.state in ("recording", "writing", "done") for state in states.values())
            self._tell(
                f"Recording {quantity(self.steps, 'step')} from step {self.after + 1} on."
                if begun
                else f"Waiting for step {self.after}, after which all ranks begin to record."
            )
            if any(state.state == "late" for state in states.values()) and len(margins) > 1:
                self.end()
                self._await_end()
                return self._begin_and_wait(margins[1:])
            waiting = [
                rank
                for rank in self._living()
                if (rank not in states or states[rank].state in ("none", "armed", "recording", "writing"))
                and time.monotonic() - heard[rank] < _SILENT
            ]
            if not waiting or time.monotonic() > deadline:
                self._explain(states, waiting)
                return states
            time.sleep(_PAUSE)
            for rank, state in self._ask(ReadProfile(self._key)).items():
                if state is not None:
                    states[rank], heard[rank] = _later(states.get(rank), state), time.monotonic()

    def _await_end(self) -> None:
        """Give ranks that record already the time to stop: they take no second order before."""
        deadline = time.monotonic() + _SILENT
        while time.monotonic() < deadline:
            states = self._ask(ReadProfile(self._key)).values()
            if not any(state is not None and state.state in ("recording", "writing") for state in states):
                return
            time.sleep(_PAUSE)

    def _explain(self, states: Mapping[int, ProfileState], waiting: list[int]) -> None:
        """Note why ranks are missing. Raises :class:`BadRequest` where none has made a step."""
        counts = {rank: state.step for rank, state in states.items()}
        if waiting and not any(counts.values()) and len(waiting) == len(states):
            raise BadRequest(
                f"No step was seen within {self._timeout:g} s: a profile counts the steps of the first optimizer that "
                f"steps in the cell (optimizer.step()), and where none does, what the loop logs after each, by a line "
                f"such as jupyter_dtrain.log(loss=loss). Profile again once the loop has begun."
            )
        living = self._living()
        said: dict[str, list[int]] = {}
        for rank in self._ranks:
            state = states.get(rank)
            if rank not in living and (state is None or state.state != "done"):
                words = "missing: died while it was profiled"
            elif state is None or (state.state in ("none", "armed") and rank not in waiting):
                words = "missing: does not answer"
            else:
                words = self._missing(state)
            if words:
                said.setdefault(words, []).append(rank)
        self.notes += [f"{count_ranks(ranks).capitalize()}: {words}." for words, ranks in said.items()]

    def _missing(self, state: ProfileState) -> str:
        """What is missing of a rank that has answered; empty where nothing is."""
        match state.state:
            case "done":
                return state.words
            case "failed":
                return f"missing: {state.words}"
            case "late":
                return f"missing: was beyond step {self.after} when it was told to begin there"
            case "recording" | "writing":
                return f"missing: has not made {quantity(self.steps, 'step')} in time"
            case _:
                return f"missing: is at step {state.step}, and the profile begins after step {self.after}"

    def _read(self, rank: int, size: int) -> bytes | None:
        """The compressed trace of a rank; None where the rank does not send it."""
        parts, start = [], 0
        while start < size:
            answer = self._ask_agents([rank], _READING, ReadTrace(self._key, start))[rank]
            if answer is None or not answer.data:
                return None
            parts.append(answer.data)
            start += len(answer.data)
        return b"".join(parts)

    def save(self, traces: list[RankTrace], path: Path | None, world: str) -> tuple[Path, Analysis]:
        """Merge ``traces`` into a file; where it is, and what it says. ``world``: the world's name, for the file.

        ``path``: default ``profile-RUN-STEP.json.gz`` in the working directory. Raises :class:`ProfileFailed`.
        """
        self._tell("Putting the traces together." if len(traces) > 1 else "Reading the trace.")
        path = path or Path(f"profile-{self.run}-{self.after}.json.gz")
        facts = {"world": world, "run": self.run, "step": self.after, "steps": self.steps}
        while True:
            try:
                document = merge(traces, facts, _roles())
                break
            except DamagedTrace as error:
                self.notes.append(f"Rank {error.rank} is not in the trace: {error.words}.")
                traces = [trace for trace in traces if trace.rank != error.rank]
                if not traces:
                    raise ProfileFailed(f"There is no profile. {' '.join(self.notes)}") from None
        try:
            _write(path, document)
        except OSError as error:
            raise ProfileFailed(f"The profile cannot be written to {path}: {error.strerror or error}.") from None
        return path.absolute(), analyse(document)


def _later(before: ProfileState | None, now: ProfileState) -> ProfileState:
    """What a rank has come to that said ``before``. It keeps no order that it has refused; a new rank has none."""
    if before is None or now.state != "none":
        return now
    if before.state == "failed":
        return before
    return msgspec.structs.replace(now, state="failed", words="was replaced, or another profile took its place")


def _roles() -> dict[str, Any]:
    """What tells the roles of events in the traces of each framework."""
    return {one.name: load(one.trace) for one in declarations() if one.trace}


def _write(path: Path, document: Mapping[str, Any]) -> None:
    """Write the trace so that it appears whole. Raises :class:`OSError`."""
    # A device, or a pipe, is written to and not replaced.
    whole = path.is_file() or not path.exists()
    draft = path.with_name(f".{path.name}.part") if whole else path
    try:
        data = json.dumps(document, separators=(",", ":")).encode()
        draft.write_bytes(gzip.compress(data, 5) if path.suffix == ".gz" else data)
        if whole:
            draft.replace(path)
    except OSError as error:
        if whole:
            draft.unlink(missing_ok=True)
        if error.errno == errno.ENOSPC:
            raise OSError(
                errno.ENOSPC, "the disk is full: make room, or give %distributed profile another place with -o FILE"
            ) from None
        raise


def _why_not(states: Iterable[ProfileState], known: Collection[str]) -> str:
    """Why nothing can be recorded; ``known``: the frameworks with profilers, which others import without need."""
    used = sorted({name for state in states for name in state.frameworks})
    if strange := [name for name in used if name not in known]:
        return f"{' and '.join(strange)} {'has' if len(strange) == 1 else 'have'} no profiler here"
    return f"{' and '.join(used)} computes nothing yet" if used else "no framework is in use"


def _is(ranks: list[int]) -> str:
    return "is" if len(ranks) == 1 else "are"
