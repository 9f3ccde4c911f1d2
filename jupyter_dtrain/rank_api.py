"""The functions that user code calls, in a rank and everywhere else: ``log``, ``config``, ``progress``, ``shard``.

In a rank what is logged becomes the run's metrics, or its media: pictures, text and others. Outside a world, in an
exported script say, numbers are printed and appended to a CSV file where one was named; and all of it is stored where a
store was named.

Under failure: nothing here raises for a value that cannot be logged; it is left out, with one line on stderr. Data that
cannot be divided raises, before any of it is used: a rank that trained on other data than meant would be worse.
"""

from __future__ import annotations

import atexit
import csv
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from jupyter_dtrain.core.configuration import MAX_NAME as MAX_CONFIG_NAME
from jupyter_dtrain.core.configuration import clean_name, say_outside, stored
from jupyter_dtrain.core.declarations import declarations, load
from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.events import Configured
from jupyter_dtrain.core.media import HINT
from jupyter_dtrain.core.settings import STORE_VARIABLE
from jupyter_dtrain.core.sharding import Mode, Share, share_of
from jupyter_dtrain.core.world import PLACES
from jupyter_dtrain.rank.metrics import MAX_NAME
from jupyter_dtrain.rank.rank_context import ProgressBar, rank_home, user_namespace

if TYPE_CHECKING:
    from jupyter_dtrain.rank.media import MediaLog
    from jupyter_dtrain.rank.rank_context import RankHome

CSV_VARIABLE = "DTRAIN_CSV"
"""Environment variable: the CSV file that :func:`log` appends to outside a world; ``{rank}`` in it is the rank."""
MEDIA_PATIENCE = 10.0
"""Seconds at the end of a job in which pictures and other media may still be encoded."""

T = TypeVar("T")


def log(values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **named: Any) -> None:
    """Log numbers: ``log(loss=loss, acc=0.9)``, or ``log({"loss/train": loss})`` for names that are no identifiers.

    A number is Python's, numpy's, or a tensor with one element, which is read later without waiting for its device.
    ``step``: default, in a rank, the step that an optimizer has just made in this cell, so that an accuracy lies over
    the losses; where none steps, and elsewhere, one more than last time, for each name. In a rank the points appear in
    the cell's chart and in ``Run.metrics``. Elsewhere they are printed, stored where the variable
    ``JUPYTER_DTRAIN_STORE`` names a store, and appended to the CSV file that :func:`log_to_csv` or the variable
    ``DTRAIN_CSV`` names.

    Also pictures (arrays and tensors of the shape (height, width), with 1, 3 or 4 channels before or behind; several of
    them in one; PIL's), figures of matplotlib and plotly, text, data frames and lists of dicts. :class:`.Histogram`,
    :class:`.Audio`, :class:`.Table` and, with captions, :class:`.Image` and :class:`.Text` say what else a value is. A
    list of such things is kept as several of one step. They are copied here and encoded on a thread, and the store
    keeps a bounded number of them, for each rank and name: ``StoredRun.media`` has them, and how many there were.
    """
    pairs = {**(values or {}), **named}
    if step is not None and (isinstance(step, bool) or not hasattr(step, "__index__")):
        _complain(f"log(): a step must be a whole number, not {step!r}; log() counts instead")
        step = None
    if (home := rank_home()) is not None:
        for name, value in pairs.items():
            _log_in_rank(home, _clean(name), value, None if step is None else int(step))
        return
    numbers = {}
    for name, value in pairs.items():
        try:
            numbers[_clean(name)] = _float(value)
        except ValueError as error:
            _outside.log_media(_clean(name), value, None if step is None else int(step), error)
    if numbers:
        _outside.log(numbers, None if step is None else int(step))


def config(values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
    """Keep hyper-parameters with the run: ``config(lr=1e-3)``, or ``config({"opt/lr": 1e-3})`` for other names.

    They are added to those that the run has without a word, which its cell's code and the libraries tell, and replace
    those of the same name. Values are numbers (also numpy's, and tensors with one element), text, booleans, None,
    paths, members of enumerations, and lists, tuples, sets, dictionaries and dataclasses of these; at most 8 kB each.
    Others are left out, with one line on stderr, and names of more than 200 characters are cut. Secrets, such as the
    value of ``api_key``, are replaced by ``[redacted]``.

    A value that only some ranks say is kept as well; where ranks say different ones, that of the last of them. Outside
    a world the values go to the record of the job, where the variable ``JUPYTER_DTRAIN_STORE`` names a store.
    """
    told: dict[str, Any] = {}
    for name, value in {**(values or {}), **named}.items():
        try:
            kept = clean_name(name)
            if isinstance(name, str) and len(name) > MAX_CONFIG_NAME:
                _complain(f"config(): names are cut to {MAX_CONFIG_NAME} characters, such as {name[:40]!r}…")
            told[kept] = stored(kept, _number_in(value))
        except Exception as error:  # noqa: BLE001 — of a value that somebody's own class makes
            _complain(f"config(): {clean_name(name)[:80]!r} is left out: {error}")
    if not told:
        return
    if (home := rank_home()) is not None:
        home.emit(Configured(told, "set"))
    else:
        say_outside(told)
        if STORE_VARIABLE in os.environ:
            from jupyter_dtrain.jobs.record import keep_configuration

            keep_configuration()


def log_weights(model: Any, *, every: int = 100, name: str = "") -> None:
    """In a cell: keep histograms of the parameters of ``model``, and of their gradients, while optimizers step.

    ``every``: steps of the optimizer that steps first in a cell between two of them; 0 ends it. ``name``: default the
    variable that holds the model. It goes on in later cells. Of a model with more than 64 parameters, 64 at even
    distances are kept, and a sample of each. What cannot be done gets one line, as in :func:`log`; nothing of this is
    done outside a world.
    """
    home = rank_home()
    if home is None:
        _complain("log_weights(): only cells of a world keep histograms of weights")
        return
    if isinstance(every, bool) or not isinstance(every, int) or every < 0:
        _complain(f"log_weights(): every is a number of steps, or 0, not {every!r:.60}")
        return
    if titles := home.plugins.without_steps():
        _complain(
            f"log_weights(): the steps of {' and '.join(titles)} cannot be seen: in the loop, "
            "jupyter_dtrain.log(weights=jupyter_dtrain.Histogram(...)) does the same"
        )
        return
    names = (one for one, value in list(user_namespace().items()) if value is model and not one.startswith("_"))
    try:
        assert home.step_work.weights is not None
        home.step_work.weights.place(_clean(name or next(names, type(model).__name__)), model, every)
    except ValueError as error:
        _complain(f"log_weights(): {error}")


def broadcast(*names: str, source: int = 0, new: Collection[int] | None = None) -> None:
    """In a cell, on all ranks: make what these variables hold what they hold on the rank ``source``.

    Models, optimizers and whatever else has ``state_dict`` and ``load_state_dict`` get the state, and stay the same
    objects; anything else is replaced by a copy, whose tensors are on the host. A rank that lacks a name gets a copy of
    the whole object. ``new``: ranks that are new processes, which get whole objects; the others get states alone. It
    prints which ranks had other values, and have them no longer.

    Raises :class:`~jupyter_dtrain.core.errors.TransferFailed`, with nothing changed, where a name is missing or cannot
    be sent, and :class:`~jupyter_dtrain.core.errors.BadRequest` for a rank that is not there. Outside a world it does
    nothing.
    """
    home = rank_home()
    if home is None:
        return
    from jupyter_dtrain.core.world import parse_ranks
    from jupyter_dtrain.rank.resync import resync as transfer
    from jupyter_dtrain.wire.values import check_variable

    for name in names:
        check_variable(name)
    (rank,) = parse_ranks(source, home.place.size)
    for note in transfer(list(names), rank, user_namespace(), home.plugins, new=new):
        if home.place.rank == rank:
            print(f"{note}.")


def shard(
    data: Any,
    *,
    mode: Mode = "even",
    shuffle: bool = False,
    seed: int = 0,
    rank: int | None = None,
    size: int | None = None,
) -> Any:
    """The share of ``data`` that this rank reads: of N ranks, rank r gets the items r, r + N, r + 2N and so on.

    The same call works in a cell, in a script under ``torchrun``, ``mpirun`` or ``srun``, and in a process alone, which
    gets everything. It asks no other rank: all ranks must call it with the same data and arguments.

    ``data``, and what comes back:

    * arrays and tensors of any library, divided along the first axis: of shape (n, ...) comes (n / N, ...). Without a
      shuffle this is a view and copies nothing, where the library has views;
    * lists, tuples, ranges: the same kind (a shuffled range is a list). Data frames: rows, with their labels;
    * a dictionary of columns of one length: a dictionary of their shares, whose rows stay together;
    * a ``Dataset``: a ``Subset``; an ``IterableDataset``: one that gives every N-th item;
    * a ``DataLoader``: the same loader with a ``DistributedSampler``. A loader that shuffles goes on doing so; call
      ``loader.sampler.set_epoch(epoch)`` before each epoch for another order. ``batch_size`` stays that of one rank.
      A sampler or batch sampler of your own is divided too: its order is drawn with ``seed`` on all ranks;
    * a dataset of Hugging Face's ``datasets``, also a stream or a dictionary of splits: the same kind;
    * a ``tf.data.Dataset``: a dataset, which is divided first and shuffled then, each rank among its own elements;
    * any other sequence, and anything that can be iterated over.

    ``mode`` decides about what does not divide evenly. ``"even"``, the default, gives every rank as many items and
    leaves out the last few: ranks that make steps together stay together. ``"pad"`` gives every rank as many, and the
    first few items come twice. ``"uneven"`` gives each item to one rank, and the first few ranks get one more.

    ``shuffle``: the order is drawn anew from ``seed``, the same on all ranks. Data of one length is shuffled alike,
    whatever holds it, so rows and labels still match; loaders have the order of their sampler. It takes about 1 s for a
    million items. ``rank`` and ``size``: default those of this process; give both, for example those of one dimension
    of a mesh, where not every rank reads data of its own.

    Raises :class:`~jupyter_dtrain.core.errors.BadRequest`, a ``ValueError``, for data that cannot be divided: too few
    items for equal shares, none of the kinds above, a loader that is divided already, a shuffle or padding of something
    without a length, a rank that is not there.
    """
    share = Share(*_place(rank, size), mode, bool(shuffle), seed)
    for one in declarations():
        if one.shard and (found := load(one.shard)(data, share)) is not None:
            return found
    return share_of(data, share)


def _place(rank: int | None, size: int | None) -> tuple[int, int]:
    """The place that was given, or else this process' own: a rank's, a framework's, a launcher's."""
    if rank is not None and size is not None:
        return rank, size
    if rank is not None or size is not None:
        raise BadRequest("shard() needs both rank and size, or neither.")
    if (home := rank_home()) is not None:
        return home.place.rank, home.place.size
    for one in declarations():
        if one.place and (found := load(one.place)()) is not None:
            own: tuple[int, int] = found
            return own
    for names in PLACES:
        number, count = (os.environ.get(name, "") for name in names)
        if number.isdecimal() and count.isdecimal():
            return int(number), int(count)
    return 0, 1


def log_to_csv(path: str | os.PathLike[str] | None) -> None:
    """Outside a world, append what is logged to the CSV file ``path``: rank, step, time, name, value. None ends that.

    ``{rank}`` in the name becomes the rank, for several processes on several hosts. In a world nothing changes: there
    the store keeps everything.
    """
    _outside.choose(None if path is None else os.fspath(path))


def progress(iterable: Iterable[T], total: float | None = None, name: str = "") -> Iterator[T]:
    """Go through ``iterable`` and show how far the loop is: one bar in the cell for all ranks.

    ``total``: default its length, if it has one. Outside a world the bar is a line on stderr.
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    bar = ProgressBar(name, total)
    home = rank_home()
    try:
        for done, item in enumerate(iterable, 1):
            before = 0 if home is None else home.step_work.items
            yield item
            bar.show(done)
            # An item with a bar inside is no step: the items of that bar are.
            if home is not None and home.step_work.items == before:
                home.step_work.count("loop")
    finally:
        bar.close()


def step() -> None:
    """Count a step of your training loop here: between two of them it can be paused and steered.

    For loops without an optimizer, ``progress()`` or tqdm, and for those in which another line ends a step. All ranks
    call it equally often. It reports nothing, takes about a microsecond, and does nothing outside a world.
    """
    if (home := rank_home()) is not None:
        home.step_work.count("step()")


def _number_in(value: Any) -> Any:
    """A tensor's one element as a number; any other value as it is."""
    home = rank_home()
    if home is None or value is None or type(value) in (bool, int, float, str):
        return value
    try:
        found = home.plugins.number(value)
    except ValueError:
        return value
    return value if found is None else found[1]([found[0]])[0]


def _log_in_rank(home: RankHome, name: str, value: Any, step: int | None) -> None:
    try:
        found = home.plugins.number(value)
        if found is not None:
            home.metrics.add(name, found[0], step, read=found[1], logged=True)
        else:
            home.metrics.add(name, _float(value), step, logged=True)
    except ValueError as error:
        reason = _log_medium(home.media, name, value, lambda: home.metrics.user_step(name) if step is None else step)
        if reason is not None:
            home.metrics.complain(f"log(): {name!r} is left out: {reason or _no_number(value, error)}")


def _log_medium(media: MediaLog, name: str, value: Any, step: Callable[[], int]) -> str | None:
    """Log what is no number; None where that was done, else why not, or empty for a value that is kept nowhere."""
    try:
        return None if not media.on or media.log(name, value, step()) else ""
    except ValueError as error:
        return str(error)


def _no_number(value: Any, error: ValueError) -> str:
    """Why ``value`` is left out: it is no number, and of no kind that is kept beside them."""
    several = isinstance(value, (list, tuple)) or bool(getattr(value, "shape", None))
    return f"{error}; {HINT}" if several else str(error)


def _float(value: Any) -> float:
    """``value`` as a number. Raises :class:`ValueError`."""
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except Exception as error:
        # A number past a float's range, or whatever an object's code raises.
        raise ValueError(f"{type(value).__name__} is not one number ({error})") from error
    raise ValueError(f"{value!r:.60} is text, not a number")


def _clean(name: Any) -> str:
    text = " ".join(str(name).split())
    return text[:MAX_NAME] or "value"


_told: set[str] = set()


def _complain(words: str) -> None:
    if (home := rank_home()) is not None:
        home.metrics.complain(words)
    elif words not in _told:
        _told.add(words)
        print(f"[jupyter-dtrain] {words}", file=sys.stderr)


class _Outside:
    """Where points go when there is no world."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._path = os.environ.get(CSV_VARIABLE)
        self._file: TextIO | None = None
        self._media: MediaLog | None = None
        self._rank = os.environ.get("RANK", "0")

    def choose(self, path: str | None) -> None:
        if self._file is not None:
            self._file.close()
        self._path, self._file = path, None

    def log(self, numbers: dict[str, float], step: int | None) -> None:
        steps = {}
        for name in numbers:
            steps[name] = self._counts[name] if step is None else step
            self._counts[name] = steps[name] + 1
        shown = "  ".join(f"{name} {value:.6g}" for name, value in numbers.items())
        who = f"[{self._rank}] " if "RANK" in os.environ else ""
        print(f"{who}step {max(steps.values())}  {shown}", flush=True)
        if STORE_VARIABLE in os.environ:
            from jupyter_dtrain.jobs.record import log_to_store

            log_to_store(numbers, steps)
        if self._path:
            self._write([[self._rank, steps[name], f"{time.time():.3f}", name, repr(v)] for name, v in numbers.items()])

    def log_media(self, name: str, value: Any, step: int | None, no_number: ValueError) -> None:
        """Store what is no number, if there is a store; else say why it is left out."""
        reason: str | None = str(no_number)
        if STORE_VARIABLE in os.environ:
            media = self._media or self._open_media()
            reason = _log_medium(media, name, value, lambda: self._counts[name] if step is None else step)
            self._counts[name] = (self._counts[name] if step is None else step) + (reason is None)
        elif isinstance(value, str) or hasattr(value, "shape"):
            reason = f"{reason}; what is more is kept in a world, or where {STORE_VARIABLE} names a store"
        if reason is not None:
            _complain(f"log(): {name!r} is left out: {reason or _no_number(value, no_number)}")

    def _open_media(self) -> MediaLog:
        from jupyter_dtrain.jobs.record import media_to_store
        from jupyter_dtrain.rank.media import MediaLog
        from jupyter_dtrain.rank.plugins import Plugins

        plugins = Plugins.load(lambda words: _complain(words.partition("\n")[0]))
        media = self._media = MediaLog(
            media_to_store, lambda words, _: _complain(words), lambda value: plugins.parts("value", value, {})
        )
        media.begin()
        # Python calls the newest of these first: the record of the job, which has begun, ends after it.
        atexit.register(media.end, MEDIA_PATIENCE)
        return media

    def _write(self, rows: list[list[Any]]) -> None:
        try:
            if self._file is None:
                path = str(self._path).replace("{rank}", self._rank)
                self._file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115 — open until the process ends
                if self._file.tell() == 0:
                    csv.writer(self._file).writerow(["rank", "step", "time", "name", "value"])
            csv.writer(self._file).writerows(rows)
            self._file.flush()
        except OSError as error:
            _complain(f"log(): {self._path} cannot be written: {error}")
            self._path = None


_outside = _Outside()
