"""mpi4py's own test-suite in the live ranks of a world: ``make mpi4py``.

    python -m tests.mpi4py_suite [-n RANKS] [OPTION …]

Its sources come from PyPI, of the version that is installed, into ``build/``; OPTION goes to its ``main.py``. Left out
is what starts other processes, which a world does not promise, and what hangs in Open MPI 5.0 under ``mpiexec --with-ft
ulfm`` without us, too. The exit status is 0 if no test failed on any rank, and the ranks are a whole world afterwards.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

from jupyter_dtrain import DistributedError, Session

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "mpi4py"
LEFT_OUT = ["-e", "spawn", "-e", "dynproc", "-x", "TestULFMInter"]
"""Modules and tests. The last: ``Shrink`` of an intercommunicator."""
CRASHES = ["-x", "TestULFMWorld.testRevoke"]
"""Left out on more than 2 ranks: afterwards some of them crash in ``Dup``, under ``mpiexec`` as well (5.0.11)."""
PATIENCE = 3600.0
"""Seconds in which it must be over. Ranks that wait spin, so that it takes long where others want the cores, too."""


def sources() -> Path:
    """The folder of its tests, fetched if they are not there."""
    name = f"mpi4py-{version('mpi4py')}"
    if not (BUILD / name / "test").is_dir():
        BUILD.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--no-binary", "mpi4py", "--dest", BUILD, name.replace("-", "==")], check=True)
        with tarfile.open(BUILD / f"{name}.tar.gz") as archive:
            archive.extractall(BUILD, filter="data")
    return BUILD / name / "test"


def main() -> int:
    """Run it, and print what it says at its end on each rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="ranks (default: 2)")
    args, options = parser.parse_known_args()
    script = sources() / "main.py"
    with Session.start(n=args.n) as session:
        left_out = [*LEFT_OUT, *(CRASHES if args.n > 2 else [])]
        run = session.run_script(script, ["-v", *left_out, *options], wait=False, view=None)
        if not run.wait(PATIENCE):
            print(f"not over after {PATIENCE:g} s: {session.stacks()}")
            session.interrupt(force=True)
            return 1
        for rank in run.ranks:
            report = BUILD / f"rank-{rank}.txt"
            report.write_text(run.text(rank))
            lines = [line for line in run.text(rank).splitlines() if line.strip()]
            told = [line for line in lines if line.startswith(("Ran ", "FAIL:", "ERROR:"))]
            print(f"rank {rank}: {'; '.join(told)}; {lines[-1]} ({report.relative_to(ROOT)})")
        try:
            whole = session.run("from mpi4py import MPI; MPI.COMM_WORLD.allreduce(1)", view=None, timeout=60)
        except DistributedError as error:
            print(f"the world is not whole afterwards: {error}")
            return 1
        print(f"afterwards, all ranks together: {[whole.results[rank].data['text/plain'] for rank in whole.ranks]}")
    return int(run.outcome != "ok")


if __name__ == "__main__":
    sys.exit(main())
