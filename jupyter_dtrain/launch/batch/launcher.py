"""Ranks on the hosts of a job in PBS, Grid Engine or LSF: a job that only holds its hosts, which ssh then reaches.

From a login node, ipyparallel's launcher of that scheduler submits the job. Inside of a job, the world uses its hosts
and leaves it as it was. All else is as with hosts over ssh: the site must allow ssh to the hosts of one's own job.

Under failure: the world's end deletes the job, as does a start that its examination ends. Where the steward was killed,
the job's script ends by itself: when the world's watch has removed its folder there, or where that folder has not come
for ten minutes.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta

from jupyter_dtrain.core.declarations import load
from jupyter_dtrain.core.errors import BadRequest, StartFailed
from jupyter_dtrain.core.world import MAX_RANKS
from jupyter_dtrain.wire.requests import ADDRESS, MAIN, WorldRequest

from ..hostlist import fill
from ..hosts import Hosts, SshOptions
from ..launcher import Allocation, Capacity, LauncherDeclaration, Look, Placement
from ..networks import address_to
from .schedulers import SCHEDULERS, Unanswered, run

if TYPE_CHECKING:
    from ipyparallel.cluster.launcher import BatchSystemLauncher

EXAMINATION: Final = "jupyter_dtrain.preflight.doctor:check_hosts"
"""``module:NAME`` of the function that examines the hosts. No import: that room stands above this one."""
EVERY: Final = 3.0
"""Seconds between two looks at a job that waits: each look costs the cluster's one server."""
SETTLE: Final = 8.0
"""Seconds in which a job that ends says why."""

SCRIPT: Final = """#!/bin/sh
{header}
# Holds the hosts of a world of jupyter-dtrain, while the world's folder is there.
waited=0
until [ -d {folder} ]; do
    sleep 5
    waited=$((waited + 5))
    [ "$waited" -lt 600 ] || exit 1
done
while [ -d {folder} ]; do
    sleep 5
done
"""


class BatchOptions(SshOptions, frozen=True, kw_only=True):
    """The start options of worlds in jobs of these schedulers."""

    scheduler: Annotated[
        Literal["pbs", "sge", "lsf"] | None,
        Meta(
            title="Scheduler",
            description="run in a job of PBS, Grid Engine or LSF: in this notebook's job, else in a new one "
            "(default: none)",
            extra_json_schema=MAIN,
        ),
    ] = None
    job: Annotated[
        str | None,
        Meta(
            title="Options of the job",
            description='options for qsub or bsub, as in "-l select=2:ncpus=8 -q gpu" (default: none)',
            extra_json_schema={"metavar": "ARGS"} | MAIN,
        ),
    ] = None

    @property
    def words(self) -> list[str]:
        """The words of ``job``. Raises :class:`BadRequest`."""
        try:
            words = shlex.split(self.job or "")
        except ValueError as error:
            raise BadRequest(f"The options of the job, {self.job!r}, cannot be split: {error}.", option="job") from None
        if words and not words[0].startswith("-"):
            raise BadRequest(f"{words[0]!r} is no option of a job; a script has no place here.", option="job")
        return words


class Batch(Hosts):
    """A launcher; see :class:`..launcher.Launcher`."""

    def __init__(self, request: WorldRequest) -> None:
        super().__init__(request)
        options = request.options_of_launcher(BatchOptions)
        assert options.scheduler is not None
        self._words = options.words
        self._scheduler = SCHEDULERS[options.scheduler]
        # Here, and not on the thread that asks for hosts: two threads that import IPython at a time fail.
        from ipyparallel.cluster import launcher

        self._submitter: type[BatchSystemLauncher] = getattr(launcher, self._scheduler.launcher)
        self._inside = self._scheduler.slots()
        self._job = ""
        self.allocation: Allocation | None = self

    def get(self, say: Callable[[str], None], stopped: threading.Event) -> None:
        """Have a job that runs. Raises :class:`StartFailed`; then there is no job."""
        title = self._scheduler.title
        try:
            slots = self._inside or self._await_hosts(say, stopped)
            if stopped.is_set():
                return
            self._place(slots)
            self.address = address_to(list(self.hosts), self._ssh, self._options.interface)
        except Unanswered as error:
            self.give_back()
            raise StartFailed(f"{title}: {error}", "See whether its commands work in a terminal.") from None
        except (StartFailed, BadRequest):
            self.give_back()
            raise

    def examine(self, stopped: threading.Event) -> None:
        """By ssh, as with hosts. Raises :class:`StartFailed` with the findings of the doctor."""
        try:
            load(EXAMINATION)(self.hosts, self._options, stopped)
        except StartFailed:
            # One question, with no wait for a slow answer: most refusals have nothing to do with the job.
            if over := self.look().over:
                raise StartFailed(f"{over}.", "Start the world again.") from None
            raise

    def _await_hosts(self, say: Callable[[str], None], stopped: threading.Event) -> dict[str, int]:
        title = self._scheduler.title
        self._submit()
        while not stopped.is_set():
            try:
                job = self._scheduler.ask(self._job)
            except Unanswered as error:
                say(f"{title} gives no answer about job {self._job}: {error}")
            else:
                if job.state == "over":
                    why = f": {job.reason}" if job.reason else ""
                    raise StartFailed(f"{title}'s job {self._job} did not start{why}.", "Start the world again.")
                if job.state == "runs" and job.hosts:
                    return job.hosts
                say(f"job {self._job} waits in {title}{': ' if job.reason else ''}{job.reason}")
            stopped.wait(EVERY)
        return {}

    def _place(self, slots: dict[str, int]) -> None:
        self.hosts, self.slots = fill(slots, self._request.size), slots
        if sum(self.hosts.values()) < self._request.size:
            raise StartFailed(
                f"The job has {sum(slots.values())} slots, too few for {self._request.size} ranks.",
                f"Ask for more slots, such as --job='{self._scheduler.example}', or for fewer ranks with -n.",
                option="job",
            )

    def _submit(self) -> None:
        launcher = self._launcher()
        launcher.write_batch_script()
        command = [launcher.submit_command[0], *self._words]
        try:
            if launcher.submit_command[0] == "bsub":
                # bsub reads a script's own options from standard input alone.
                with open(launcher.batch_file, "rb") as script:
                    said = run(command, script.read())
            else:
                said = run([*command, launcher.batch_file])
        except Unanswered as error:
            raise StartFailed(
                f"{self._scheduler.title} refuses the job: {error}",
                f"Ask for what the cluster has, such as --job='{self._scheduler.example}'.",
                option="job",
            ) from None
        found = launcher.job_id_regexp.search(said)
        if found is None:
            raise StartFailed(
                f"{self._scheduler.title} has given the job no number: {said.strip()!r}.",
                f"See what `{command[0]}` prints in a terminal; if the job is there, it ends within ten minutes.",
                option="job",
            )
        self._job = found.group(launcher.job_id_regexp_group)

    def _launcher(self) -> BatchSystemLauncher:
        """Ipyparallel's own, with our script."""
        header = self._scheduler.header.format(name=f"dtrain-{self._request.name}"[:15])
        # ipyparallel would fill in all that stands in braces. This script is complete.
        script = SCRIPT.format(header=header, folder=shlex.quote(self.scratch))
        return self._submitter(
            work_dir=self._request.folder,
            profile_dir=f"{self._request.folder}/profile",
            batch_template=script.replace("{", "{{").replace("}", "}}"),
            batch_file_name="job.sh",
            output_file="/dev/null",
        )

    def look(self, *, ending: bool = False) -> Look:
        """How the world's own job is; another's job is not asked about."""
        deadline = time.monotonic() + SETTLE
        hosts = tuple(self.hosts)
        while self._job:
            try:
                job = self._scheduler.ask(self._job)
            except Unanswered:
                break
            if job.state == "over":
                why = f": {job.reason}" if job.reason else ""
                return Look(0.0, f"{self._scheduler.title}'s job {self._job} is over{why}")
            if not ending or time.monotonic() > deadline:
                return Look(job.ends, "", self._job, hosts)
            time.sleep(0.5)
        return Look(hosts=hosts)

    def give_back(self) -> None:
        """Delete the world's own job. Does not raise."""
        for command in self.remains():
            with contextlib.suppress(Unanswered):
                run(command)
        self._job = ""

    def remains(self) -> list[list[str]]:
        """The deletion of the world's own job. Only this object knows its number, so the guard has no such command."""
        return [[*self._launcher().delete_command, self._job]] if self._job else []

    def start_without(self, host: str) -> str:  # noqa: ARG002 — the scheduler chooses the hosts
        """Nothing: a new job gets other hosts."""
        return ""


def place(n: int | None, options: BatchOptions) -> Placement:
    """The number of ranks; the scheduler chooses the hosts later. Raises :class:`BadRequest`."""
    if options.scheduler is None:
        raise BadRequest("Choose a scheduler: pbs, sge or lsf.", option="scheduler")
    inside = SCHEDULERS[options.scheduler].slots()
    if inside and options.job is not None:
        raise BadRequest(
            "This notebook runs in a job, whose hosts the world uses: the options would be for a new job. Leave them "
            "out, or start the notebook outside of a job.",
            option="job",
        )
    _ = options.words, options.ssh
    slots = sum(inside.values())
    if n is None and not inside:
        raise BadRequest("Say how many ranks the job has room for with -n.", option="n")
    if inside and (n or 1) > slots:
        raise BadRequest(f"This job has {slots} slots, too few for {n} ranks: ask for at most {slots}.", option="n")
    if (n or slots) > MAX_RANKS:
        raise BadRequest(f"A world has at most {MAX_RANKS} ranks, not {n or slots}.", option="n")
    return Placement(n or slots, {}, ADDRESS)


DECLARATION: Final = LauncherDeclaration(
    "batch",
    "PBS, Grid Engine or LSF",
    place,
    Batch,
    lambda: Capacity(cores=0, gpus=0, default_ranks=0),
    options=BatchOptions,
    chosen_by=("scheduler",),
)
