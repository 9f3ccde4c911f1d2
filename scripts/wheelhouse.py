"""Collect the wheels that a cluster without a network needs to install this package: all but those of frameworks.

    python scripts/wheelhouse.py --python 3.12 --platform manylinux_2_28_x86_64 build/wheelhouse
    python scripts/wheelhouse.py --extra lab build/wheelhouse        JupyterLab as well

The Python and the platform are those of the cluster; without options, those of this machine. PyTorch and other
frameworks are the cluster's own: a second one beside it, of another build, would break it. The package itself is built
from this checkout. At the end the line is printed that installs everything there.

pip asks this machine's Python about conditions such as ``python_version < "3.11"``. So the script reads the conditions
of what has come, and fetches what the other Python needs besides. Under failure: pip's last lines are printed, and the
exit status is 1; the folder may then hold some wheels, and the next try goes on from them.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path

try:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name, parse_wheel_filename
except ImportError:  # pip brings a copy along, so an environment needs nothing else for this script
    from pip._vendor.packaging.requirements import Requirement
    from pip._vendor.packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "jupyter-dtrain"
LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""The older names of platforms, by the minor version of glibc."""
OLDEST = 5
ROUNDS = 8
"""How often conditions are read again; each round finds what the last one has brought."""
PATIENCE = 1800.0
"""Seconds that pip may take for one command."""


def platforms(newest: str) -> list[str]:
    """All platforms whose wheels run on ``newest``, itself first: older versions of glibc, by all of their names."""
    found = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", newest)
    if found is None:
        return [newest]
    machine, names = found[2], []
    for minor in range(int(found[1]), OLDEST - 1, -1):
        names.append(f"manylinux_2_{minor}_{machine}")
        names += [f"{LEGACY[minor]}_{machine}"] if minor in LEGACY else []
    return [*names, f"linux_{machine}"]


def here() -> str:
    """The platform of this machine."""
    _, version = platform.libc_ver()
    return f"manylinux_{version.replace('.', '_') or '2_17'}_{platform.machine()}"


def condition(python: str, machine: str) -> dict[str, str]:
    """The facts by which the cluster's Python decides about conditions."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "platform_release": "",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def needs(wheel: Path, extras: Iterable[str], where: dict[str, str]) -> list[Requirement]:
    """The requirements of a wheel that hold on the cluster, with these of its extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one))
        metadata = Parser().parsestr(archive.read(name).decode())
    wanted = []
    for text in metadata.get_all("Requires-Dist") or []:
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({**where, "extra": extra}) for extra in ("", *extras)):
            wanted.append(one)
    return wanted


def lacking(folder: Path, extras: Iterable[str], where: dict[str, str]) -> list[str]:
    """The requirements of the wheels in ``folder`` for which there is no wheel, each once, without conditions."""
    wheels = {parse_wheel_filename(wheel.name)[0]: wheel for wheel in sorted(folder.glob("*.whl"))}
    asked: dict[str, set[str]] = {canonicalize_name(PACKAGE): set(extras)}
    found: dict[str, str] = {}
    while True:
        before = {name: set(extras_of) for name, extras_of in asked.items()}
        for name, wheel in wheels.items():
            for one in needs(wheel, before.get(name, ()), where):
                plain = canonicalize_name(one.name)
                asked.setdefault(plain, set()).update(one.extras)
                if plain not in wheels:
                    found[plain] = f"{one.name}{one.specifier}"
        if asked == before:
            return sorted(found.values())


def pip(*words: str) -> None:
    """Run pip. Raises :class:`RuntimeError` with its last lines."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if done.returncode:
        raise RuntimeError("\n".join([*done.stdout.splitlines()[-3:], *done.stderr.splitlines()[-12:]]))


def collect(folder: Path, python: str, newest: str, extras: list[str]) -> None:
    """Fill ``folder``. Raises :class:`RuntimeError`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("jupyter_dtrain-*.whl"):
        old.unlink()
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (own,) = folder.glob("jupyter_dtrain-*.whl")
    tags = [word for one in platforms(newest) for word in ("--platform", one)]
    tag = f"cp{python.replace('.', '')}"
    target = [
        "--python-version",
        python,
        "--implementation",
        "cp",
        "--abi",
        tag,
        "--abi",
        "abi3",
        "--abi",
        "none",
        *tags,
    ]
    machine = re.search(r"_\d+_\d+_(\w+)$", newest)
    where = condition(python, machine[1] if machine else platform.machine())
    wanted = [f"{own}[{','.join(extras)}]" if extras else str(own)]
    for _ in range(ROUNDS):
        pip(
            "download",
            "--quiet",
            "--only-binary=:all:",
            "--find-links",
            str(folder),
            "--dest",
            str(folder),
            *target,
            *wanted,
        )
        wanted = lacking(folder, extras, where)
        if not wanted:
            return
    raise RuntimeError(f"These are still missing: {', '.join(wanted)}.")


def main() -> int:
    """Collect, and print how to install it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    mine = ".".join(map(str, sys.version_info[:2]))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/wheelhouse"))
    parser.add_argument("--python", default=mine, help=f"the cluster's Python, such as 3.12 (default: {mine})")
    parser.add_argument("--platform", default=here(), help=f"the cluster's platform (default: {here()})")
    parser.add_argument(
        "--extra", action="append", default=[], help="an extra of this package, such as lab; repeatable"
    )
    args = parser.parse_args()
    if re.fullmatch(r"3\.\d+", args.python) is None:
        parser.error(f"--python must be a version such as 3.12, not {args.python}")
    try:
        collect(args.folder, args.python, args.platform, args.extra)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(
            f"The wheels for Python {args.python} on {args.platform} could not be collected.\n{error}", file=sys.stderr
        )
        return 1
    wheels = list(args.folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels) / 1e6
    what = f"{PACKAGE}[{','.join(args.extra)}]" if args.extra else PACKAGE
    print(f"{len(wheels)} wheels for Python {args.python} on {args.platform}, {size:.0f} MB, in {args.folder}.")
    print("Copy the folder to the cluster. There, in the environment that has your framework:")
    print(f"  pip install --no-index --find-links {args.folder.name} '{what}'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
