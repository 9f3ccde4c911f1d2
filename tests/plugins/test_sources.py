"""Where frames are in their sources, and how little of that stays."""

from __future__ import annotations

import ast
import gc
import linecache
import sys

import pytest
from executing import Source

from jupyter_dtrain.plugins import sources
from jupyter_dtrain.plugins.sources import FILES, LOOKS, executing_at

CODE = "value = look(\n    sys._getframe(), 'loss'\n)"


def run(number, code=CODE, *, known=True):
    """Return what ``look`` gave in code of a file of its own, such as a rerun of a cell."""
    name = f"<ipython-input-{number}-abc>"
    if known:
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    space = {"look": lambda frame, _: executing_at(frame).node, "sys": sys}
    exec(compile(code, name, "exec"), space)  # noqa: S102 — as a cell is run
    linecache.cache.pop(name, None)
    return space["value"]


def test_the_call_that_a_frame_makes_is_found_again_and_again():
    for number in range(2 * FILES):
        assert ast.unparse(run(number)) == "look(sys._getframe(), 'loss')"
    assert run(0, known=False) is None


@pytest.mark.parametrize(
    "code",
    [
        "if sys: value = look(sys._getframe(), 'loss')",
        "for _ in '1': value = look(sys._getframe(), 'loss')",
        "other = 1; value = look(sys._getframe(), 'loss')",
        "def loss():\n    other = 1; return look(sys._getframe(), 'loss')\nvalue = loss()",
    ],
)
def test_the_call_is_found_where_its_line_has_other_statements(code):
    assert ast.unparse(run(0, code)) == "look(sys._getframe(), 'loss')"


def test_little_stays_of_many_reruns_and_of_code_that_is_made_at_each_step():
    """No cache has what was read of an earlier cell."""
    for number in range(4 * FILES):
        run(number)
    gc.collect()
    # Not isinstance(), which asks objects that other tests have left for their class.
    read = sum(issubclass(type(one), Source) and one.filename.startswith("<ipython-input-") for one in gc.get_objects())
    for _ in range(LOOKS + 8):
        run("one")

    assert 0 < read <= FILES + 1
    assert sources._sources._looks < LOOKS
