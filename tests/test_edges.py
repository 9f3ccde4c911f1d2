"""Whatever a person, a page or a disk hands in: no traceback of ours, no hang, and nothing lost that was whole.

Hypothesis makes the lines, cells, names and damaged files. In the suite it makes the same few each time; ``make fuzz``
makes others for as long as it may, and keeps those that fail in ``build/hypothesis``.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from jupyter_dtrain.client.cells import check_syntax
from jupyter_dtrain.client.healing import collectives_in
from jupyter_dtrain.core.errors import DtrainError
from jupyter_dtrain.core.events import Output, Result
from jupyter_dtrain.core.processes import this_place
from jupyter_dtrain.core.run_names import check_note, check_run_name, check_tags, telling_line
from jupyter_dtrain.core.settings import Settings
from jupyter_dtrain.core.snapshots import (
    Manifest,
    begin,
    check_snapshot_name,
    list_snapshots,
    newest,
    publish,
    read_manifest,
    split_every,
    verify,
)
from jupyter_dtrain.core.world import parse_ranks
from jupyter_dtrain.jobs.exporting import export_notebook
from jupyter_dtrain.jobs.notebook import JobWorld, Notebook, NotebookCell
from jupyter_dtrain.launch import worlds
from jupyter_dtrain.launch.options import check
from jupyter_dtrain.launch.starting import choose_name, find_paths, new_id
from jupyter_dtrain.magics import doctor, part_of, sync
from jupyter_dtrain.magics import worlds as world_verbs
from jupyter_dtrain.magics.cells import cell_parser, exec_script, rank_parser
from jupyter_dtrain.magics.completion import RankCompletions
from jupyter_dtrain.magics.parsing import HelpShown, MagicParser
from jupyter_dtrain.magics.table import verb_parser
from jupyter_dtrain.magics.transform import CellTransform
from jupyter_dtrain.store import Store
from jupyter_dtrain.store.intake import StoreIntake
from jupyter_dtrain.store.schema import open_for_writing
from jupyter_dtrain.store.source import SpoolFolder
from jupyter_dtrain.store.writer import SKIPPED
from jupyter_dtrain.wire.spool import file_ends, last_outputs, last_run, read_beginning, read_file, spool_path
from tests.store.conftest import FakeWorld, drain, points

LONG = int(os.environ.get("DTRAIN_FUZZ_EXAMPLES", "0"))
"""How many examples ``make fuzz`` makes of each kind; 0 in the suite."""
EXAMPLES = 12
LONGEST = 60.0
"""Seconds that one example may take, on a busy machine too; it takes milliseconds."""
KEPT = Path(__file__).parents[1] / "build" / "hypothesis"


def edges(function: Callable[..., None]) -> Callable[..., None]:
    """Run a test on examples: the same few each time, or many others."""
    kept = DirectoryBasedExampleDatabase(KEPT) if LONG else None
    slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(
        max_examples=LONG or EXAMPLES, derandomize=not LONG, database=kept, deadline=None, suppress_health_check=slow
    )(function)


@contextlib.contextmanager
def in_words(*allowed: type[BaseException]) -> Iterator[None]:
    """What is refused is refused in words: no other exception comes out, and nothing takes long."""
    timer = threading.Timer(LONGEST, lambda: os.write(2, b"An example takes too long.\n") and os.abort())
    timer.start()
    try:
        with contextlib.suppress(DtrainError, *allowed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # IPython's and Python's own, about the text of a cell
            yield
    finally:
        timer.cancel()


# Text as people, and accidents, make it.

ODD = st.sampled_from(
    [
        *("", " ", "\x00", "\ud800", "\u2028", "\r", "\x1b[31m", "é", "名", "🙂", "'", '"', "\\", "-", "--", "-1", "="),
        *(
            "a=",
            "=a",
            "%",
            "%%",
            "!",
            "?",
            "#",
            "0",
            "1e9",
            "nan",
            "inf",
            "-inf",
            "9" * 30,
            "0-",
            "1-0",
            "0,0",
            "..",
            ".",
        ),
        *("~", "٣", "²", "[", "{", "}", ":", "{:", "%s", "{0}", "NaN", "None", "all", "x" * 3000, "\t", "a b", "\n"),
    ]
)
NAMES = st.one_of(ODD, st.text(max_size=20), st.lists(ODD, max_size=4).map("".join))
FLAGS = sorted(
    {flag for parser in (cell_parser(), rank_parser(), verb_parser()) for flag in parser._option_string_actions}
    | {
        flag
        for action in verb_parser()._actions
        if isinstance(action.choices, dict)
        for one in action.choices.values()
        for flag in one._option_string_actions
    }
)
VERBS = sorted(next(a.choices for a in verb_parser()._actions if isinstance(a.choices, dict)))
WORDS = st.one_of(st.sampled_from(FLAGS), ODD, st.sampled_from(["cnn", "x", "2", "0", "model", "'a b'", "a,b", "10m"]))
LINES = st.one_of(
    st.tuples(st.sampled_from(VERBS), st.lists(WORDS, max_size=5)).map(lambda two: " ".join([two[0], *two[1]])),
    st.lists(WORDS, max_size=5).map(" ".join),
    st.text(max_size=40),
)
PIECES = st.sampled_from(
    [
        *(
            "%%distributed",
            "%%rank[0, 1]",
            "%%rank 0",
            "%%local",
            "%distributed status",
            "%%time",
            "%matplotlib inline",
        ),
        *(
            "!ls {x}",
            "y = !ls",
            "x?",
            "??x",
            "import os",
            "from __future__ import annotations",
            "x = 1",
            "\tif x:",
            "  y",
        ),
        *("'''", '"""', "(", ")", "[", "}", "await f()", "async def f(): pass", "return 1", "yield", "x = \\", "\x00"),
        *(
            "\ud800",
            "\u2028",
            "# coding: latin-1",
            "\ufeff",
            "-" * 20_000 + "1",
            "(" * 150,
            "a" + ".b" * 20_000,
            "if 1:",
        ),
        *(
            "def f():",
            "    return x",
            "class A: x = 1",
            "with open('a') as b:",
            "loss.backward()",
            "x, *y = z",
            "lambda: 0",
        ),
        *(
            "print('name')",
            "exit",
            "%load_ext jupyter_dtrain",
            "f'{x!r:>{y}}'",
            "try:",
            "match x:",
            "é = 1",
            "x: int = 3",
        ),
        *(";", "1" * 5000, "x = 1" + " + 1" * 1500),
    ]
)
CELLS = st.one_of(
    st.lists(PIECES, max_size=6).map("\n".join), st.text(max_size=60), st.lists(ODD, max_size=8).map("".join)
)


@pytest.fixture(scope="module")
def shell(home, tmp_path_factory) -> Iterator[Any]:
    """An IPython with the magics, in a folder of its own, without a world."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("lines"))
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    shell.Completer.use_jedi = False
    shell.run_line_magic("load_ext", "jupyter_dtrain")
    yield shell
    shell.run_line_magic("unload_ext", "jupyter_dtrain")
    InteractiveShell.clear_instance()
    os.chdir(before)


STARTS = (world_verbs.start, doctor.doctor, exec_script, sync.sync)
"""Verbs that begin long work; of those the tests here only read the line."""


@given(LINES)
@edges
def test_a_line_does_something_or_says_why_not(shell, line):
    with in_words(UsageError, HelpShown), contextlib.redirect_stdout(io.StringIO()):
        args = verb_parser().parse_line(line)
        if args.run is world_verbs.start:
            check(world_verbs.start_options(args))
        elif args.run not in STARTS:
            args.run(args)


@given(st.sampled_from([cell_parser, rank_parser]), st.lists(WORDS, max_size=5).map(" ".join))
@edges
def test_the_first_line_of_a_cell_is_read_or_refused(parser: Callable[[], MagicParser], line):
    with in_words(UsageError, HelpShown), contextlib.redirect_stdout(io.StringIO()):
        args = parser().parse_line(line)
        parse_ranks(args.ranks, 4)


@given(CELLS, st.booleans())
@edges
def test_a_cell_is_sent_or_refused_whatever_its_text_is(shell, text, auto):
    transform = CellTransform()
    transform.auto = auto
    with in_words():
        found = "".join(transform(text.splitlines(keepends=True)))
        if not auto and not re.match(r"\s*%%", text):
            assert found == "".join(text.splitlines(keepends=True))
        check_syntax(text)
        collectives_in([text])
    with in_words():
        assert len(telling_line(text)) <= 60


@given(CELLS, st.integers(0, 80))
@edges
def test_a_beginning_is_completed_or_left(shell, text, cursor):
    with in_words(), contextlib.redirect_stdout(io.StringIO()), provisionalcompleter():
        list(shell.Completer.completions(text, min(cursor, len(text))))
    assert part_of(shell, RankCompletions) is not None


@given(st.lists(st.tuples(CELLS, st.booleans()), min_size=1, max_size=4), st.sampled_from(["script", "torchrun"]))
@edges
def test_cells_become_a_job_or_the_export_says_why_not(tmp_path_factory, cells, target):
    kept = tuple(NotebookCell(number, text, on_ranks) for number, (text, on_ranks) in enumerate(cells, 1))
    folder = tmp_path_factory.mktemp("job")
    with in_words():
        made = export_notebook(Notebook("n.ipynb", kept, JobWorld(2)), target, folder / "job.py", with_local=True)
        for file in made.files:
            Path(file).read_text(encoding="utf-8")
        compile((folder / "job.py").read_text(encoding="utf-8"), "job.py", "exec")


@given(NAMES, st.integers(1, 8))
@edges
def test_a_name_can_be_used_or_is_refused(tmp_path_factory, name, size):
    folder = tmp_path_factory.mktemp("names")
    with in_words():
        check_run_name(name).encode()
    with in_words():
        check_note(name).encode()
    with in_words():
        "".join(check_tags([name])).encode()
    with in_words():
        assert all(0 <= rank < size for rank in parse_ranks(name, size))
    with in_words():
        split_every(name)
    with in_words():
        begin(folder, check_snapshot_name(name))
    with in_words():
        worlds.find_world(name)
    for options in ({"name": name}, {"n": name}, {"hosts": name}, {"env": {name: name}}, {"cwd": name}, {name: name}):
        with in_words():
            find_paths(check(options).world)
    with in_words():
        (folder / new_id(choose_name(check({"name": name}).world.name))).mkdir()
    with in_words():
        Settings.from_environment({"JUPYTER_DTRAIN_KEEP_ALIVE": name, f"JUPYTER_DTRAIN_{name}": "1"})
    store = Store(folder / "runs.sqlite")
    with in_words():
        store.runs(1, name, search=name, tag=name)
    with in_words():
        store.run(name)


# Files that something has damaged.

DAMAGE = st.lists(
    st.tuples(
        st.sampled_from(["put", "text", "cut", "end", "repeat"]),
        st.floats(0, 1),
        st.sampled_from(
            [
                b"\x00",
                b"\xff",
                b"\n",
                b'"',
                b"{",
                b"}",
                b"[" * 3000,
                b"null",
                b"-1",
                b"1e999",
                b"9" * 40,
                b",",
                b"\\ud800",
                b"{}",
            ]
        ),
    ),
    min_size=1,
    max_size=4,
)


def damaged(data: bytes, damage: list[tuple[str, float, bytes]]) -> bytes:
    """``data`` with each damage at its place."""
    for kind, where, what in damage:
        place = int(where * len(data))
        match kind:
            case "put":
                data = data[:place] + what + data[place + len(what) % 3 :]
            case "text":  # where a text begins, which msgspec decodes
                places = [found.end() for found in re.finditer(rb':"', data)] or [0]
                place = places[int(where * (len(places) - 1))]
                data = data[:place] + what + data[place:]
            case "cut":
                data = data[:place] + data[place + 7 :]
            case "end":
                data = data[:place]
            case "repeat":
                data = data[:place] + data[max(0, place - 30) : place] + data[place:]
    return data


@pytest.fixture(scope="module")
def world(home, tmp_path_factory) -> FakeWorld:
    """The spools of two runs on two ranks, and a store with them."""
    folder = tmp_path_factory.mktemp("world")
    world = FakeWorld(folder)
    for run in (1, 2):
        world.begin(run, source="loss.backward()")
        for rank in range(2):
            world.say(run, rank, Output("stdout", f"line {rank}\nété\n"), points("loss", [3.0, 2.0, float("nan")]))
            world.say(run, rank, Result({"text/plain": "1"}))
        world.finish(run)
    world.close()
    store = Store(folder / "runs.sqlite")
    with closing(open_for_writing(store.path)) as db:
        drain(world.writer, db)
    return world


@example([("text", 0.0, b"\xff")])
@example([("put", 0.1, b"[" * 3000)])
@given(DAMAGE)
@edges
def test_a_damaged_log_gives_what_is_whole(world, tmp_path_factory, damage):
    folder = tmp_path_factory.mktemp("spool")
    whole = spool_path(world.folder, 1, 0).read_bytes()
    path = spool_path(folder, 1, 0)
    path.parent.mkdir()
    path.write_bytes(damaged(whole, damage))
    other = spool_path(folder, 1, 1)
    other.write_bytes(spool_path(world.folder, 1, 1).read_bytes())
    first = [line for line in path.read_bytes().split(b"\n") if line]
    same = next((n for n, (a, b) in enumerate(zip(first, whole.split(b"\n"), strict=False)) if a != b), len(first))
    with in_words():
        found = list(read_file(path))
        assert len(found) >= min(same, len(whole.split(b"\n")) - 1), "lines before the damage are lost"
    with in_words():
        file_ends(path)
        last_outputs(path)
        read_beginning(folder, 1)
        last_run(folder)
    told: list[str] = []
    intake = StoreIntake(folder / "runs.sqlite", world.owner, SpoolFolder(folder, SKIPPED), 365.0, told.append)
    with in_words():
        for _ in range(5):
            intake.poll()
        intake.close("over")
        assert told == []
        look_at(Store(folder / "runs.sqlite"))
        run = Store(folder / "runs.sqlite").run("world/1")
        assert "été" in run.text(1), "the text of the other rank is lost"


def look_at(store: Store) -> None:
    """Read everything in a store."""
    for run in [*store.runs(20), *store.runs(20, outcome="lost")]:
        for name in ("label", "name", "note", "tags", "outcome", "elapsed", "losses", "parts", "outcomes", "metrics"):
            with in_words():
                getattr(run, name)
        for name in ("resources", "errors", "results", "last_values"):
            with in_words():
                getattr(run, name)
        for rank in run.ranks:
            with in_words(KeyError):
                run.text(rank)
                run.tail(rank)
        with in_words():
            run._repr_mimebundle_()
    store.worlds()


@given(DAMAGE)
@edges
def test_a_damaged_store_says_so(world, tmp_path_factory, damage):
    path = tmp_path_factory.mktemp("store") / "runs.sqlite"
    path.write_bytes(damaged((world.folder.parent / "runs.sqlite").read_bytes(), damage))
    with in_words():
        look_at(Store(path))
    told: list[str] = []
    intake = StoreIntake(path, world.owner, SpoolFolder(world.folder, SKIPPED), 365.0, told.append)
    with in_words():
        intake.poll()
        intake.close("over")


TEXTS = ["runs.ranks", "runs.tags", "runs.name", "runs.source", "runs.note", "runs.outcome", "parts.error"]
TEXTS += ["parts.result", "parts.outcome", "parts.spool", "parts.words", "worlds.host", "worlds.name", "series.name"]
BYTES = ["texts.pieces", "blocks.steps", "blocks.times", "blocks.amounts"]
NUMBERS = ["runs.number", "runs.started", "runs.elapsed", "worlds.size", "worlds.steward", "worlds.steward_created"]
NUMBERS += ["worlds.ended", "parts.bytes", "parts.elapsed", "series.last", "series.best", "series.step"]
JSONS = st.sampled_from(
    ["[" * 5000, '{"a": 1}', '[1, "x"]', "", "null", "[1e999]", "[99999999999999999999]", '{"ename": 1}']
)
PLAIN = st.text(max_size=10).map(lambda text: text.encode("utf-8", "replace").decode())


@given(
    st.one_of(
        st.tuples(st.sampled_from(TEXTS), st.one_of(JSONS, PLAIN)),
        st.tuples(st.sampled_from(BYTES), st.one_of(JSONS.map(str.encode), st.binary(max_size=20))),
        st.tuples(st.sampled_from(NUMBERS), st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats())),
    )
)
@edges
def test_a_store_with_a_strange_value_is_read_or_says_so(world, tmp_path_factory, change):
    """What a broken disk may make of a value, which SQLite does not see."""
    path = tmp_path_factory.mktemp("store") / "runs.sqlite"
    path.write_bytes((world.folder.parent / "runs.sqlite").read_bytes())
    table, name = change[0].split(".")
    with closing(sqlite3.connect(path)) as db, contextlib.suppress(sqlite3.IntegrityError), db:
        db.execute(f"UPDATE {table} SET {name} = ?", change[1:])  # noqa: S608 — our own names
    with in_words():
        look_at(Store(path))


@example([("text", 0.0, b"\xff")])
@example([("put", 0.1, b"[" * 3000)])
@given(DAMAGE)
@edges
def test_a_damaged_snapshot_is_no_snapshot(tmp_path_factory, damage):
    root, key = tmp_path_factory.mktemp("snapshots"), b"k" * 32
    for name in ("whole", "damaged"):
        place = publish(begin(root, name), key, Manifest(name, 1.0, "world", 2, {"model": "torch"}, 3, {}))
    (place / "manifest.json").write_bytes(damaged((place / "manifest.json").read_bytes(), damage))
    with in_words():
        verify(key, newest(root, "damaged"), read_manifest(newest(root, "damaged")))
    assert "whole" in [one.name for one in list_snapshots(root, key)]


@example([("text", 0.0, b"\xff")])
@example([("put", 0.1, b"[" * 3000)])
@given(DAMAGE)
@edges
def test_a_damaged_listing_hides_no_world(home, damage):
    folder = worlds.runtime_folder()
    mine = worlds.Listing(
        "alive", "1", 2, "/", os.getpid(), own_start(), "/none", place=this_place(), folders=["/none"]
    )
    for name in ("alive", "damaged"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        worlds.write_listing(folder / name, mine)
    path = folder / "damaged" / "world.json"
    path.write_bytes(damaged(path.read_bytes(), damage))
    try:
        with in_words():
            assert "1" in [one.id for one in worlds.list_worlds()]
            worlds.dead_worlds()
            worlds.relist(str(folder / "damaged"), 3)
    finally:
        for name in ("alive", "damaged"):
            (folder / name / "world.json").unlink()


def own_start() -> float:
    """When this process was created."""
    import psutil

    return psutil.Process().create_time()
