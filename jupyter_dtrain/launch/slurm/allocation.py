"""The nodes of a world in Slurm: a job of its own, or the one in which this process runs.

From a login node, sbatch submits a job whose script only holds the nodes. Inside of a job (``SLURM_JOB_ID`` is set),
the world uses the nodes of that job, and leaves it as it was.

Under failure: Slurm ends no job because the machine that has submitted it is gone. So the script ends, and the job with
it, once no watch of the world has renewed a file on its node for two minutes. A job is found by its name, which has the
world's id in it: it can be cancelled even by a process that never learned its number.
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable
from typing import Final

from jupyter_dtrain.core.errors import StartFailed

from ..hostlist import fill
from ..launcher import NodesLook
from . import queue
from .options import RESOURCES, SlurmOptions, flag_words, in_job
from .queue import NoJob, SlurmJob, Unanswered

QUICK: Final = 1.0
"""Seconds between two looks at a job that has just been submitted."""
SLOW: Final = 5.0
"""The same once it has waited for :data:`SOON` seconds: each look costs the cluster's one slurmctld."""
SOON: Final = 30.0
SETTLE: Final = 8.0
"""Seconds in which a job that ends says why."""
CLOSER: Final = 4.0
"""Seconds in which Slurm's scheduler has looked closer at a job that cannot start."""
NOTICE: Final = 1.0
"""Seconds in which Slurm says that a job ends whose programs have ended."""
FAR: Final = 7 * 86400.0
"""Seconds beyond which Slurm's expectation of a start says nothing: jobs without a time limit count a year."""
GONE: Final = 10.0
"""Seconds that a cancelled job may take to give its nodes back."""

SCRIPT: Final = """#!/bin/sh
# Holds the nodes of a world of jupyter-dtrain, while its processes on this node renew a file.
beat={beat}
umask 077
: > "$beat"
trap 'rm -f "$beat"; exit 0' TERM INT
while [ -n "$(find "$beat" -mmin -2 2> /dev/null)" ]; do
    sleep 5 &
    wait $!
done
rm -f "$beat"
"""


class Held:
    """Holds the nodes of one world. One thread at a time calls it."""

    def __init__(self, options: SlurmOptions, size: int, name: str, beat: str, inside: str) -> None:
        """``size``: the number of ranks; ``name``: of the job; ``beat``: the file that the watches touch.

        ``inside``: the number of the job to use; empty for a new one.
        """
        self._options = options
        self._size = size
        self._name = name
        self._beat = beat
        self._inside = inside
        self._asked = False
        self.job = SlurmJob(inside, "PENDING")
        """As it was seen last."""
        self.hosts: dict[str, int] = {}
        """The ranks of each node that has any, in order."""

    def get(self, say: Callable[[str], None], stopped: threading.Event) -> None:
        """Wait until the job has its nodes. ``say`` shows how far the job is; ``stopped`` ends the wait.

        Raises :class:`StartFailed` with Slurm's reason; then there is no job.
        """
        try:
            job = self._inside or self._submit()
            self._await_nodes(job, say, stopped)
            if not stopped.is_set():
                _, tasks = in_job(self.job, self._options) if self._inside else self._options.wanted(self._size)
                self.hosts = fill(dict.fromkeys(queue.node_names(self.job.nodes), tasks), self._size)
        except Unanswered as error:
            self.give_back()
            raise StartFailed(f"Slurm: {error}", "See whether `squeue` works in a terminal.") from None
        except StartFailed:
            self.give_back()
            raise

    def _submit(self) -> str:
        self._asked = True
        command = submission(self._options, self._size, self._name)
        try:
            said = queue.run(command, stdin=SCRIPT.format(beat=shlex.quote(self._beat)))
        except Unanswered as error:
            raise StartFailed(
                f"Slurm refuses the job: {error}",
                "`sinfo` lists partitions and nodes; --partition, --account, --qos, --time, --gres and --sbatch say "
                "what to ask for.",
                option="slurm",
            ) from None
        return said.strip().partition(";")[0]

    def _await_nodes(self, number: str, say: Callable[[str], None], stopped: threading.Event) -> None:
        began = time.monotonic()
        while not stopped.is_set():
            try:
                job = self.job = queue.ask_job(number)
            except NoJob:
                raise StartFailed(f"Slurm's job {number} is gone from the queue.", "Try again.") from None
            except Unanswered as error:
                say(f"Slurm gives no answer about job {number}: {error}")
            else:
                if job.runs:
                    return
                if not job.waits and job.state != "COMPLETING":
                    raise StartFailed(f"Slurm's job {number} did not start: {job.ended}.", "Try again.")
                if job.never is not None and (job.reason != queue.FIRST or time.monotonic() - began > CLOSER):
                    reason, fix = job.never
                    raise StartFailed(f"Slurm's job {number} cannot start: {reason}.", fix, option="slurm")
                expected = f", expected to start {_until(job.begins)}" if 0 < job.begins - time.time() < FAR else ""
                say(f"job {number} waits in partition {job.partition}: {job.waiting}{expected}")
            stopped.wait(QUICK if time.monotonic() - began < SOON else SLOW)

    def look(self, *, ending: bool = False) -> NodesLook:
        """Ask Slurm about the world's job, as :func:`look_at` does; the answer has its number and its nodes."""
        self.job, found = look_at(self.job, ending=ending)
        return found._replace(job=self.job.id, hosts=tuple(self.hosts))

    def give_back(self) -> None:
        """Cancel the job, if it is the world's own, and wait some seconds for its end. Does not raise."""
        if not self._asked:
            return
        self._asked = False
        try:
            queue.run(cancellation(self._name))
            deadline = time.monotonic() + GONE
            while self.job.id and time.monotonic() < deadline:
                job = queue.ask_job(self.job.id)
                if job.ended and job.state != "COMPLETING":
                    break
                time.sleep(0.1)
        except Unanswered:
            pass  # the job's script ends it

    def remains(self) -> list[list[str]]:
        """The commands that cancel the job where no process can call this object any more."""
        return [] if self._inside else [cancellation(self._name)]


def look_at(job: SlurmJob, *, ending: bool = False) -> tuple[SlurmJob, NodesLook]:
    """Ask Slurm about ``job``. ``ending``: something of it has ended; wait some seconds for the reason.

    Where Slurm does not answer, nothing is known to have changed.
    """
    began = time.monotonic()
    while True:
        try:
            job = queue.ask_job(job.id)
        except NoJob:
            return job, NodesLook(0.0, f"Slurm's job {job.id} is over")
        except Unanswered:
            pass
        seconds = time.monotonic() - began
        if job.runs and (not ending or seconds > NOTICE):
            break
        if not job.runs and (job.state != "COMPLETING" or job.reason == "TimeLimit" or seconds > SETTLE):
            break
        time.sleep(0.2)
    if job.runs:
        return job, NodesLook(job.ends)
    why = "it has reached its time limit" if job.reason == "TimeLimit" else job.ended
    why = "Slurm is ending it" if job.state == "COMPLETING" and job.reason != "TimeLimit" else why
    return job, NodesLook(0.0, f"Slurm's job {job.id} is over: {why}")


def submission(options: SlurmOptions, size: int, name: str) -> list[str]:
    """The command that submits a job for ``size`` ranks, whose script it reads."""
    nodes, tasks = options.wanted(size)
    command = ["sbatch", "--parsable", "--no-requeue", "--chdir=/", f"--nodes={nodes}", f"--ntasks-per-node={tasks}"]
    # Not the person's variables: Slurm would send and keep them in clear.
    command += ["--export=NIL", "--input=/dev/null", "--output=/dev/null", "--error=/dev/null"]
    for option in RESOURCES:
        if (value := getattr(options, option)) is not None:
            command.append(f"{flag_words(option)}={value}")
    return [*command, *options.more, f"--job-name={name}"]


def cancellation(name: str) -> list[str]:
    """The command that cancels a job by its name."""
    return ["scancel", f"--user={os.getuid()}", f"--name={name}"]


def job_name(world_id: str) -> str:
    """The name of a world's job."""
    return f"dtrain-{world_id}"


def _until(moment: float) -> str:
    hours, minutes = divmod(max(1, round((moment - time.time()) / 60)), 60)
    return f"in {hours} h {minutes} min" if hours else f"in {minutes} min"
