"""Cells whose end is as bad as user code can make it: strategies for source text, shared by the tests of the end.

The source runs where ``gate`` is a :class:`threading.Event`: what blocks does so until that is set.
"""

from __future__ import annotations

import threading
import time

from hypothesis import strategies as st

RAISES = st.sampled_from(
    ["KeyboardInterrupt", "SystemExit(3)", "RuntimeError('again')", "MemoryError", "GeneratorExit"]
)
RUBBISH = st.sampled_from(
    ["None", "5", "b'x'", "'\\ud800'", "'x' * 3_000_000", "[1, '\\ud800']", "object()", "Text('sub')", "{3: object()}"]
)
BLOCKS = st.sampled_from(["gate.wait()", "spin()", "stay()"])

PRELUDE = """
class Text(str):
    def __len__(self): raise RuntimeError
    def __getitem__(self, key): raise RuntimeError
    def encode(self, *a): raise RuntimeError
def spin():
    while not gate.is_set(): pass
def stay():
    while not gate.is_set():
        try: gate.wait(0.05)
        except BaseException: pass
def bad(kind): raise kind
"""


gate = threading.Event()
"""A gate for source that runs in this process."""


def actions(*, blocks: bool) -> st.SearchStrategy[str]:
    """Expressions that raise, give unexpected values or, with ``blocks``, never return."""
    found = st.one_of(RAISES.map("bad({})".format), RUBBISH)
    return st.one_of(found, BLOCKS) if blocks else found


BASES = st.sampled_from(
    ["Exception", "ValueError", "KeyError", "OSError", "SyntaxError", "StopIteration", "UnicodeError", "BaseException"]
)
METHODS = st.sampled_from(["__str__", "__repr__", "__eq__", "__hash__"])
PROPERTIES = st.sampled_from(["__notes__", "__cause__", "__context__", "__traceback__", "__suppress_context__", "args"])
NOTES = st.sampled_from(
    [
        "None",
        "5",
        "'text'",
        "[1, None]",
        "['\\ud800']",
        "['x' * 5_000_000]",
        "['n'] * 100_000",
        "[Hostile()]",
        "[Text('n')]",
    ]
)
RAISED = st.sampled_from(
    ["raise e", "raise e from Hostile()", "raise e from e", "try:\n    1/0\nfinally:\n    raise e"]
)


@st.composite
def exceptions(draw: st.DrawFn) -> str:
    """Code that raises a ``Hostile``."""
    methods = draw(st.dictionaries(METHODS, actions(blocks=True), max_size=2))
    properties = draw(st.dictionaries(PROPERTIES, actions(blocks=True), max_size=2))
    lines = [f"class Hostile({draw(BASES)}):", "    pass"]
    lines += [f"    def {name}(self, *a): return {what}" for name, what in methods.items()]
    lines += [
        f"    {name} = property(lambda self: {what}, lambda self, value: None)" for name, what in properties.items()
    ]
    if draw(st.booleans()):
        # Not one that blocks: IPython may ask an exception for its class.
        lines.append(f"    __class__ = property(lambda self: {draw(actions(blocks=False))})")
    if draw(st.booleans()):
        lines.insert(0, f"class Meta(type): __name__ = property(lambda self: {draw(actions(blocks=False))})")
        lines[1] = lines[1].replace("):", ", metaclass=Meta):")
    lines.append(f"e = Hostile({draw(st.sampled_from(['', '1', repr('text'), 'object()', '[Text(1)]']))})")
    if draw(st.booleans()):
        lines += ["try:", f"    e.__notes__ = {draw(NOTES)}", "except BaseException: pass"]
    lines.append(draw(RAISED))
    return "\n".join([PRELUDE, *lines])


SHOWN = st.sampled_from(
    ["__repr__", "_repr_html_", "_repr_png_", "_repr_mimebundle_", "_ipython_display_", "__class__"]
)


@st.composite
def results(draw: st.DrawFn) -> str:
    """Code whose last value shows itself badly."""
    lines = ["class Shown:", "    pass"]
    for name, what in draw(st.dictionaries(SHOWN, actions(blocks=False), min_size=1, max_size=3)).items():
        property_of = name == "__class__"
        lines.append(
            f"    {name} = property(lambda self: {what})"
            if property_of
            else f"    def {name}(self, **k): return {what}"
        )
    return "\n".join([PRELUDE, *lines, "Shown()"])


NAMES = st.one_of(st.text(max_size=5), st.sampled_from(["\ud800", "x\0y", "n" * 500, "loss"]))
VALUES = st.one_of(
    st.floats(), st.integers(), st.just(10**400), st.none(), st.text(max_size=3), st.booleans(), st.complex_numbers()
)
STEPS = st.one_of(st.none(), st.integers(), st.sampled_from([2**63, -(2**70), 10**300]))

POINTS = st.lists(st.tuples(NAMES, VALUES, STEPS), max_size=4)


def logged(points: list[tuple[str, object, int | None]]) -> str:
    """Code that logs them."""
    lines = [f"jupyter_dtrain.log({{{name!a}: {value!r}}}, step={step!r})" for name, value, step in points]
    return "\n".join(["from math import inf, nan", *lines])


def pressing(stop: threading.Event, press, after: float) -> threading.Thread:
    """Call ``press`` again and again from ``after`` seconds on until ``stop``, as Stop does."""

    def work() -> None:
        if not stop.wait(after):
            while not stop.wait(0.05):
                press()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def in_time(began: float, seconds: float) -> None:
    """A bound against standing still, far above what the end takes."""
    assert time.monotonic() - began < seconds
