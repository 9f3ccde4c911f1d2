"""One run in the store: what it keeps of it, and how a person names, annotates, keeps and deletes it.

Every member opens the file, reads or writes, and closes it. Under failure: :class:`StoreFailed`, and nothing changes.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.events import RUNNING, Environment, Error, Outcome, Output, Result, Series
from jupyter_dtrain.core.metrics import RunMetrics, last_step
from jupyter_dtrain.core.processes import still_runs
from jupyter_dtrain.core.run_names import check_note, check_run_name, check_tags, name_from_place, telling_line
from jupyter_dtrain.core.steering import RecordedAct
from jupyter_dtrain.core.step_summary import StepSummary
from jupyter_dtrain.core.step_time import SlowStep
from jupyter_dtrain.core.structs import readable
from jupyter_dtrain.core.world import size_at
from jupyter_dtrain.wire.spool import read_file

from . import configuration, lineage, losses, text_storage
from .figures import FIGURES, Figure, figures_of
from .happenings import RunHappening
from .losses import Loss, Newest
from .media import Medium, find_media
from .provenance import RunCommit

if TYPE_CHECKING:
    from .file import StoreFile

COLUMNS: Final = """runs.id, runs.number, runs.source, runs.ranks, runs.started, runs.ended, runs.outcome, runs.elapsed,
    runs.name, runs.note, runs.tags, runs.kept, runs.remark, runs.cell, runs.notebook, runs.heading, runs.batch,
    runs.resumes, runs.first_step, runs.aside, runs.trains, runs.config, runs.origins,
    worlds.name, worlds.key, worlds.size, worlds.host, worlds.steward, worlds.steward_created, worlds.ended"""
"""The columns that make a :class:`StoredRun`."""
KEPT: Final = "FROM runs JOIN worlds ON worlds.id = runs.world WHERE NOT runs.deleted"
"""The rows that are not deleted, as the middle of a query."""
_TABLES: Final = (
    *("parts", "series", "texts", "step_times", "acts"),
    *("environments", "commits", "media", "media_counts", "happenings", "tracked"),
)
"""The tables whose rows go with a run."""
TRAINS_FROM: Final = 5.0
"""Seconds from which on a run without a metric counts as a training, too."""
AWAY = 60.0
"""Seconds after which an unseen run counts as ended away, where its driver's process cannot be checked."""


class StoredPart(msgspec.Struct, frozen=True):
    """One rank of a stored run."""

    rank: int
    pid: int
    host: str
    spool: str
    """Path, on ``host``, of the whole log, which exists for some days."""
    outcome: Outcome | None
    """None while the rank works."""
    elapsed: float | None
    """Seconds."""
    words: str
    """Why the rank is lost, or what is wrong with its log."""
    bytes: int
    """How many bytes of text it printed."""


class StoredRun:
    """A run in the store. Its members raise :class:`StoreFailed` when the store cannot be read.

    ``outcome`` and ``ended`` show the time of the request for the run; everything else is read on access.
    """

    def __init__(
        self,
        store: StoreFile,
        run: int,
        number: int,
        source: str,
        ranks: str | None,
        started: float,
        ended: float | None,
        outcome: Outcome | None,
        elapsed: float | None,
        name: str,
        note: str,
        tags: str,
        kept: int,
        remark: str,
        cell: int | None,
        notebook: str,
        heading: str,
        group: str,
        resumes: int | None,
        first_step: int,
        aside: int,
        trains: int,
        config: str,
        origins: str,
        world: str,
        world_id: str,
        size: int,
        host: str,
        steward: int,
        steward_created: float,
        world_ended: float | None,
    ) -> None:
        self._store = store
        self.id = run
        """Its row in the store, for programs: people call it ``world/3``, see :attr:`label`."""
        self.number = number
        """Its number, as its cell shows it; no other run of a world of the same name has it."""
        self.source = source
        """The cell."""
        self.ranks: list[int] = msgspec.json.decode(ranks, type=readable(list[int])) if ranks else []
        self.world = world
        """The world's name; ``world_id`` is unique."""
        self.world_id = world_id
        self.size = size_at(self.ranks, size)
        """Ranks in the world: as many as it had first, or more where the run shows that a resize has added some."""
        self.started = started
        """Seconds since the epoch, as ``ended``."""
        self.ended = ended
        self._name = name
        self._note = note
        self._tags: list[str] = msgspec.json.decode(tags, type=readable(list[str]))
        self._kept = bool(kept)
        self.remark = remark
        """The fate of the ranks that an elastic run has lost, where it ended well; else empty."""
        self.cell = cell
        """The number of its cell in the notebook; None where it is not known."""
        self.notebook = notebook
        """The file of its notebook; empty where it is not known, as ``heading``, the heading above its cell."""
        self.heading = heading
        self.group = group
        """The name that a person gave several runs in common; empty for none."""
        self.resumes = resumes
        """The :attr:`id` of the run whose training it goes on with, from ``first_step`` on; None for none."""
        self.first_step = first_step
        self.aside = bool(aside)
        """Whether it only prepared ranks, for a verb such as ``resize``."""
        self.trains = bool(trains)
        """Whether it has logged a metric."""
        self._config = config
        self._origins = origins
        self._newest: Newest | None = None
        self._outcome = outcome
        self._elapsed = elapsed
        self._host = host
        self._steward = (steward, steward_created)
        self._world_ended = world_ended

    @property
    def file(self) -> StoreFile:
        """The store that it is from."""
        return self._store

    @property
    def label(self) -> str:
        """``world/3``, as people call it."""
        return f"{self.world}/{self.number}"

    @property
    def name(self) -> str:
        """The name that a person gave it, or else the heading above its cell, or the line that tells it from others."""
        return self._name or name_from_place(self.heading, self.cell) or telling_line(self.source)

    @name.setter
    def name(self, name: str) -> None:
        self.edit(name=name)

    @property
    def note(self) -> str:
        """The words that a person wrote about the run; empty without any."""
        return self._note

    @note.setter
    def note(self, note: str) -> None:
        self.edit(note=note)

    @property
    def tags(self) -> list[str]:
        """The run's tags; assign a list to change them."""
        return list(self._tags)

    @tags.setter
    def tags(self, tags: Iterable[str]) -> None:
        self.edit(tags=tags)

    @property
    def kept(self) -> bool:
        """Whether it stays in the store for ever: neither its age nor :meth:`delete` removes it."""
        return self._kept

    @kept.setter
    def kept(self, kept: bool) -> None:
        self.edit(kept=kept)

    @property
    def training(self) -> bool:
        """Whether lists of trainings have it: it logs metrics, or has taken some seconds, and is no verb of ours."""
        return not self.aside and (self.trains or self.elapsed > TRAINS_FROM)

    @property
    def losses(self) -> list[Loss]:
        """The last and the best value of each loss of the run, without reading its points."""
        return list(self._known.losses)

    @property
    def last_values(self) -> list[float]:
        """The last value of each main metric on each rank; NaN for one that is not finite, which the store lacks."""
        return list(self._known.values)

    @property
    def last_step(self) -> int | None:
        """The step after which another run goes on with its training; None where it has logged no metric."""
        rows = self._rows(
            "SELECT name, max(step) FROM series WHERE run = ? AND kind = 'metric' AND step IS NOT NULL GROUP BY name"
        )
        return last_step(dict(rows))

    @property
    def _known(self) -> Newest:
        if self._newest is None:
            rows = self._rows(losses.NEWEST.format(runs="?"))
            self.take_newest(losses.newest(rows).get(self.id))
        return self._newest or losses.NONE

    def take_newest(self, found: Newest | None) -> None:
        """Keep the newest values that were read for a list of runs, so that they are not read again."""
        self._newest = found or losses.NONE

    def edit(
        self,
        *,
        name: str | None = None,
        note: str | None = None,
        tags: Iterable[str] | None = None,
        kept: bool | None = None,
    ) -> None:
        """Change name, note, tags or ``kept``; None leaves one as it is. An empty name restores the automatic one.

        Raises :class:`BadRequest` for what cannot be that, or when the run is deleted.
        """
        new_name = self._name if name is None else check_run_name(name)
        new_note = self._note if note is None else check_note(note)
        new_tags = self._tags if tags is None else check_tags(tags)
        new_kept = self._kept if kept is None else bool(kept)
        changes = {"name": name, "note": note, "tags": tags, "kept": kept}
        values = {"name": new_name, "note": new_note, "tags": msgspec.json.encode(new_tags).decode(), "kept": new_kept}
        columns = [column for column, given in changes.items() if given is not None]
        if not columns:
            return
        query = (
            f"UPDATE runs SET {', '.join(f'{column} = :{column}' for column in columns)} WHERE id = :id AND NOT deleted"  # noqa: S608 — our own names
        )
        with self._store.writing() as db:
            if not db.execute(query, {**values, "id": self.id}).rowcount:
                raise BadRequest(f"Run {self.label} is no longer in the store.")
        self._name, self._note, self._tags, self._kept = new_name, new_note, new_tags, new_kept

    def keep(self, *, kept: bool = True) -> None:
        """Keep the run in the store for ever; with ``kept=False`` only as long as others (``Settings.store_days``)."""
        self.edit(kept=kept)

    def check_deletable(self) -> None:
        """Raise :class:`BadRequest` while it runs, and for a run that is kept."""
        now = run_with_id(self._store, self.id)
        if now.outcome == RUNNING:
            raise BadRequest(f"Run {self.label} is running: interrupt it first, or wait for its end.")
        if now.kept:
            raise BadRequest(f"Run {self.label} is kept: set kept to False before you delete it.")

    def delete(self) -> None:
        """Remove the run from the store: its cell, text and metrics. No later run gets its number.

        The log of its world has its events until ``Settings.log_days`` after the world's end.

        Raises :class:`BadRequest` while it runs, and for a run that is kept.
        """
        with self._store.writing() as db:
            self.check_deletable()
            for table in _TABLES:
                db.execute(f"DELETE FROM {table} WHERE run = ?", (self.id,))  # noqa: S608 — our own names
            db.execute(
                "UPDATE runs SET deleted = 1, seen = 1, source = '', name = '', note = '', tags = '[]', "
                "config = '{}', origins = '{}', heading = '', "
                "outcome = coalesce(outcome, 'lost'), ended = coalesce(ended, ?) WHERE id = ?",
                (time.time(), self.id),
            )

    @property
    def outcome(self) -> Outcome | Literal["running"]:
        """How it ended, like :attr:`Run.outcome`; also ``lost`` when its world was killed."""
        if self._outcome is not None:
            return self._outcome
        return "lost" if world_is_over(self._world_ended, self._host, *self._steward) else "running"

    @property
    def elapsed(self) -> float:
        """Seconds that the cell took on its slowest rank, or has taken so far."""
        if self._elapsed is not None:
            return self._elapsed
        until = time.time()
        if self.outcome == "lost":
            heard = self._rows("SELECT max(heard) FROM parts WHERE run = ?")
            until = heard[0][0] if heard and heard[0][0] else self.started
        return max(0.0, until - self.started)

    @property
    def parts(self) -> dict[int, StoredPart]:
        """The ranks that have begun it."""
        rows = self._rows(
            "SELECT rank, pid, host, spool, outcome, elapsed, words, bytes FROM parts WHERE run = ? ORDER BY rank"
        )
        return {row[0]: StoredPart(*row) for row in rows}

    @property
    def outcomes(self) -> dict[int, Outcome]:
        """How each rank ended, without those that have not. Where the world is over, the others are lost."""
        told: dict[int, Outcome] = {rank: part.outcome for rank, part in self.parts.items() if part.outcome is not None}
        silent = [rank for rank in self.ranks if rank not in told]
        if not silent or not world_is_over(self._world_ended, self._host, *self._steward):
            return told
        told.update((rank, "lost") for rank in silent)
        return dict(sorted(told.items()))

    @property
    def metrics(self) -> RunMetrics:
        """All points that its ranks have logged: ``run.metrics["loss"][0].values`` are the losses of rank 0."""
        return self._columns("metric")

    @property
    def figures(self) -> dict[str, Figure]:
        """Last, lowest and highest value of each metric, over all ranks, without reading its points."""
        return figures_of(self._rows(f"{FIGURES} AND run = ?")).get(self.id, {})

    @property
    def lineage(self) -> list[StoredRun]:
        """The runs whose training it goes on with, oldest first, and itself as the last."""
        return self._others(lineage.chain_of(self._store, self.id))

    @property
    def continued(self) -> list[StoredRun]:
        """The runs that go on with its training."""
        return self._others(lineage.continued_by(self._store, self.id))

    @property
    def whole_metrics(self) -> RunMetrics:
        """The metrics of its whole :attr:`lineage` as those of one training, each step once.

        Times are those of the first run and the seconds that were spent in training since.
        """
        return lineage.joined(self.lineage)[0]

    def _others(self, ids: list[int]) -> list[StoredRun]:
        marks = ", ".join("?" * len(ids))
        found = {run.id: run for run in find_runs(self._store, f"runs.id IN ({marks})", tuple(ids))}
        return [found[one] for one in ids if one in found]

    @property
    def resources(self) -> RunMetrics:
        """Each rank's resources, about once a second: ``cpu`` (per cent of a core), ``rss`` (bytes) and more.

        With GPUs also ``gpu utilisation``, ``gpu used`` and so on, as in :class:`~jupyter_dtrain.core.events.Gpu`.
        """
        return self._columns("resource")

    @property
    def step_time(self) -> dict[int, dict[str, float]]:
        """The share of a step, 0 to 1, that each of its parts takes, by rank, as in :attr:`Run.step_time`.

        Empty where no steps were seen, and for runs of earlier versions.
        """
        found = self.step_summary
        if found is None:
            return {}
        return {one.rank: dict(zip(found.parts, one.shares, strict=True)) for one in found.ranks}

    @property
    def communication(self) -> dict[int, dict[str, float]]:
        """What its communication consisted of, as :attr:`Run.communication`: the four calls that took longest.

        Empty where no steps were seen; for runs of earlier versions, no rank has calls.
        """
        found = self.step_summary
        if found is None:
            return {}
        calls = {one.rank: zip(found.calls, one.calls, strict=True) for one in found.ranks}
        return {rank: {call: share for call, share in pairs if share} for rank, pairs in calls.items()}

    @property
    def slow(self) -> list[SlowStep]:
        """Why its steps were slow, the costliest reason first, as in :attr:`Run.slow`."""
        found = self.step_summary
        return [] if found is None else found.slow

    @property
    def step_summary(self) -> StepSummary | None:
        """Where the time of its steps went, with the course of the run; None where no steps were seen."""
        rows = self._rows("SELECT summary FROM step_times WHERE run = ?")
        with self._store.reading():
            return msgspec.json.decode(rows[0][0], type=readable(StepSummary)) if rows else None

    @property
    def acts(self) -> list[RecordedAct]:
        """What persons have asked of its loop between two steps, oldest first, as :attr:`Run.acts`."""
        rows = self._rows("SELECT told FROM acts WHERE run = ? ORDER BY number")
        with self._store.reading():
            return [msgspec.json.decode(told, type=readable(RecordedAct)) for (told,) in rows]

    @property
    def config(self) -> dict[str, Any]:
        """Its hyper-parameters, by name: JSON values, from wherever they are known, see :attr:`origins`."""
        with self._store.reading():
            return configuration.read(self._config)

    @property
    def origins(self) -> dict[str, str]:
        """Where each value of :attr:`config` comes from: ``library``, ``cell``, ``sent`` with ``-i``, or ``set``."""
        with self._store.reading():
            return configuration.read(self._origins)

    @property
    def environments(self) -> dict[int, Environment]:
        """What each rank ran in: Python, packages, devices and more; empty for runs of earlier versions."""
        rows = self._rows("SELECT rank, told FROM environments WHERE run = ? ORDER BY rank")
        with self._store.reading():
            return {rank: msgspec.json.decode(told, type=readable(Environment)) for rank, told in rows}

    @property
    def commit(self) -> RunCommit | None:
        """The state of its code under git when it began; None where it was not under git, and for earlier versions."""
        rows = self._rows("SELECT told FROM commits WHERE run = ?")
        with self._store.reading():
            return msgspec.json.decode(rows[0][0], type=readable(RunCommit)) if rows else None

    @property
    def happenings(self) -> list[RunHappening]:
        """What happened to it beside its training, oldest first: interrupts, lost ranks, acts on its loop."""
        rows = self._rows("SELECT time, words FROM happenings WHERE run = ? ORDER BY time, id")
        return [RunHappening(*row) for row in rows]

    @property
    def media(self) -> list[Medium]:
        """What it has logged beside numbers, as far as the store keeps it: by name, step, rank and number."""
        return find_media(self._store, "run = ?", (self.id,))

    @property
    def media_logged(self) -> dict[str, dict[int, int]]:
        """How many things each rank has logged beside numbers, kept or not: by name, then by rank."""
        found: dict[str, dict[int, int]] = {}
        for name, rank, logged in self._rows(
            "SELECT name, rank, logged FROM media_counts WHERE run = ? ORDER BY name, rank"
        ):
            found.setdefault(name, {})[rank] = logged
        return found

    @property
    def errors(self) -> dict[int, Error]:
        """The exceptions that ended the cell, by rank; very long ones are shortened."""
        rows = self._rows("SELECT rank, error FROM parts WHERE run = ? AND error IS NOT NULL ORDER BY rank")
        with self._store.reading():
            return {rank: msgspec.json.decode(text, type=readable(Error)) for rank, text in rows}

    @property
    def results(self) -> dict[int, Result]:
        """The value of the cell's last expression, by rank, as representations; large ones only as text."""
        rows = self._rows("SELECT rank, result FROM parts WHERE run = ? AND result IS NOT NULL ORDER BY rank")
        with self._store.reading():
            return {rank: msgspec.json.decode(text, type=readable(Result)) for rank, text in rows}

    def text(self, rank: int, stream: Literal["stdout", "stderr"] | None = None) -> str:
        """The text that ``rank`` printed, in order: of both streams, or of one.

        A long text comes whole from the rank's log while that exists. After that you get its beginning and its end,
        with a line between them that says how much is missing. Raises :class:`KeyError` for a rank that did not run
        the cell.
        """
        part = self.parts[rank]
        stored = list(self._pieces(rank))
        missing = part.bytes - sum(text_storage.size(text) for _, _, text in stored)
        if missing > 0:
            with contextlib.suppress(OSError):
                said = (event.body for event in read_file(part.spool))
                spooled = [body for body in said if isinstance(body, Output) and not body.log]
                return "".join(output.text for output in spooled if stream in (None, output.stream))
        texts = [text for number, kind, text in stored if number >= 0 and stream in (None, kind)]
        if missing > 0:
            texts.append(f"\n[… {missing} bytes are missing: their log no longer exists …]\n")
        return "".join([*texts, *(text for number, kind, text in stored if number < 0 and stream in (None, kind))])

    def tail(self, rank: int, lines: int = 10) -> list[str]:
        """The last ``lines`` lines of ``rank``'s text, from the store alone. Raises :class:`KeyError`."""
        if rank not in self.parts:
            raise KeyError(rank)
        text = "".join(text for _, _, text in self._pieces(rank)).rstrip("\n")
        return [line.rpartition("\r")[2] for line in text.split("\n")[-lines:]] if text else []

    def _pieces(self, rank: int) -> Iterator[tuple[int, str, str]]:
        rows = self._rows(
            "SELECT number, pieces FROM texts WHERE run = ? AND rank = ? ORDER BY number < 0, number", rank
        )
        for number, data in rows:
            with self._store.reading():
                found = text_storage.unpack(data)
            for stream, text in found:
                yield number, stream, text

    def _columns(self, kind: str) -> RunMetrics:
        found = RunMetrics(self.ranks)
        rows = self._rows(
            "SELECT rank, name, steps, times, amounts FROM series JOIN blocks ON blocks.series = series.id "
            "WHERE run = ? AND kind = ? ORDER BY rank, series.id, number",
            kind,
        )
        with self._store.reading():
            for rank, name, *columns in rows:
                found.add(rank, Series(name, *columns))
        return found

    def _rows(self, query: str, *values: Any) -> list[Any]:
        return self._store.ask(lambda db: db.execute(query, (self.id, *values)).fetchall()) or []

    def __repr__(self) -> str:
        return f"<run {self.label}: {self.outcome}, {self.elapsed:.1f} s>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        from jupyter_dtrain.view.stored import bundle

        return bundle(self)

    def was_away(self, driver: int | None, created: float | None) -> bool:
        """Whether it ended while the client that controlled it, a process that was ``created`` then, was gone."""
        if driver is None or created is None or self._host != socket.gethostname():
            return self.ended is not None and time.time() - self.ended > AWAY
        return not still_runs(driver, created)


def find_runs(store: StoreFile, clause: str, values: tuple[Any, ...]) -> list[StoredRun]:
    """The runs that an SQL clause names, in its order. Raises :class:`StoreFailed`."""
    rows = store.ask(lambda db: db.execute(f"SELECT {COLUMNS} {KEPT} AND {clause}", values).fetchall())
    return [StoredRun(store, *row) for row in rows or []]


def run_with_id(store: StoreFile, run: int) -> StoredRun:
    """The run whose :attr:`StoredRun.id` is ``run``. Raises :class:`BadRequest` when there is none."""
    match = find_runs(store, "runs.id = ?", (run,))
    if not match:
        raise BadRequest("This run is no longer in the store.")
    return match[0]


def world_is_over(ended: float | None, host: str, steward: int, created: float) -> bool:
    """Whether no steward will write more about a world."""
    return ended is not None or (host == socket.gethostname() and not still_runs(steward, created))
