"""Exceptions and stacks become frames that begin with the cell."""

from __future__ import annotations

import linecache
import sys
import sysconfig
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_dtrain.plugins.framework import Framework
from jupyter_dtrain.rank.main_thread import MainThread
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.tracebacks import (
    MAX_DEPTH,
    MAX_FRAMES,
    MAX_MEMBERS,
    MAX_NOTES,
    MAX_TEXT,
    PACKAGE,
    Tracebacks,
    blame_users,
)
from jupyter_dtrain.rank.user_text import Words
from tests.steward.until import until


@pytest.fixture
def tracebacks(tmp_path):
    """Files named <1>, <2>, … are cells; the notebook lies in ``tmp_path``."""
    return Tracebacks(lambda file: f"cell [{file[1:-1]}]" if file[1:-1].isdigit() else None, tmp_path)


def execute(source: str, file: str = "<1>", namespace: dict | None = None) -> dict:
    """Run ``source`` as if it stood in ``file``."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = {} if namespace is None else namespace
    exec(compile(source, file, "exec"), namespace)  # noqa: S102 — code with a file name of our choice
    return namespace


def raised(source: str, **options) -> BaseException:
    """The exception that ``source`` raises."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 — of any kind
        execute(source, **options)
    return caught.value


def test_frames_before_the_cell_are_left_out(tracebacks):
    """The frames of the code that runs the cell help no reader."""
    frames = tracebacks.error(raised("def f():\n    1 / 0\nf()")).frames

    assert [("cell [1]", 3, "", "f()", True), ("cell [1]", 2, "f", "1 / 0", True)] == [
        (frame.file, frame.line, frame.function, frame.source, frame.cell) for frame in frames
    ]


@pytest.mark.parametrize(
    ("line", "name", "said"),
    [
        ("dist.all_reduce(1)", "wrapper", "all_reduce"),
        ("dist.all_reduce(1)", "_variable_call", "all_reduce"),
        ("dist.all_reduce(1)", "backward", "backward"),
        ("f = dist.all_reduce; f(1)", "thread_fn", "f"),
        ("(lambda: dist.all_reduce)()(1)", "wrapper", "wrapper"),
    ],
)
def test_a_wait_has_the_name_in_the_users_line_where_the_librarys_says_nothing(tracebacks, line, name, said):
    """A line that shows no name leaves the library's."""

    class Mine(Framework):
        name = "mine"

        def waits(self):
            return name

    main_thread = MainThread(Plugins([("mine", Mine())], lambda _: None), tracebacks, lambda _: None)
    found = []

    def all_reduce(_value):
        found.append(main_thread._wait_at(sys._getframe(), None, idle=True).call)

    execute(line, namespace={"dist": SimpleNamespace(all_reduce=all_reduce)})
    assert found == [said]


def test_an_exception_that_never_met_a_cell_has_no_frames(tracebacks):
    """Its name and message are shown all the same."""
    error = tracebacks.error(raised("raise ValueError('x')", file="elsewhere.py"))

    assert ("ValueError", "x", []) == (error.ename, error.evalue, error.frames)


def test_modules_beside_the_notebook_are_the_users_own(tracebacks, tmp_path):
    """Modules in an environment that lies there, or in the standard library, are not."""
    places = {
        tmp_path / "model.py": True,
        tmp_path / "package" / "part.py": True,
        Path(sysconfig.get_paths()["stdlib"]) / "json" / "x.py": False,
        Path(sysconfig.get_paths()["purelib"]) / "torch" / "x.py": False,
        tmp_path.parent / "other.py": False,
    }
    for place, own in places.items():
        inner = execute("def f(): raise ValueError", file=str(place))
        frames = tracebacks.error(raised("f()", namespace=inner)).frames

        assert [True, own] == [frame.cell for frame in frames]


def test_libraries_of_the_user_are_no_code_of_the_notebook(tmp_path, monkeypatch):
    """A notebook in the home folder, packages below it."""
    import site

    monkeypatch.setattr(site, "USER_SITE", str(tmp_path / ".local" / "lib" / "site-packages"))
    tracebacks = Tracebacks(lambda file: "cell [1]" if file == "<1>" else None, tmp_path)
    inner = execute("def f(): raise ValueError", file=str(tmp_path / ".local" / "lib" / "site-packages" / "x.py"))
    frames = tracebacks.error(raised("f()", namespace=inner)).frames

    assert [True, False] == [frame.cell for frame in frames]


def test_a_deep_stack_keeps_its_ends(tracebacks):
    """First and last frames, in bounded number."""
    error = tracebacks.error(raised("def f(n):\n    if not n: raise ValueError\n    f(n - 1)\nf(400)"))

    assert MAX_FRAMES == len(error.frames)
    assert ("f(400)", "if not n: raise ValueError") == (error.frames[0].source, error.frames[-1].source)


def test_frames_that_are_not_kept_are_not_made(tracebacks, monkeypatch):
    """Endless recursion has a million of them."""
    asked = []
    monkeypatch.setattr(linecache, "getline", lambda *place: asked.append(place) or "")
    depth = 20_000 if sys.version_info >= (3, 11) else 2000  # before, each call takes of C's stack
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    try:
        caught = raised(f"def f(n):\n    if not n: raise ValueError\n    f(n - 1)\nf({depth})")
    finally:
        sys.setrecursionlimit(limit)

    assert len(tracebacks.error(caught).frames) == MAX_FRAMES == len(asked)


def test_a_long_message_is_cut(tracebacks):
    """A mark shows the cut."""
    error = tracebacks.error(ValueError("x" * 3 * MAX_TEXT))

    assert "x" * MAX_TEXT + " …" == error.evalue


def test_a_secret_is_in_no_text_of_an_error(tracebacks, monkeypatch):
    """Neither one of the environment nor one of a known form: an error is stored."""
    secret, key = "zebra-lamp-of-the-environment", "sk-0123456789abcdefghij"
    monkeypatch.setenv("MY_API_KEY", secret)
    caught = ValueError(f"{secret} and {key} are refused by postgres://me:blue@host")
    caught.__notes__ = [f"a note with {key}"]
    caught.__cause__ = KeyError(secret)
    error = tracebacks.error(caught)

    assert error.evalue == "[redacted] and [redacted] are refused by postgres://me:[redacted]@host"
    assert error.notes == ["a note with [redacted]"]
    assert error.cause == "KeyError: '[redacted]'"


def test_a_message_that_cannot_be_made_is_replaced(tracebacks):
    """The exception's own name stays."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise TypeError

    assert "<its text could not be made: TypeError>" == tracebacks.error(Mute()).evalue


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        ("raise ValueError('b') from error", "KeyError: 'a'"),
        ("raise ValueError('b')", "KeyError: 'a'"),
        ("raise ValueError('b') from None", None),
        ("raise ValueError('b') from OSError('c')", "OSError: c"),
    ],
)
def test_the_cause_is_shown(tracebacks, ending, cause):
    """The stated one, else the context unless it was suppressed."""
    error = tracebacks.error(raised(f"try:\n    {{}}['a']\nexcept KeyError as error:\n    {ending}"))

    assert cause == error.cause


def test_notes_are_shown(tracebacks):
    """They may be of any type."""
    error = ValueError()
    error.__notes__ = ["one", 2]

    assert ["one", "2"] == tracebacks.error(error).notes


@pytest.mark.parametrize(
    ("notes", "told"),
    [
        (None, []),
        (5, ["5"]),
        ("text", ["'text'"]),
        ([None, "n"], ["None", "n"]),
        (["x" * 20_000_000], ["x" * MAX_TEXT + " …"]),
        (["x" * MAX_TEXT, "y"], ["x" * MAX_TEXT, "… and 1 more notes"]),
        (["n"] * 1000, ["n"] * MAX_NOTES + [f"… and {1000 - MAX_NOTES} more notes"]),
    ],
)
def test_notes_of_any_kind_are_shown_in_bounded_size(tracebacks, notes, told):
    """User code may put anything there; the error stays the user's."""
    error = ValueError("mine")
    error.__notes__ = notes

    assert (tracebacks.error(error).evalue, tracebacks.error(error).notes) == ("mine", told)


def test_an_exception_whose_class_replaces_everything_is_shown(tracebacks):
    """The interpreter's own attributes are read, not the class's."""
    names = ("__cause__", "__context__", "__traceback__", "__notes__", "__suppress_context__", "__class__")
    body = "".join(f"    {name} = property(lambda self: 1 / 0)\n" for name in names)
    error = raised(f"class Odd(Exception):\n{body}raise Odd('x')")
    told = tracebacks.error(error)

    assert (told.ename, told.evalue, [frame.line for frame in told.frames]) == ("Odd", "x", [8])
    assert (told.cause, told.notes) == (None, ["<the list of its notes could not be made: ZeroDivisionError>"])


def test_a_text_that_never_comes_costs_its_patience_once(tracebacks):
    """All texts of one error share it, and the thread of the late one is ended."""
    made = []

    def spin() -> str:
        made.append(threading.current_thread())
        while True:
            pass

    slow = type("Slow", (Exception,), {"__str__": lambda _: spin()})()
    slow.__cause__ = type(slow)()
    told = tracebacks.error(slow, Words(0.1))

    assert told.evalue.startswith("<its text was not ready after 0.")
    assert told.cause.startswith("Slow: <its text was not ready after 0.")
    assert len(made) == 1
    until(lambda: not made[0].is_alive())


def test_a_syntax_error_shows_its_line_and_caret(tracebacks):
    """Only a syntax error has that."""
    error = tracebacks.error(raised("compile('x = = 1', 'made.py', 'exec')"))

    assert "made.py" in error.syntax
    assert "x = = 1\n        ^" in error.syntax
    assert tracebacks.error(ValueError()).syntax is None


def test_a_stack_begins_at_the_cell(tracebacks):
    """Outermost first; empty where no cell is on it."""
    seen = []
    execute("def g():\n    look()\ng()", namespace={"look": lambda: seen.append(tracebacks.stack(sys._getframe()))})
    frames = seen[0]

    assert ["g()", "look()"] == [frame.source for frame in frames[:2]]
    assert [] == tracebacks.stack(sys._getframe())
    assert [] == tracebacks.stack(None)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no exception groups")
def test_a_group_keeps_its_first_members_to_some_depth(tracebacks):
    """Python's own traceback does the same."""
    from builtins import ExceptionGroup

    group = ExceptionGroup("deepest", [ValueError(1)])
    for _ in range(MAX_DEPTH + 3):
        group = ExceptionGroup("deeper", [group])
    wide = tracebacks.error(ExceptionGroup("wide", [ValueError(n) for n in range(MAX_MEMBERS + 4)]))
    deep, depth = tracebacks.error(group), 0
    while deep.members:
        deep, depth = deep.members[0], depth + 1

    assert [str(n) for n in range(MAX_MEMBERS)] == [member.evalue for member in wide.members]
    assert wide.left_out == 4
    assert (depth, deep.left_out) == (MAX_DEPTH, 1)


@pytest.mark.parametrize(("stacklevel", "line"), [(1, 3), (2, 5), (3, 6), (99, 0)])
def test_a_warning_names_the_line_that_it_would_name_without_our_frames(monkeypatch, stacklevel, line):
    """A function of ours stands between the caller and the library that warns."""
    monkeypatch.setattr(warnings, "warn", warnings.warn)
    blame_users()
    stand_in = execute("def stand_in(call): return call()", f"{PACKAGE}frameworks/x.py")["stand_in"]
    source = f"""import warnings
def library():
    warnings.warn("said", stacklevel={stacklevel})
def user():
    return stand_in(library)
user()"""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        execute(source, "<1>", {"stand_in": stand_in})

    assert [("said", line or told[0].lineno)] == [(str(one.message), one.lineno) for one in told]
    assert (told[0].filename == "<1>") == bool(line)
