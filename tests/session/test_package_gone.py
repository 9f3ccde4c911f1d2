"""A world whose package was uninstalled or moved while it ran."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jupyter_dtrain

PATIENCE = 120
PROGRAM = """
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
from jupyter_dtrain import DtrainError, Session

copy = sys.argv[1]
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "jupyter_dtrain")
said = {}

def attempt(name, call):
    try:
        said[name] = repr(call())
    except DtrainError as error:
        said[name] = type(error).__name__ + ": " + str(error) + "\\n".join(error._render_traceback_())

session = Session.start(n=2)
session.run("kept = 5", view=None)
os.rename(copy, copy + "-away")
attempt("cell", lambda: session.run("kept", view=None).results[1].data["text/plain"])
attempt("diff", lambda: session.diff("kept"))
attempt("runs", lambda: shell.run_line_magic("distributed", "runs"))
attempt("restart", session.restart)
attempt("resize", lambda: session.resize(3))
attempt("again", lambda: session.run("kept", view=None).results[0].data["text/plain"])
session.stop()
print(json.dumps(said))
"""


def test_what_cannot_be_loaded_says_that_the_package_has_gone_and_the_world_stays(home: Path, tmp_path: Path) -> None:
    """Cells run and the world can be stopped; what would end its ranks first is refused."""
    copy = tmp_path / "lib" / "jupyter_dtrain"
    shutil.copytree(Path(jupyter_dtrain.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(copy)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(copy.parent)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])

    assert said.pop("cell") == said.pop("again") == "'5'"
    gone = f"jupyter_dtrain is not in {copy.parent} any more"
    assert {name: words for name, words in said.items() if gone not in words} == {}
    assert all("Install it there again" in words for words in said.values())
