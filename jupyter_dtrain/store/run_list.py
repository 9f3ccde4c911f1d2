"""A list of stored runs that shows itself as a table, and can become a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .stored_run import StoredRun

if TYPE_CHECKING:
    import pandas as pd


class RunList(list[StoredRun]):
    """Stored runs, newest first. It is a list; a notebook shows it as a table."""

    def frame(self) -> pd.DataFrame:
        """A :class:`pandas.DataFrame` with a row for each run.

        Its columns are id, run, name, world, outcome, started (UTC), elapsed (seconds), ranks, tags, note, kept, and
        ``last NAME`` and ``best NAME`` for each loss. Raises :class:`ImportError` where pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise ImportError("A data frame needs pandas, which is not installed here: pip install pandas") from None
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
                "tags": run.tags,
                "note": run.note,
                "kept": run.kept,
            }
            for loss in run.losses:
                row |= {f"last {loss.name}": loss.last, f"best {loss.name}": loss.best}
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
