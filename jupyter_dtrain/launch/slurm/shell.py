"""A remote shell over srun, as rsync calls ssh: ``shell JOB MUNGE HOST WORD…`` runs the words on a node of a job.

It is the near gate of a sealed pipe (:mod:`.sealed_pipe`), so srun carries nothing that the network can read. It gives
its input, output and exit code to rsync. As under ssh, a shell on the node reads the words, joined by blanks.

Under failure: it ends with :data:`.steps.FAILED` and the reason among its errors. When rsync fails here, it sends
SIGUSR1 to its shell; the gate then ends the input of the program on the node, and stays until that has removed its
incomplete file.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from jupyter_dtrain.launch import local

from .steps import Steps, node_environment

NAME: Final = "dtrain-sync"
"""The name of its steps."""


def command(steps: Steps) -> list[str]:
    """The beginning of its command line, which shows the number of the job and no variable."""
    return [*local.program(__name__), steps.job, json.dumps(steps.munge)]


def steps_of(job: str, munge: Sequence[str]) -> Steps:
    """Steps that copy files in a job. ``munge``: see :func:`.steps.munge_options`."""
    return Steps(job, list(munge), NAME, node_environment(), "/")


def main() -> NoReturn:
    """Run the words of the command line on the node that it names."""
    from .sealed_pipe import serve_near  # needs cryptography, which copies over ssh do without

    job, munge, host, *words = sys.argv[1:]
    line = steps_of(job, json.loads(munge)).first_line(host, ["/bin/sh", "-c", " ".join(words)])
    serve_near(json.loads(line), farewells=(signal.SIGTERM, signal.SIGUSR1))
