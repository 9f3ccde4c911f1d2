"""W&B: ``wandb[:[ENTITY/]PROJECT][?offline]``, with W&B's own library; ``WANDB_MODE`` and its login count as usual.

Points have the step in a metric of its own, :data:`STEP`, which is the axis of all others: W&B drops what comes with a
lower step than the last, and an evaluation, or a loop that begins again, does.

W&B's library hands points to a process of its own, and nobody learns which of them have arrived when ours is killed. So
a run that was cut off is written anew from its beginning, under the same id: W&B's server takes that for the same run,
and on this machine the unfinished folder of before is removed, so that a run has one folder, and its file each point
once.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psutil

from jupyter_dtrain.core.errors import BadRequest

from .facts import SentFacts, StoredMedium
from .merging import Point
from .state import TrackedState
from .tracker import TrackedRun, Tracker

if TYPE_CHECKING:
    import wandb

STEP: Final = "step"
"""The metric with the step."""
TAG: Final = 64
"""Characters of a tag."""
INTERRUPTED: Final = 255
"""W&B's exit code of a run that a person has interrupted."""
CORE: Final = "wandb-core"
"""The program of W&B's own process."""


class WandB(Tracker):
    """W&B, by its own library."""

    title: ClassVar[str] = "W&B"
    package: ClassVar[str] = "wandb"
    rewrites: ClassVar[bool] = True

    @classmethod
    def check(cls, where: str) -> str:
        """``PROJECT`` or ``ENTITY/PROJECT``."""
        if where and not re.fullmatch(r"([^/\s\\#?%:,]{1,128}/)?[^/\\#?%:,]{1,128}", where):
            raise BadRequest(f"{where!r} is no project of W&B: use PROJECT or ENTITY/PROJECT.", option="track")
        return where

    def __init__(self, where: str, flags: frozenset[str]) -> None:
        self._entity, _, self._project = where.rpartition("/")
        self._offline = "offline" in flags

    def open(self, facts: SentFacts, state: TrackedState) -> TrackedRun:
        """The run, from its beginning."""
        import wandb

        root = state.place.setdefault("root", str(Path(os.environ.get("WANDB_DIR") or Path.cwd()).absolute()))
        _clear(state, facts.id)
        # Where it cannot write, W&B would take a folder for temporary files, and nobody would find the run.
        Path(root, "wandb").mkdir(parents=True, exist_ok=True)
        if not os.access(Path(root, "wandb"), os.W_OK | os.X_OK):
            raise PermissionError(f"{root} cannot be written to")
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            save_code=False,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        run = wandb.init(
            id=facts.id,
            entity=self._entity or None,
            project=self._project or None,
            group=facts.group or None,
            mode="offline" if self._offline else None,
            dir=root,
            name=facts.name[:128],
            reinit="create_new",
            settings=settings,
        )
        state.place["folder"] = str(Path(run.dir).parent)
        run.define_metric(STEP, hidden=True)
        run.define_metric("*", step_metric=STEP)
        return _Run(run)


class _Run(TrackedRun):
    def __init__(self, run: wandb.Run) -> None:
        self._run = run
        self._diff = ""

    def add_points(self, points: Sequence[Point], *, ranks: bool) -> None:
        row: dict[str, Any] = {}
        place: tuple[int, int, int] | None = None
        for point in sorted(points, key=lambda point: point.place):
            if place not in (None, point.place):
                self._run.log(row)
                row = {}
            place = point.place
            told = {_safe(name): value for name, value in point.told(ranks=ranks).items()}
            row |= told | {STEP: point.step, "_timestamp": point.time}
        if row:
            self._run.log(row)

    def add_medium(self, medium: StoredMedium) -> None:
        import wandb

        value: Any
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"medium{medium.suffix}"
            path.write_bytes(medium.data)
            if medium.pictured:
                value = wandb.Image(str(path), caption=medium.caption or None)
            elif medium.mime.startswith("audio/"):
                value = wandb.Audio(str(path), caption=medium.caption or None)
            elif medium.kind == "histogram":
                value = wandb.Histogram(np_histogram=medium.histogram)
            elif medium.kind == "table":
                columns, rows = medium.table
                value = wandb.Table(columns=columns, data=rows)
            else:
                value = wandb.Html(f"<pre>{html.escape(medium.text)}</pre>", inject=False)
            self._run.log({_safe(medium.name): value, STEP: medium.step, "_timestamp": medium.time})

    def describe(self, facts: SentFacts) -> None:
        run = self._run
        about = {name.replace(" ", "_"): value for name, value in facts.about.items()}
        about |= {"label": facts.label, "error": facts.error}
        own = {name: value for name, value in about.items() if value} | {"started": facts.started}
        run.config.update({**facts.config, "dtrain": own}, allow_val_change=True)
        run.name = facts.name[:128]
        run.notes = facts.notes
        run.tags = tuple(dict.fromkeys(tag[:TAG] for tag in facts.tags))
        run.summary.update({"outcome": facts.outcome, **({"error": facts.error} if facts.error else {})})
        if facts.diff != self._diff:
            path = Path(run.dir) / "diff.patch"
            path.write_text(facts.diff, encoding="utf-8")
            run.save(str(path), base_path=run.dir, policy="now")
            self._diff = facts.diff

    def end(self, facts: SentFacts) -> None:
        self._run.finish(exit_code=INTERRUPTED if facts.outcome == "interrupted" else 1 if facts.failed else 0)

    def leave(self) -> None:
        self._run.finish(exit_code=1)


def _clear(state: TrackedState, run: str) -> None:
    """End W&B's own process of a sender that was killed, and remove what it had written of the run with id ``run``."""
    folder = state.place.pop("folder", "")
    sender = state.place.pop("sender", "")
    if sender:
        for process in psutil.process_iter(["cmdline", "uids"]):
            words, users = process.info["cmdline"] or [], process.info["uids"]
            if words and Path(words[0]).name == CORE and users and users.real == os.getuid():
                with contextlib.suppress(ValueError, IndexError, psutil.Error):
                    if words[words.index("--pid") + 1] == sender:
                        process.kill()
                        process.wait(5)
    unfinished = [Path(folder)] if folder else []
    # A sender that is killed while W&B begins the run has not told its folder.
    senders = tuple(f":{one} [" for one in (sender, os.getpid()) if one)
    begun = Path(state.place["root"], "wandb").glob(f"*run-*-{run}")
    unfinished += [path for path in begun if any(one in _first_line(path / "logs" / "debug.log") for one in senders)]
    for path in unfinished:
        if re.fullmatch(rf"(offline-)?run-\d+_\d+-{run}", path.name):
            shutil.rmtree(path, ignore_errors=True)


def _first_line(path: Path) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.readline(1000)
    return ""


def _safe(name: str) -> str:
    """``name``, unless it is that of the axis or W&B's own."""
    return f"{name}_" if name == STEP else f"metric{name}" if name.startswith("_") else name
