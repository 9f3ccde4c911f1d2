"""The guard around replaced parts of libraries: the user's call ends as the library ends it, and the fault is told."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
import weakref

import pytest

from jupyter_dtrain.plugins import patches
from jupyter_dtrain.plugins.patches import Patch, caller, meant, raises_on_purpose, require


@pytest.fixture
def faults():
    """The faults that were reported."""
    found: list[patches.Fault] = []
    patches.report_to(found.append)
    yield found
    patches.report_to(None)


@pytest.fixture
def library(monkeypatch):
    """A library with a class and functions."""
    module = types.ModuleType("a_library")
    exec(  # noqa: S102 — a library of its own for each test, which nothing else imports
        """
class Loader:
    kept = None
    def __init__(self, data):
        self.data = data
    def take(self, index, default=None):
        if index is None:
            raise KeyError("the library's")
        return self.data[index]
    @staticmethod
    def count(data):
        return len(data)
    @classmethod
    def make(cls, data):
        return cls(data)

def run(name, *, times=1):
    return name * times
""",
        vars(module),
    )
    monkeypatch.setitem(sys.modules, "a_library", module)
    return module


def patch(monkeypatch, *names, **options):
    """A patch that the table forgets after the test, and whose faults are told anew."""
    monkeypatch.setattr(patches, "_table", [])
    monkeypatch.setattr(patches, "_reported", set())
    options = {"why": "Because.", "lost": "losses are not shown", **options}
    return Patch("a_library", replaces=names, **options)


def test_a_replacement_stands_around_the_original(monkeypatch, library, faults):
    """Methods, static and class methods and functions, by position and by name, as the library's own."""
    seen = []

    def take(original, loader, index, *args, **kwargs):
        seen.append(index)
        return original(loader, index, *args, **kwargs) + 1

    def count(original, data):
        return original(data) + 1

    def make(original, cls, data):
        seen.append(cls)
        return original(cls, [*data, 0])

    def run(original, name, *, times=1):
        return original(name, times=times + 1)

    one = patch(monkeypatch, "Loader.take", "Loader.count", "Loader.make", "run")
    for owner, ours in ((library.Loader, take), (library.Loader, count), (library.Loader, make), (library, run)):
        one.replace(owner, ours.__name__, ours)

    loader = library.Loader.make([1, 2])
    assert (loader.take(0), loader.take(index=1), loader.data) == (2, 3, [1, 2, 0])
    assert (library.Loader.count([1]), loader.count([1])) == (2, 2)
    assert (library.run("a"), library.run(name="a", times=2)) == ("aa", "aaa")
    assert seen == [library.Loader, 0, 1]
    assert faults == []
    assert (library.run.__name__, library.run.__wrapped__("a")) == ("run", "a")


@pytest.mark.parametrize("when", ["before", "after", "while it handles the library's error"])
def test_a_replacement_that_raises_changes_nothing_for_the_user(monkeypatch, library, faults, when):
    """The fault is told once, with what the user loses; the library's own exception comes without a trace of ours."""

    def take(original, loader, index, default=None):
        if when == "before":
            index.nothing  # noqa: B018 — it raises
        try:
            found = original(loader, index, default)
        except KeyError:
            index.nothing  # noqa: B018 — it raises
        if when == "after":
            index.nothing  # noqa: B018 — it raises
        return found

    one = patch(monkeypatch, "Loader.take")
    one.replace(library.Loader, "take", take)
    loader = library.Loader([4])
    with pytest.raises(KeyError, match="the library's") as raised:
        loader.take(None)
    if when != "while it handles the library's error":
        assert (loader.take(0), loader.take(0)) == (4, 4)

    assert (raised.value.__cause__, raised.value.__context__) == (None, None)
    (fault,) = faults
    assert "A part of jupyter-dtrain failed inside Loader.take of a_library (AttributeError: '" in fault.words
    assert fault.words.endswith("and the call went on without it: losses are not shown.")
    assert "index.nothing" in fault.trace


def test_what_a_user_does_wrong_is_no_fault_of_a_replacement(monkeypatch, library, faults):
    """The library itself says what is wrong with the arguments."""

    def take(original, loader, index, default=None):
        return original(loader, index + 0, default)

    patch(monkeypatch, "Loader.take").replace(library.Loader, "take", take)
    loader = library.Loader([4])
    for wrong in (loader.take, lambda: loader.take(0, 1, 2), lambda: loader.take("a")):
        with pytest.raises(TypeError):
            wrong()

    assert faults == []


@pytest.mark.parametrize("way", ["marked", "by a function that is marked", "from the library's", "an interrupt"])
def test_what_a_replacement_raises_on_purpose_reaches_the_user(monkeypatch, library, faults, way):
    """So do interrupts."""

    @raises_on_purpose
    def refuse():
        raise ValueError("refused")

    def take(original, loader, index, default=None):
        if way == "marked":
            raise meant(ValueError("refused"))
        if way == "an interrupt":
            raise KeyboardInterrupt("refused")
        if way == "from the library's":
            try:
                original(loader, None, default)
            except KeyError as error:
                raise ValueError("refused") from error
        refuse()

    patch(monkeypatch, "Loader.take").replace(library.Loader, "take", take)
    with pytest.raises((ValueError, KeyboardInterrupt), match="refused"):
        library.Loader([4]).take(0)

    assert faults == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_that_failed_keeps_nothing(monkeypatch, library, faults, fails):
    """What its frames hold is freed at once: a model, on a device that is full."""

    class Model:
        pass

    def take(original, loader, index, default=None):
        try:
            return original(loader, index, default)
        finally:
            if fails:
                index.nothing  # noqa: B018 — it raises

    patch(monkeypatch, "Loader.take").replace(library.Loader, "take", take)
    gc.disable()
    try:
        model = Model()
        gone = weakref.ref(model)
        with contextlib.suppress(KeyError):
            library.Loader(model).take(None)
        del model
        assert gone() is None
    finally:
        gc.enable()


def renamed(original, loader, place, default=None):
    """The library calls it ``index``."""


def reordered(original, loader, default, index):
    """The library has them the other way round."""


def shorter(original, loader, index):
    """The library takes one more."""


def longer(original, loader, index, default, more):
    """The library takes one less."""


def by_name(original, loader, index, default=None, *, more=None):
    """The library takes no such name."""


@pytest.mark.parametrize("ours", [renamed, reordered, shorter, longer, by_name])
def test_a_replacement_for_another_signature_is_left_out(monkeypatch, library, faults, ours):
    """The import goes on, the library works, and the user knows what is lost."""
    take = library.Loader.take
    one = patch(monkeypatch, "Loader.take")
    one.when_imported(lambda module: one.replace(module.Loader, "take", ours))

    assert library.Loader.take is take
    (fault,) = faults
    assert fault.words.startswith("a_library lacks parts that jupyter-dtrain uses (Loader.take takes ")
    assert fault.words.endswith("): losses are not shown. %distributed info names the tested version.")


def test_a_patch_is_there_as_a_whole_or_not_at_all(monkeypatch, library, faults):
    """One part may hold up what another lets go."""
    take, run = library.Loader.take, library.run
    one = patch(monkeypatch, "Loader.take", "run", "Loader.kept", "Loader.extra")

    def hook(module):
        one.replace(module.Loader, "take", lambda original, *args: original(*args))
        one.put(module.Loader, "kept", 1)
        one.replace(module, "run", renamed)

    one.when_imported(hook)

    assert (library.Loader.take, library.run, library.Loader.kept) == (take, run, None)
    assert len(faults) == 1


def test_a_fault_within_a_users_handler_is_told(monkeypatch, library, faults):
    """The exception that the user handles there is none of the call's."""

    def take(original, loader, index, default=None):
        index.nothing  # noqa: B018 — it raises

    patch(monkeypatch, "Loader.take").replace(library.Loader, "take", take)
    try:
        int("the user's")
    except ValueError:
        assert library.Loader([4]).take(0) == 4

    assert len(faults) == 1


def test_private_functions_are_looked_up_with_their_parameters(library):
    """A missing one, and one that takes other parameters."""
    require(library, "Loader.take(index)", "Loader.count(data)", "Loader(data)", "run(name)", "Loader.kept")
    require(library.Loader([1]), "take(index)", "data")
    with pytest.raises(AttributeError, match=r"a_library has no Loader\.gone, no\.such"):
        require(library, "Loader.gone", "no.such", "run")
    for name in ("Loader.take(place)", "Loader.make(data, more)", "Loader()", "run()"):
        with pytest.raises(TypeError, match="was expected"):
            require(library, name)
    require(sys.modules["builtins"], "print(anything)")


def test_a_hook_whose_parts_are_missing_is_left_out(monkeypatch, library, faults):
    """It is never called."""
    called = []
    patch(monkeypatch, calls=("Loader.gone()",)).when_imported(called.append)
    patch(monkeypatch, calls=("Loader.take(index)",)).when_imported(called.append)

    assert called == [library]
    assert [fault.words.partition(":")[0] for fault in faults] == [
        "a_library lacks parts that jupyter-dtrain uses (a_library has no Loader.gone)"
    ]


def test_a_callback_of_ours_never_ends_the_users_call(monkeypatch, faults):
    """Public hooks of libraries raise what a callback raises."""

    def after_step(optimizer):
        return optimizer.nothing

    callback = patch(monkeypatch).callback(after_step)

    assert callback(1) is None
    assert len(faults) == 1
    assert "failed inside after_step of a_library" in faults[0].words


def test_only_what_is_declared_can_be_replaced(monkeypatch, library):
    """The table is whole."""
    one = patch(monkeypatch, "Loader.take")
    with pytest.raises(LookupError, match="run is not among"):
        one.replace(library, "run", library.run)
    with pytest.raises(LookupError, match="kept is not among"):
        one.put(library.Loader, "kept", 1)


def test_a_replacement_finds_the_users_frame(monkeypatch, library, faults):
    """The names of losses are read there."""
    seen = []

    def run(original, name, *, times=1):
        seen.append(caller())
        return original(name, times=times)

    patch(monkeypatch, "run").replace(library, "run", run)
    library.run("a")

    assert seen[0].f_code.co_name == "test_a_replacement_finds_the_users_frame"
