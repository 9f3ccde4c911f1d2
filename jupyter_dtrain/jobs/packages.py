"""The packages that cells import, with the versions that are installed here.

A module of the person's own, beside the notebook, is no package: the job needs its file.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

OWN: Final = "jupyter-dtrain"


class Packages(NamedTuple):
    """All that a job imports beyond Python itself."""

    versions: dict[str, str]
    """The installed version of each package, by its name; empty where it is not installed here."""
    roots: frozenset[str]
    """The first parts of the modules' names, such as ``numpy``."""
    own: tuple[str, ...]
    """Modules of the person's own."""

    def requirements(self) -> list[str]:
        """Lines for pip. The part of a version that names a build, such as ``+cpu``, is on no index: it is left out."""
        return [f"{name}=={version.partition('+')[0]}" if version else name for name, version in self.versions.items()]


def packages_of(codes: Iterable[str]) -> Packages:
    """All that the codes import. They parse."""
    roots = {root for code in codes for root in _roots(ast.parse(code))} - sys.stdlib_module_names
    versions: dict[str, str] = {}
    own: list[str] = []
    for root in sorted(roots):
        found = _distributions().get(root)
        if found:
            versions |= {_plain(name): metadata.version(name) for name in found[:1]}
        elif root == "jupyter_dtrain":
            versions[OWN] = metadata.version(OWN)
        elif Path(f"{root}.py").exists() or Path(root).is_dir():
            own.append(root)
        else:
            versions[root] = ""
    return Packages(dict(sorted(versions.items())), frozenset(roots), tuple(own))


def _roots(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {one.name.partition(".")[0] for one in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.partition(".")[0])
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@lru_cache(1)
def _distributions() -> Mapping[str, list[str]]:
    """The packages of each module. Where several have a module, one of the same name comes first."""
    found = metadata.packages_distributions()
    return {root: sorted(set(names), key=lambda name: _plain(name) != _plain(root)) for root, names in found.items()}
