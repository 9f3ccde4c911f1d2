"""A rank describes its names without running the user's code."""

from __future__ import annotations

import collections
import math
import queue
import threading
import weakref

import pytest

from jupyter_dtrain.core.dotted_paths import resolve
from jupyter_dtrain.core.world import placements
from jupyter_dtrain.rank.inspection import MOST, complete, describe
from jupyter_dtrain.rank.plugins import Plugins
from jupyter_dtrain.rank.questions import RankQuestions
from jupyter_dtrain.wire.agent_messages import Complete


class Array:
    """Has the attributes of an array, which no code may compute."""

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: object, shape: object) -> None:
        self.dtype, self.shape = dtype, shape


class Lazy:
    """Computes."""

    plain = 1

    @property
    def shape(self) -> object:
        raise AssertionError("computed")

    dtype = shape

    def __getattr__(self, name: str) -> object:
        if name == "layer":
            return Lazy.plain
        raise ZeroDivisionError


def test_names_go_on():
    """Hidden ones never appear, and private ones on request."""
    names = {"loss": 1, "lo_class": Lazy, "_low": 2, "In": 3, "math": math, "log": print}
    assert complete(names, {"In"}, "lo") == [("lo_class", "class"), ("log", "function"), ("loss", "instance")]
    assert complete(names, {"In"}, "I") == []
    assert complete(names, {"In"}, "_") == [("_low", "instance")]
    assert ("math", "module") in complete(names, (), "")
    assert complete(names, (), "math.sq") == [("sqrt", "function")]
    assert complete(names, (), "nothing.x") == []
    assert len(complete({f"name{number}": 0 for number in range(1000)}, (), "n")) == MOST


def test_attributes_that_would_be_computed_are_not():
    """Names from a ``__getattr__`` are there, whatever it raises."""
    lazy = {"lazy": Lazy(), "counter": collections.Counter(a=1)}
    assert resolve(lazy, "lazy.plain") == 1
    assert resolve(lazy, "lazy.layer") == 1
    assert callable(resolve(lazy, "counter.most_common"))
    assert callable(resolve(lazy, "counter.fromkeys"))
    for path in ("lazy.shape", "lazy.nothing", "nothing", "lazy.plain.nothing", "lazy."):
        with pytest.raises(LookupError):
            resolve(lazy, path)


@pytest.mark.parametrize(
    ("value", "type_", "words"),
    [
        (0.5, "float", "0.5"),
        ("a" * 200, "str", "'" + "a" * 78 + "…"),
        (None, "NoneType", "None"),
        ([1, 2], "list", "of 2"),
        ({"a": 1, 2: 3, (1,): 4}, "dict", "of 3: 'a', 2, …"),
        ({}, "dict", "of 0"),
        (Array("torch.float32", (2, 3)), f"{__name__}.Array", "float32 (2, 3)"),
        (Array("torch.float32", None), f"{__name__}.Array", ""),
        (math, "module", ""),
    ],
)
def test_values_are_described_in_few_words(value, type_, words):
    """The description has facts that need no computation."""
    found = describe({"x": value}, "x", source=False)
    assert found is not None
    assert (found.type, found.value) == (type_, words)


def test_an_object_that_only_looks_like_an_array_is_not_computed():
    """Its shape is a property."""
    found = describe({"x": Lazy()}, "x", source=False)
    assert found is not None
    assert (found.type, found.value) == (f"{__name__}.Lazy", "")


def test_nothing_of_the_users_is_run_for_a_signature_or_a_kind():
    """No ``__repr__`` of a default value, no ``__class__`` that is computed; and nothing is lost by one value."""

    class Hostile:
        def __repr__(self) -> str:
            raise AssertionError("shown")

        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

    def step(batch=Hostile(), *, rate: float = 0.1, name="a"):  # noqa: B008 — that is the point
        return batch, rate, name

    found = describe({"step": step}, "step", source=False)
    assert found is not None
    assert found.signature == "step(batch=…, *, rate=0.1, name='a')"
    gone = collections.Counter(a=1)
    names = {"hostile": Hostile(), "gone": weakref.proxy(gone), "huge": 10**5000, "model": 1}
    del gone
    assert [name for name, _ in complete(names, (), "")] == ["gone", "hostile", "huge", "model"]
    assert describe(names, "huge", source=False).value == ""
    assert describe(names, "hostile", source=False).type.endswith("Hostile")


def test_a_question_that_waits_stops_no_other():
    """The next one is refused until it is answered, and a failure is reported as such."""
    go, answers = threading.Event(), queue.SimpleQueue()

    class Slow:
        def __dir__(self) -> list[str]:
            assert go.wait(10)
            raise SystemExit

    questions = RankQuestions({"slow": Slow(), "loss": 1}, (), Plugins([]), placements(["here"])[0], None)
    assert questions.ask(Complete("slow."), answers.put)
    assert not questions.ask(Complete("lo"), answers.put)
    go.set()
    assert answers.get(timeout=10)["status"] == "error"
    assert questions.ask(Complete("lo"), answers.put)
    assert answers.get(timeout=10) == {"status": "ok", "names": [("loss", "instance")]}


def test_functions_and_classes_are_described_as_such():
    """They have signature, docstring and, on request, source."""
    names = {"resolve": resolve, "Lazy": Lazy, "print": print}
    found = describe(names, "resolve", source=True)
    assert found is not None
    assert found.signature.startswith("resolve(namespace")
    assert found.doc.startswith("The value of a dotted path.")
    assert found.source.startswith("def resolve")
    assert describe(names, "resolve", source=False).source == ""
    assert describe(names, "Lazy", source=False).doc == "Computes."
    assert describe(names, "print", source=True).source == ""
    assert describe(names, "nothing", source=False) is None
