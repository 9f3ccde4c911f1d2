"""Install a wheel into empty environments outside the repository, and run a notebook of examples there.

python scripts/try_wheel.py dist/jupyter_dtrain-0.1.0-py3-none-any.whl [PYTHON …]
python scripts/try_wheel.py --plain dist/jupyter_dtrain-0.1.0-py3-none-any.whl [PYTHON …]

The notebook is that of `make demo`, which needs PyTorch. With ``--plain`` it is the one on MPI, which needs no
framework: for a Python for which pip would bring gigabytes of GPU libraries. Without names, every Python from 3.10 to
3.13 that this machine has is tried, one after the other: on PATH, and those of pyenv. Each environment is removed
again. The exit status is 0 only if every cell ran in all of them, and the demo's model has learned.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
ENOUGH = 0.95
"""The least test accuracy of a model that learned."""
PATIENCE = 1800.0
"""Seconds that one command may take: installing PyTorch over a slow network is the longest."""
RUN = """
import json, sys, nbformat, jupyter_dtrain
from nbclient import NotebookClient
assert jupyter_dtrain.__file__.startswith(sys.prefix), jupyter_dtrain.__file__
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
print(json.dumps([cell.get("outputs", []) for cell in notebook.cells]))
"""
ACCURACY = re.compile(r"test accuracy ([0-9.]+)")


def pythons() -> list[Path]:
    """One Python for each version that the machine has."""
    found = []
    for version in VERSIONS:
        places = [
            shutil.which(f"python{version}"),
            *(Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"),
        ]
        for place in filter(None, places):
            said = run([place, "-c", "import ensurepip, venv, sys; print(*sys.version_info[:2], sep='.')"], check=False)
            if said.returncode == 0 and said.stdout.strip() == version:
                found.append(Path(place))
                break
    return found


def run(command: list[str | Path], *, check: bool = True, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command's output as text; if it fails, its last lines are the error."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if check and done.returncode:
        raise RuntimeError("\n".join([*done.stdout.splitlines()[-5:], *done.stderr.splitlines()[-15:]]))
    return done


def trial(wheel: Path, python: Path, *, plain: bool) -> str:
    """Return what the notebook showed with ``wheel`` under ``python``, in words. Raises :class:`RuntimeError`."""
    notebook = EXAMPLES / ("16_mpi.ipynb" if plain else "01_first_world.ipynb")
    with tempfile.TemporaryDirectory(prefix="dtrain-wheel-") as folder:
        inside = Path(folder) / "venv" / "bin" / "python"
        run([python, "-m", "venv", Path(folder) / "venv"])
        pin = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
        wanted = [wheel, "nbclient", "nbformat", "matplotlib"] if plain else [*pin, f"{wheel}[demo]"]
        run([inside, "-m", "pip", "install", "--disable-pip-version-check", "-q", *wanted])
        shutil.copy(notebook, folder)
        said = run([inside, "-c", RUN, notebook.name], cwd=folder).stdout
    if plain:
        return "every cell ran"
    found = ACCURACY.search(said)
    if found is None or float(found[1]) < ENOUGH:
        raise RuntimeError(f"The model did not learn: {found[0] if found else 'no test accuracy was printed'}.")
    return found[0]


def main() -> int:
    """Try each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("python", type=Path, nargs="*", help="Pythons to try (default: all from 3.10 to 3.13)")
    parser.add_argument("--plain", action="store_true", help="run the notebook on MPI, which needs no framework")
    args = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)
    failed = 0
    for python in args.python or pythons():
        began = time.monotonic()
        try:
            words = trial(args.wheel.resolve(), python, plain=args.plain)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"{python}: failed\n{error}", flush=True)
            failed += 1
        else:
            print(f"{python}: {words}, {time.monotonic() - began:.0f} s", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
