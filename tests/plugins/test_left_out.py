"""A part that an import of another library leaves out comes when somebody asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTED = """
import sys
from jupyter_dtrain.plugins.left_out import left_out, no_launchers
"""


def printed(code: str) -> str:
    """What a fresh process prints."""
    command = [sys.executable, "-c", IMPORTED + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_ipyparallel_has_its_launchers_when_somebody_asks():
    code = """
with no_launchers():
    import ipyparallel.engine.app, ipyparallel.controller.app
print("ipyparallel.cluster" in sys.modules, hasattr(ipyparallel, "no such name"))
print(ipyparallel.ClusterManager.__module__)
from ipyparallel import Cluster
import ipyparallel.cluster
print(Cluster is ipyparallel.cluster.Cluster)
"""
    assert printed(code).split() == ["False", "False", "ipyparallel.cluster.cluster", "True"]


@pytest.mark.parametrize(
    "other",
    [
        "from .cluster.launcher import Launcher\nClusterManager = Launcher",
        "import importlib\ndef __getattr__(name):\n    return getattr(importlib.import_module('ipyparallel.cluster'), name)",
        "from .cluster import Cluster\nfrom .cluster import launcher\nclass ClusterManager(Cluster): pass",
    ],
    ids=["a module of them", "names of its own", "a base class"],
)
def test_another_version_of_ipyparallel_is_imported_whole(tmp_path, other):
    launchers = tmp_path / "ipyparallel" / "cluster"
    launchers.mkdir(parents=True)
    launchers.with_name("__init__.py").write_text(other)
    (launchers / "__init__.py").write_text("class Cluster: pass\nclass ClusterManager: pass")
    (launchers / "launcher.py").write_text("class Launcher: pass")
    code = f"""
sys.path.insert(0, {str(tmp_path)!r})
with no_launchers():
    import ipyparallel
print(ipyparallel.__file__.startswith({str(tmp_path)!r}), ipyparallel.ClusterManager.__name__)
"""
    assert printed(code).split()[0] == "True"
    assert printed(code).split()[1] in {"Launcher", "ClusterManager"}


def test_a_module_that_is_left_out_can_be_imported_afterwards():
    code = """
with left_out("colorsys"):
    try:
        import colorsys
    except ImportError:
        print("none")
with left_out("colorsys"):
    pass
import colorsys
print(colorsys.__name__)
with left_out("colorsys"):
    import colorsys
    print("still there")
"""
    assert printed(code).splitlines() == ["none", "colorsys", "still there"]
