"""Makes a host ready for a copy: a program that the host runs from its own copy of the package.

Its answer is one line of JSON. It makes the folder of the copy, if that is missing, and changes nothing else.

Under failure: the answer has the reason. A program that a dead disk holds up ends by itself after its seconds, without
an answer, when its caller has stopped waiting.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from jupyter_dtrain.preflight.shared_file import sees

LOOKING = 10.0
"""Seconds that rsync has to show that it runs."""

Json = dict[str, Any]


def main(text: str) -> None:
    """Do as ``text`` asks, in JSON: ``nonce``, ``seconds`` and the arguments of :func:`receive`."""
    asked = json.loads(text)
    signal.alarm(max(int(asked["seconds"]), 1))
    answer = receive(asked["target"], bool(asked["is_folder"]), asked["cwd"], asked["shared"])
    sys.stdout.write(f"\n{asked['nonce']} {json.dumps(answer)}\n")


def receive(target: str, is_folder: bool, cwd: str, shared: Json | None) -> Json:  # noqa: FBT001 — not for people
    """Make ready for a copy at ``target``: the ``folder`` that will hold it, or the ``failure`` for which it cannot.

    ``cwd``: a world's folder, which may be missing here (``lacked``). ``shared``: a file beside the original; a host
    that finds it beside the copy needs none.
    """
    target = os.path.abspath(os.path.expanduser(target))  # noqa: PTH100, PTH111 — a Path would follow links
    folder = target if is_folder else os.path.dirname(target)  # noqa: PTH120
    answer = {"folder": folder, "lacked": bool(cwd) and not Path(cwd).is_dir()}
    if shared and sees(os.path.join(folder, Path(shared["path"]).name), shared["nonce"]):  # noqa: PTH118
        return dict(answer, shared=True)
    if not is_folder and Path(target).is_dir():
        return dict(answer, failure=f"{target!a}: Is a directory")
    answer["no_rsync"] = fault_of_rsync()
    if not answer["no_rsync"]:
        try:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        except OSError as error:
            answer["failure"] = f"{error.filename!a}: {error.strerror}"
    return answer


def fault_of_rsync() -> str:
    """Why no rsync runs on this machine, in words that follow the machine's name; empty where one runs.

    rsync itself tells its caller only that nothing answers: whoever is to mend it needs the words of the machine.
    """
    program = shutil.which("rsync") or shutil.which("rsync", os.F_OK)
    if program is None:
        return "has no rsync"
    broken = f"cannot run its rsync, {program}"
    pipe = subprocess.PIPE
    try:
        # In a session of its own, since a program that merely bears the name may have started others.
        process = subprocess.Popen(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        return f"{broken}: its interpreter is missing"
    except OSError as error:
        return f"{broken}: {error.strerror}"
    try:
        output, errors = process.communicate(timeout=LOOKING)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"{broken}: it does not answer `rsync --version` within {LOOKING:g} s"
    if process.returncode == 0 and "rsync" in output:
        return ""
    words = [line.strip() for line in f"{output}\n{errors}".splitlines() if line.strip()]
    if words:
        return f"{broken}: it answers `rsync --version` with {words[-1][:200]!a}"
    end = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
    return f"{broken}: `rsync --version` ends with {end}, and prints nothing"
