"""How a cell scales: the same cell in worlds of several sizes, one after the other. ``%%speedup`` and ``speedup()``.

Each size has a world of its own, which is started for it and stopped after it; the notebook's world is left alone. In
each, the cell runs once to warm up (imports, caches, compilers) and then as often as asked, with clocks in the ranks.
Its batch comes to it as the variable ``batch_size``, where the batch of all ranks, or that of one, is fixed.

Under failure: a size at which the cell or the start fails is named, and the others are measured all the same. Stop ends
the measurement, and what was measured is kept. No world is left behind.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.client.cells import check_syntax
from jupyter_dtrain.core.causes import DistributedError, RunTimeout
from jupyter_dtrain.core.errors import BadRequest, DtrainError
from jupyter_dtrain.core.scaling import Repeat, Scaling, Size
from jupyter_dtrain.core.world import quantity
from jupyter_dtrain.launch.options import check
from jupyter_dtrain.session import Session, open_sessions
from jupyter_dtrain.wire.requests import LOCAL

if TYPE_CHECKING:
    from jupyter_dtrain.core.run import Run

FRESH = "The cell runs in fresh worlds, without variables of the notebook's: imports and definitions belong into it"
"""The fix for a name that is missing."""

PER_PROCESSOR = 4
"""Ranks for each processor of this machine, at most: more of them measure how they share it, and nothing else."""


class Speedup(Scaling):
    """The measurements of a cell at several sizes; a notebook shows it as a chart and a table."""

    def __repr__(self) -> str:
        return str(self._repr_mimebundle_()["text/plain"])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """All representations, by MIME type."""
        from jupyter_dtrain.view.scaling import bundle

        return bundle(self)

    def to_pandas(self) -> Any:
        """A data frame with a row for each run. Raises :class:`ImportError` where pandas is missing."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "ranks": size.ranks,
                    "seconds": repeat.seconds,
                    "batch": size.batch,
                    "steps": size.steps,
                    **{f"rank {rank} waits": spent.communication for rank, spent in repeat.spent.items()},
                }
                for size in self.measured
                for repeat in size.repeats
            ]
        )


def speedup(
    source: str,
    sizes: Iterable[int],
    *,
    global_batch: int | None = None,
    per_rank_batch: int | None = None,
    repeats: int = 3,
    warmup: int = 1,
    timeout: float | None = None,
    start: Mapping[str, Any] | None = None,
    progress: Callable[[Speedup], None] | None = None,
) -> Speedup:
    """Run the cell ``source`` in a world of each of ``sizes`` ranks, and compare the times.

    ``global_batch``: samples of one step of all ranks together, which each size divides: the ranks get the variable
    ``batch_size = global_batch // ranks``. ``per_rank_batch``: the samples of one rank, ``batch_size`` at every size.
    At most one of them; without either, the ranks get no such variable, and the cell decides. The cell should read its
    share of the data (:func:`jupyter_dtrain.shard`), or make a fixed number of steps.

    ``repeats``: measured runs at each size, default 3; ``warmup``: runs before them, default 1. ``timeout``: seconds
    after which a run is interrupted and its size counts as failed. ``start``: options of :meth:`.Session.start` for all
    worlds, such as ``hosts``. ``progress`` gets the measurements so far whenever there is news.

    A size at which the start or the cell fails is in :attr:`.Size.failure`; an interrupt ends the measurement, and is
    in :attr:`.Scaling.interrupted`. Before any world is started it raises :class:`BadRequest`: for sizes that are no
    whole numbers above 0, that do not divide the global batch or for which there are too few slots, and for options
    that cannot be; and :class:`BadSyntax` for a cell that does not parse.
    """
    wanted = _check_sizes(sizes)
    options = dict(start or {})
    batches = _batches(wanted, global_batch, per_rank_batch)
    if repeats < 1 or warmup < 0:
        raise BadRequest("repeats must be at least 1, and warmup at least 0.")
    if not source.strip().strip("#"):
        raise BadRequest("The cell is empty: write the code to measure.")
    check_syntax(source)
    if reserved := {"n", "name"} & set(options):
        raise BadRequest(f"speedup() decides itself about {' and '.join(sorted(reserved))}: leave that out of start.")
    for ranks in wanted:
        _check_slots(ranks, options)
    found = Speedup(wanted, repeats, global_batch, per_rank_batch)
    going = _Measurement(found, source, options, timeout, progress or (lambda _: None))
    for ranks in wanted:
        size = Size(ranks, batch=batches.get(ranks))
        found.sizes.append(size)
        try:
            going.measure(size, warmup)
        except KeyboardInterrupt:
            found.interrupted = True
            break
    found.now = ""
    going.report(found)
    return found


def _check_sizes(sizes: Iterable[int]) -> list[int]:
    if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Iterable):
        raise BadRequest(f"sizes are whole numbers, such as [1, 2, 4], not {sizes!r}.")
    wanted = list(dict.fromkeys(sizes))
    for ranks in wanted:
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise BadRequest(f"A size is a whole number of ranks above 0, not {ranks!r}.")
    if not wanted:
        raise BadRequest("Name the sizes to measure, such as 1, 2 and 4 ranks.")
    return wanted


def _batches(sizes: list[int], global_batch: int | None, per_rank_batch: int | None) -> dict[int, int]:
    """The batch of one rank, by size; empty where the cell decides."""
    if global_batch is not None and per_rank_batch is not None:
        raise BadRequest("Fix the batch of all ranks or that of one, not both.")
    for value in (global_batch, per_rank_batch):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadRequest(f"A batch has a whole number of samples above 0, not {value!r}.")
    if per_rank_batch is not None:
        return dict.fromkeys(sizes, per_rank_batch)
    if global_batch is None:
        return {}
    if odd := [ranks for ranks in sizes if global_batch % ranks]:
        raise BadRequest(
            f"A batch of {global_batch} cannot be divided among {' or '.join(map(str, odd))} ranks: choose a multiple."
        )
    return {ranks: global_batch // ranks for ranks in sizes}


def _check_slots(ranks: int, options: Mapping[str, Any]) -> None:
    asked = check({"n": ranks, **options})
    processors = len(os.sched_getaffinity(0))
    if asked.launcher.name == LOCAL and ranks > PER_PROCESSOR * processors:
        raise BadRequest(
            f"{ranks} ranks are too many for the {processors} processors of this machine, which has slots for "
            f"{PER_PROCESSOR * processors}: choose smaller sizes, or name hosts.",
            option="n",
        )
    asked.share_gpus().place()  # raises where hosts have too few slots, or this machine too few GPUs


class _Measurement:
    """Measures sizes, one after the other."""

    def __init__(
        self,
        found: Speedup,
        source: str,
        options: dict[str, Any],
        timeout: float | None,
        report: Callable[[Speedup], None],
    ) -> None:
        self._found = found
        self._source = source
        self._options = options
        self._timeout = timeout
        self.report = report

    def measure(self, size: Size, warmup: int) -> None:
        """Start a world, run the cell in it, and stop it."""
        before = open_sessions.failure
        name = f"speedup-{size.ranks}-{secrets.token_hex(2)}"
        self._say(f"{quantity(size.ranks, 'rank')}: starting a world")
        try:
            with Session.start(size.ranks, name=name, **self._options) as session:
                size.notes += _sharing(session)
                self._repeat(session, size, warmup)
        except RunTimeout:
            size.failure = f"the cell took longer than {self._timeout:g} s"
        except DistributedError as error:
            size.failure = f"the cell failed: {error}".partition("\n")[0]
            if any(one.ename == "NameError" for one in error.run.errors.values()):
                size.failure = f"{size.failure.rstrip('.')}. {FRESH}"
        except DtrainError as error:
            size.failure = f"not measured: {error}".partition("\n")[0]
        finally:
            # The notebook's cells have nothing to do with a start that failed here.
            open_sessions.failure = before
        self._say("")

    def _repeat(self, session: Session, size: Size, warmup: int) -> None:
        inputs = {} if size.batch is None else {"batch_size": size.batch}
        given = size.batch
        for count in range(-warmup, self._found.repeats):
            what = "warming up" if count < 0 else f"run {count + 1} of {self._found.repeats}"
            self._say(f"{quantity(size.ranks, 'rank')}: {what}")
            run = session.run(
                self._source,
                inputs=inputs,
                view=None,
                timeout=self._timeout,
                name=f"speedup: {quantity(size.ranks, 'rank')}, {what}",
            )
            if count >= 0:
                size.repeats.append(Repeat(run.elapsed, run.spent))
                _take_work(size, run)
        if given is not None and size.batch != given and size.batch is not None and size.batch % given:
            size.notes.append(
                f"a rank reads {size.batch} samples a step, not batch_size = {given}: use that variable in the cell."
            )

    def _say(self, words: str) -> None:
        self._found.now = words
        self.report(self._found)


def _take_work(size: Size, run: Run) -> None:
    """Note the work of the run: the steps of its optimizer that made most, and the batch that its loader gave."""
    steps = [count for counts in run.steps.values() for count in counts.values()]
    size.steps = max(steps, default=size.steps)
    size.batch = run.batch or size.batch


def _sharing(session: Session) -> list[str]:
    """Whether ranks share processors, so that they cannot be as fast as where each has its own."""
    processors = len(os.sched_getaffinity(0))
    ranks = session.world.size
    if session.request.launcher != LOCAL or ranks <= processors:
        return []
    return [f"they share {processors} processors, so they cannot be as fast as where each rank has one."]
