"""A part that an import of another library leaves out comes when somebody asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTED = """
import sys
from jupyter_dtrain.plugins.left_out import import_ipyparallel, left_out
"""


def printed(code: str) -> str:
    """What a fresh process prints."""
    command = [sys.executable, "-c", IMPORTED + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_ipyparallel_has_its_launchers_when_somebody_asks():
    code = """
import_ipyparallel()
import ipyparallel.engine.app, ipyparallel.controller.app
print("ipyparallel.cluster" in sys.modules, hasattr(ipyparallel, "no such name"))
print(ipyparallel.ClusterManager.__module__)
from ipyparallel import Cluster
import ipyparallel.cluster
print(Cluster is ipyparallel.cluster.Cluster)
"""
    assert printed(code).split() == ["False", "False", "ipyparallel.cluster.cluster", "True"]


@pytest.mark.parametrize("asked", ["ipyparallel.cluster.Cluster", "ipyparallel.Cluster"])
def test_each_way_to_ask_for_a_launcher_leads_to_it(asked):
    code = f"""
import_ipyparallel()
import ipyparallel
print({asked}.__name__)
"""
    assert printed(code).split() == ["Cluster"]


def test_all_names_of_ipyparallel_have_the_launchers_among_them():
    code = """
import_ipyparallel()
from ipyparallel import *
print(Client.__name__, Cluster.__name__, ClusterManager.__name__, "os" in globals())
"""
    plain = """
from ipyparallel import *
print(Client.__name__, Cluster.__name__, ClusterManager.__name__, "os" in globals())
"""
    assert printed(code) == printed(plain)


@pytest.mark.parametrize(
    "other",
    [
        "from .cluster.launcher import Launcher\nClusterManager = Launcher",
        "import importlib as i\ndef __getattr__(n): return getattr(i.import_module('ipyparallel.cluster'), n)",
        "from .cluster import Cluster\nfrom .cluster import launcher\nclass ClusterManager(Cluster): pass",
        "from .cluster import *",
    ],
    ids=["a module of them", "names of its own", "a base class", "all names"],
)
def test_another_version_of_ipyparallel_is_imported_whole(tmp_path, other):
    launchers = tmp_path / "ipyparallel" / "cluster"
    launchers.mkdir(parents=True)
    launchers.with_name("__init__.py").write_text(other)
    (launchers / "__init__.py").write_text("class Cluster: pass\nclass ClusterManager: pass")
    (launchers / "launcher.py").write_text("class Launcher: pass")
    code = f"""
sys.path.insert(0, {str(tmp_path)!r})
import_ipyparallel()
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
