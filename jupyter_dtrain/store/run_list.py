"""Stored runs as a list that shows itself: the newest ones, or those that a person has chosen with their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.metrics import import_pandas

from .run_columns import CellValue, ColumnHead
from .selection import ColumnChoice, RunGroup
from .stored_run import StoredRun

if TYPE_CHECKING:
    import pandas as pd


class RunList(list[StoredRun]):
    """Stored runs, newest first. It is a list; a notebook shows it as a table."""

    def frame(self) -> pd.DataFrame:
        """A :class:`pandas.DataFrame` with a row for each run.

        Its columns are id, run, name, world, outcome, started (UTC), elapsed (seconds), ranks, group, tags, note, kept,
        ``last NAME`` and ``best NAME`` for each loss, and ``config NAME`` for each value of the configuration. Raises
        :class:`ImportError` where pandas is not installed.
        """
        pd = import_pandas()
        rows: list[dict[str, Any]] = []
        for run in self:
            row = {
                "id": run.id,
                "run": run.label,
                "name": run.name,
                "world": run.world,
                "outcome": run.outcome,
                "started": pd.Timestamp(run.started, unit="s", tz="UTC"),
                "elapsed": run.elapsed,
                "ranks": len(run.ranks),
                "group": run.group,
                "tags": run.tags,
                "note": run.note,
                "kept": run.kept,
            }
            for loss in run.losses:
                row |= {f"last {loss.name}": loss.last, f"best {loss.name}": loss.best}
            row |= {f"config {name}": value for name, value in run.config.items()}
            rows.append(row)
        return pd.DataFrame(rows)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        from jupyter_dtrain.view.stored import listing

        return listing(self) if self else {"text/plain": "No runs."}

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:  # noqa: FBT001 - IPython's own signature
        # IPython prefers its printer of lists to the text of a bundle.
        printer.text(self._repr_mimebundle_()["text/plain"])

    def _repr_html_(self) -> str:
        shown: str = self._repr_mimebundle_().get("text/html", "<p>No runs.</p>")
        return shown


class Selection:
    """Runs that were chosen from the store, in order. A notebook shows them as a table; so does :meth:`frame`."""

    def __init__(
        self,
        runs: RunList,
        values: list[list[CellValue]],
        columns: list[ColumnHead],
        *,
        total: int = 0,
        places: list[int] | None = None,
        groups: list[RunGroup] | None = None,
        configs: list[ColumnChoice] | None = None,
        metrics: list[ColumnChoice] | None = None,
        trainings: int = 0,
        every: int = 0,
        version: str = "",
        hint: str = "",
    ) -> None:
        self.runs = runs
        """Those of the part of the list that was asked for."""
        self.values = values
        """Of each of them, its value in each of ``columns``."""
        self.columns = columns
        self.total = total
        """How many runs the filter lets through."""
        self.places = places or []
        """Of each of ``runs``, the place of its group; empty without groups."""
        self.groups = groups or []
        self.configs = configs or []
        """The configuration values that the listed runs have, whatever the filter says."""
        self.metrics = metrics or []
        self.trainings = trainings
        """How many runs are trainings; ``all``: how many there are, without those of our own verbs."""
        self.all = every
        self.version = version
        """Changes with the store."""
        self.hint = hint
        """What in the filter no run has, in words; mostly empty."""

    def __len__(self) -> int:
        return len(self.runs)

    def frame(self) -> pd.DataFrame:
        """The runs as :meth:`RunList.frame` has them, with a column for each chosen one, under its title.

        Raises :class:`ImportError` where pandas is not installed.
        """
        import_pandas()
        found = self.runs.frame()
        for place, head in enumerate(self.columns):
            found[head.title] = [values[place] for values in self.values]
        return found

    def __repr__(self) -> str:
        return str(self.bundle()["text/plain"])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return self.bundle()

    def bundle(self) -> dict[str, Any]:
        """The table, as text and as HTML."""
        from jupyter_dtrain.view.stored import listing

        if not self.runs:
            return {"text/plain": self.hint or "No runs."}
        groups = [self.groups[place].words for place in self.places]
        shown: dict[str, Any] = listing(self.runs, self.columns, self.values, groups)
        return shown
