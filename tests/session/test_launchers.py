"""A site's own launcher: a package adds it by an entry point, and its options are start options like all others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PLUGIN = """
from typing import Annotated
import msgspec
from msgspec import Meta
from jupyter_dtrain.launch.launcher import Capacity, LauncherDeclaration, WorldPlan
from jupyter_dtrain.launch.local import Local
from jupyter_dtrain.core.errors import StartFailed

class Options(msgspec.Struct, frozen=True):
    crater: Annotated[str | None, Meta(title="Crater", description="where to land (default: nowhere)")] = None

class Moon(Local):
    def environment(self):
        return super().environment() | {"CRATER": self._request.options_of_launcher(Options).crater}

def look(options, plan):
    if options.crater == "full":
        raise StartFailed("That crater is full.", "Choose another.", option="crater")
    return plan

MOON = LauncherDeclaration(
    "moon", "The moon", lambda n, options: WorldPlan(n or 3, {}, "127.0.0.1"), Moon, lambda: Capacity(0, 0, 3),
    options=Options, chosen_by=("crater",), examination=look,
)
"""
ENTRIES = """[jupyter_dtrain.launchers]
local = moon_launcher:MOON
missing = moon_launcher:NOTHING
strange = moon_launcher:Moon
"""
SHOW = """
from jupyter_dtrain import BadRequest, Session, StartFailed
from jupyter_dtrain.launch import launchers

print(*launchers())
for wrong in ({"crater": "full"}, {"crater": "tycho", "hosts": "a:1"}):
    try:
        Session.start(**wrong)
    except (BadRequest, StartFailed) as error:
        print(error)
with Session.start(crater="tycho") as session:
    run = session.run("import os; os.environ['CRATER']")
    run.wait(30)
    print(*(result.data["text/plain"] for _, result in sorted(run.results.items())))
"""


@pytest.mark.slow
def test_a_package_adds_a_launcher(tmp_path):
    """Those that cannot be loaded are logged and left out; the launcher of this machine stays."""
    metadata = tmp_path / "moon-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: moon\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "moon_launcher.py").write_text(PLUGIN)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    answer = subprocess.run(
        [sys.executable, "-c", SHOW],
        capture_output=True,
        timeout=120,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )

    names, full, two, *_, craters = answer.stdout.splitlines()
    assert names.split()[0] == "local"
    assert "moon" in names.split()
    assert full.startswith("That crater is full. Choose another.")
    assert two == "crater and hosts each say where the ranks run: give one of them."
    assert craters == "'tycho' 'tycho' 'tycho'"
    assert "The launcher missing cannot be loaded" in answer.stderr
    assert "The launcher strange cannot be loaded" in answer.stderr
