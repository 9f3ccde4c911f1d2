"""The process that sends: ``python -m jupyter_dtrain.trackers < job.json``, see :mod:`.sender`."""

from __future__ import annotations

import logging
import os
import signal
import sys

import msgspec

from jupyter_dtrain.core.structs import readable

from .sender import Sender, SendJob
from .target import read_target

QUIET = {
    # No reports about this process to the makers of the libraries.
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Attempts are ours: a library that retries for minutes would hold up all other runs.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "WANDB_SILENT": "true",
}
"""Variables of trackers' libraries that this process sets where the person has not."""


def main() -> None:
    """Send until the job is done."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=readable(SendJob))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the cell
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    Sender(job, read_target(job.target)).run()
    sys.stdout.flush()
    sys.stderr.flush()
    # A library's threads may wait for a server that is gone: all that counts is sent.
    os._exit(0)


if __name__ == "__main__":
    main()
