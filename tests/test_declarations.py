"""Declarations of frameworks reach the parts without ranks; one that cannot be loaded is left out."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

from jupyter_dtrain import Session
from jupyter_dtrain.core.declarations import declarations, explain_last_words
from jupyter_dtrain.core.failures import SITUATIONS, situations

BROKEN = """
from jupyter_dtrain.core.declarations import Declaration
DECLARATION = Declaration("broken", verbs="broken:no_verbs", situations="no_such_module:ROWS")
"""
SAME_VERB = """
from jupyter_dtrain.core.declarations import Declaration
from jupyter_dtrain.magics.table import Verb
DECLARATION = Declaration("broken", verbs="broken:VERBS")
VERBS = (Verb("stop", "another stop", print, print),)
"""
READ = """
from jupyter_dtrain.core.declarations import declarations
from jupyter_dtrain.core.failures import situations
from jupyter_dtrain.magics.table import verbs
print([one.name for one in declarations()], len(verbs()), len(situations()))
"""


@pytest.fixture
def read(tmp_path):
    """Runs a process that reads the declarations of a package with this source; its output and its log."""

    def read(source: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "broken.py").write_text(source)
        info = tmp_path / "broken-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[jupyter_dtrain.declarations]\nbroken = broken:DECLARATION\n")
        paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
        return subprocess.run(
            [sys.executable, "-c", READ],
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            check=True,
            timeout=60,
            text=True,
        )

    return read


def test_a_declaration_that_cannot_be_loaded_is_logged_and_left_out(read):
    """`%distributed stop` does not depend on the package of another framework."""
    done = read("raise OSError('not today')")

    assert "The declaration of the framework broken cannot be loaded" in done.stderr
    assert "not today" in done.stderr
    assert done.stdout.startswith(str([one.name for one in declarations()]))


def test_verbs_and_rows_that_cannot_be_loaded_are_left_out(read):
    """The declaration's other fields count."""
    without, done = read("raise OSError"), read(BROKEN)

    assert "'broken'" in done.stdout
    assert done.stdout.split()[-2:] == without.stdout.split()[-2:]
    assert "A framework's declaration at broken:no_verbs cannot be loaded" in done.stderr
    assert "A framework's declaration at no_such_module:ROWS cannot be loaded" in done.stderr


def test_a_verb_of_ours_stays_ours(read):
    """A framework that declares another one of that name is not heard."""
    without, done = read("raise OSError"), read(SAME_VERB)

    assert done.stdout.split()[-2:] == without.stdout.split()[-2:]


def test_the_rows_of_frameworks_come_behind_those_of_every_world():
    """Each with the name of its framework."""
    rows = situations()[len(SITUATIONS) :]

    assert situations()[: len(SITUATIONS)] == SITUATIONS
    assert {row.framework for row in rows} <= {one.name for one in declarations()}
    assert not any(row.framework for row in SITUATIONS)


def test_last_words_that_no_framework_knows_mean_nothing():
    """Then the signal alone names the cause."""
    assert not explain_last_words("something else")


def test_a_session_has_the_methods_of_frameworks():
    """They have signature and docstring, as `session.tune?` shows them; the test needs no world."""
    session = Session.__new__(Session)

    assert list(inspect.signature(session.tune).parameters)[:2] == ["model", "batch"]
    assert (inspect.getdoc(session.tune) or "").startswith("Measure how fast DeepSpeed trains")
    assert "tune" in dir(session)
    with pytest.raises(AttributeError, match="A Session has no attribute 'tone'"):
        _ = session.tone
