"""A sweep over DeepSpeed's ZeRO stages and micro-batches in the live world.

``%distributed deepspeed-tune`` and ``Session.tune`` call it.

DeepSpeed's own autotuner starts the user's script anew for each experiment, by its launcher. Here each combination is
one run on all ranks of the live world, with the user's own functions; :mod:`.trial` is a rank's part in it.

Under failure: a combination that runs out of memory on any rank has failed on all, and the sweep skips larger
micro-batches of that stage. Any other error fails its combination alone. A release frees the ranks that wait for a
failed one, and the next run repairs them. An interrupt, or the loss of a rank, ends the sweep and keeps its results.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from jupyter_dtrain.core.causes import DistributedError, summary
from jupyter_dtrain.core.errors import BadRequest, DtrainError
from jupyter_dtrain.core.events import Output, Progress
from jupyter_dtrain.core.stop_button import StopButton
from jupyter_dtrain.core.world import count_ranks
from jupyter_dtrain.wire.values import check_variable

from .trial import MEASURED, OutOfMemory

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import Batch
    from jupyter_dtrain.core.run import Run
    from jupyter_dtrain.session import Session

STAGES = (0, 1, 2, 3)
MICRO_BATCHES = (1, 2, 4, 8, 16)
_CALL = "__import__('importlib').import_module('jupyter_dtrain.frameworks.deepspeed.trial').{}(**{!r})"
"""The cell of a combination: it leaves no name behind, nor a value."""
_OURS = "[jupyter-dtrain] "

Outcome = Literal["ok", "out of memory", "error", "skipped"]


@dataclass(frozen=True)
class Trial:
    """The result of one combination of a sweep."""

    stage: int
    """The stage of ZeRO."""
    micro_batch: int
    """Samples in one forward of one rank."""
    outcome: Outcome
    words: str = ""
    """The error in words; empty if there was none."""
    seconds: float | None = None
    """How long a step of the optimizer takes: the slowest rank's time, and the median of that over the steps."""
    samples_per_second: float | None = None
    """The sum over all ranks."""
    memory: int | None = None
    """Peak bytes of the rank that used most: allocated memory on a GPU, else the growth of the process."""
    config: dict[str, Any] | None = None
    """DeepSpeed's configuration, as it was measured."""


@dataclass
class Tuning:
    """The results of a sweep, so far or in all."""

    combinations: int
    """How many combinations the sweep will measure."""
    trials: list[Trial] = field(default_factory=list)
    """The measured combinations, the fastest first, then those that failed, in their order."""
    interrupted: bool = False
    """Whether the sweep was stopped before its end."""
    lost: str = ""
    """Why the world could not go on, in words; empty if it could."""
    notes: list[str] = field(default_factory=list)
    """The ranks' other reports: hangs, and objects that a release could not repair."""
    now: str = ""
    """The combination under way, in words."""

    @property
    def best(self) -> Trial | None:
        """The combination with the most samples per second; None where none was measured."""
        return self.trials[0] if self.trials and self.trials[0].samples_per_second is not None else None

    def add(self, trial: Trial) -> None:
        """Add the result of one more combination, at its place in the order."""
        self.trials.append(trial)
        self.trials.sort(key=lambda one: -(one.samples_per_second or 0.0))

    def to_pandas(self) -> Any:
        """A data frame with a row for each combination. Raises :class:`ImportError` where pandas is missing."""
        import pandas as pd

        return pd.DataFrame([vars(trial) for trial in self.trials])

    def __repr__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Show the results as a table, in text and HTML."""
        from jupyter_dtrain.view.labels import human
        from jupyter_dtrain.view.tables import table

        headers = ["ZeRO", "micro-batch", "samples/s", "ms/step", "memory", ""]
        rows = [
            [
                str(trial.stage),
                str(trial.micro_batch),
                _number(trial.samples_per_second),
                _number(trial.seconds and 1000 * trial.seconds),
                "" if trial.memory is None else human(trial.memory),
                "best" if trial is self.best else trial.words or ("" if trial.outcome == "ok" else trial.outcome),
            ]
            for trial in self.trials
        ]
        return table(f"{len(self.trials)} of {self.combinations} combinations{self._state()}", headers, rows)

    def _state(self) -> str:
        if self.now:
            return f"; now {self.now}"
        if self.interrupted:
            return "; interrupted"
        return f"; ended: {self.lost}" if self.lost else ""


def tune(
    session: Session,
    model: str,
    batch: str,
    *,
    stages: Iterable[int] = STAGES,
    micro_batches: Iterable[int] = MICRO_BATCHES,
    config: str | Mapping[str, Any] | None = None,
    steps: int = 5,
    warmup: int = 2,
    progress: Callable[[Tuning], None] | None = None,
) -> Tuning:
    """Measure how fast DeepSpeed trains with each ZeRO stage and micro-batch, in this world; the fastest first.

    ``model``, ``batch``: names of functions on the ranks. ``model()`` gives a fresh module whose forward gives the
    loss (or a tuple, dictionary or object that has it); ``batch(n)`` gives n samples, as the arguments of one
    forward. ``stages``: default 0, 1, 2, 3; ``micro_batches``: default 1, 2, 4, 8, 16 samples of a rank.
    ``config``: DeepSpeed's configuration but for these two, or the name of one on the ranks; without an optimizer
    it is AdamW. ``steps``: how many are measured, default 5; ``warmup``: how many come before, default 2.
    ``progress`` is called with the table so far whenever there is news, on any thread.

    The table shows why a combination failed, such as out of memory. An interrupt ends
    the sweep and is in :attr:`.Tuning.interrupted`. Raises :class:`BadRequest` for wrong arguments, and where the
    ranks have no DeepSpeed; else, before the first combination, as :meth:`.Session.run`.
    """
    stages, sizes = sorted(set(stages)), sorted(set(micro_batches))
    options = _options(model, batch, stages, sizes, config, steps, warmup)
    _check(session, {name: options[name] for name in ("model", "batch", "config")})
    going = _Sweep(session, options, Tuning(len(stages) * len(sizes)), progress or (lambda _: None))
    return going.through(stages, sizes)


def _options(
    model: str,
    batch: str,
    stages: list[int],
    sizes: list[int],
    config: str | Mapping[str, Any] | None,
    steps: int,
    warmup: int,
) -> dict[str, Any]:
    """Check the arguments of :func:`tune` and return the options for the ranks. Raises :class:`BadRequest`."""
    for name in (model, batch, *([config] if isinstance(config, str) else [])):
        check_variable(name)
    if not stages or set(stages) - set(STAGES):
        raise BadRequest(f"ZeRO has the stages 0, 1, 2 and 3, not {stages}.")
    if not sizes or min(sizes) < 1:
        raise BadRequest(f"A micro-batch has 1 sample or more, not {sizes}.")
    if steps < 1 or warmup < 0:
        raise BadRequest("steps must be at least 1, and warmup at least 0.")
    if isinstance(config, Mapping):
        try:
            config = json.loads(json.dumps(dict(config)))
        except (TypeError, ValueError) as error:
            raise BadRequest(f"The configuration cannot be written as JSON: {error}.") from None
    return {"model": model, "batch": batch, "config": config, "steps": steps, "warmup": warmup}


def _check(session: Session, options: dict[str, Any]) -> None:
    try:
        session.run(_CALL.format("check", options), view=None, metrics=False)
    except DistributedError as failed:
        for error in failed.run.errors.values():
            if error.ename == BadRequest.__name__:
                raise BadRequest(error.evalue) from None
        raise


class _Sweep:
    """Measures the combinations of a sweep, one run after the other."""

    def __init__(
        self, session: Session, options: dict[str, Any], tuning: Tuning, report: Callable[[Tuning], None]
    ) -> None:
        self._session = session
        self._options = options
        self._tuning = tuning
        self._report = report

    def through(self, stages: list[int], sizes: list[int]) -> Tuning:
        """Measure all combinations, until an interrupt or the loss of a rank."""
        tuning = self._tuning
        # The button delays a press that would break something, between two runs as well.
        with StopButton() as stop_button:
            stop_button.pass_to(self._interrupt)
            try:
                for stage in stages:
                    self._stage(stage, sizes, stop_button)
            except KeyboardInterrupt:
                tuning.interrupted = True
            except DtrainError as error:
                # A rank died, or is left behind: the results so far are kept.
                tuning.lost = str(error)
        tuning.now = ""
        self._report(tuning)
        return tuning

    def _stage(self, stage: int, sizes: list[int], stop_button: StopButton) -> None:
        full = ""
        for size in sizes:
            if full:
                self._tuning.add(Trial(stage, size, "skipped", f"skipped: {full}"))
                continue
            trial = self._try(stage, size, stop_button)
            self._tuning.add(trial)
            if trial.outcome == "out of memory":
                full = f"micro-batch {size} is out of memory"

    def _try(self, stage: int, size: int, stop_button: StopButton) -> Trial:
        what = f"ZeRO {stage}, micro-batch {size}"
        self._say(what)
        stop_button.check()
        listener = _Listener(lambda words: self._say(f"{what}: {words}"), self._tuning.notes)
        code = _CALL.format("measure", {**self._options, "stage": stage, "micro_batch": size})
        run = self._session.run(code, wait=False, view=listener, metrics=False)
        try:
            if stop_button.fell:
                self._interrupt()
            while not run.wait(1.0):
                pass
        except KeyboardInterrupt:
            # Another handler took SIGINT. The ranks must not go on working.
            self._interrupt()
            raise
        if run.outcome == "interrupted":
            raise KeyboardInterrupt
        if run.outcome == "ok":
            return _measured(run, stage, size)
        if full := [rank for rank, error in run.errors.items() if error.ename == OutOfMemory.__name__]:
            return Trial(stage, size, "out of memory", f"out of memory on {count_ranks(full)}")
        return Trial(stage, size, "error", summary(run))

    def _say(self, words: str) -> None:
        self._tuning.now = words
        self._report(self._tuning)

    def _interrupt(self) -> None:
        with contextlib.suppress(DtrainError):
            self._session.interrupt()


def _measured(run: Run, stage: int, size: int) -> Trial:
    found = [
        json.loads(str(display.data[MEASURED]))
        for displays in run.outputs.values()
        for display in displays
        if MEASURED in display.data
    ]
    seconds = statistics.median(max(step) for step in zip(*(one["seconds"] for one in found), strict=True))
    return Trial(
        stage,
        size,
        "ok",
        seconds=seconds,
        samples_per_second=found[0]["samples"] / seconds,
        memory=max(one["memory"] for one in found),
        config=found[0]["config"],
    )


class _Listener:
    """A view of a combination's run. It shows long work, such as a build, and keeps the ranks' notes."""

    def __init__(self, say: Callable[[str], None], notes: list[str]) -> None:
        self._say = say
        self._notes = notes

    def feed(self, batch: Batch, now: float) -> None:  # noqa: ARG002 — the protocol's shape
        """Show the progress bars of the run, and keep the lines of this package."""
        for event in batch.events:
            match event.body:
                case Progress(ended=False, text=text):
                    with contextlib.suppress(Exception):  # a view does not raise
                        self._say(text)
                case Output(stream="stderr", text=text):
                    for line in text.splitlines():
                        if line.startswith(_OURS):
                            self._keep(line.removeprefix(_OURS))

    def idle(self, rank: int, now: float) -> None:
        """Ignore that a rank is idle."""

    def note(self, words: str, now: float) -> None:  # noqa: ARG002 — the protocol's shape
        """Keep a note for the table."""
        self._keep(words)

    def stand(self, topic: str, words: str, now: float, over: str = "") -> None:  # noqa: ARG002
        """Keep a standing note, such as where ranks hang: they may hang in another combination as well."""
        if words:
            self._keep(words)

    def tick(self, now: float) -> None:
        """Do nothing: nothing is due."""

    def close(self, run: Run, now: float) -> None:
        """Do nothing: the view holds nothing."""

    def _keep(self, words: str) -> None:
        if words not in self._notes:
            self._notes.append(words)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value < 100 else f"{value:,.0f}"  # noqa: PLR2004
