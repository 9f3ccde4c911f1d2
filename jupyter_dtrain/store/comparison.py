"""Runs side by side: a table of their metrics, and their curves in common charts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.metrics import import_pandas
from jupyter_dtrain.core.run import Run
from jupyter_dtrain.view.made import Differences

from .differences import differences
from .run_list import RunList
from .run_page import commit_of
from .runs import Store
from .stored_run import StoredRun

if TYPE_CHECKING:
    import pandas as pd


class Comparison:
    """Two or more stored runs. A notebook shows a table of their metrics, and their curves."""

    def __init__(self, runs: list[StoredRun]) -> None:
        """Raises :class:`BadRequest` unless there are two different runs."""
        self.runs = RunList(runs)
        ids = [run.id for run in runs]
        if twice := next((run for run in runs if ids.count(run.id) > 1), None):
            raise BadRequest(f"Run {twice.label} is named twice: name different runs.")
        if not self.runs[1:]:
            raise BadRequest("A comparison needs two runs or more.")

    def frame(self) -> pd.DataFrame:
        """All points, as :meth:`RunMetrics.to_pandas` has them, with a column for the run.

        Raises :class:`ImportError` where pandas is not installed.
        """
        pd = import_pandas()
        return pd.concat([run.metrics.to_pandas().assign(run=run.label) for run in self.runs], ignore_index=True)

    @property
    def differences(self) -> Differences:
        """What differs between the runs: configuration, code, versions, commits and metrics."""
        return differences(self.runs, [commit_of(run.file, run.id) for run in self.runs])

    @property
    def table(self) -> dict[str, Any]:
        """Last, lowest and highest values of each metric, as text and as HTML."""
        from jupyter_dtrain.view.stored import comparison

        return comparison(self.runs)

    @property
    def curves(self) -> dict[str, Any] | None:
        """Curves of the metrics that several of the runs have, as SVG; None when there is no such metric.

        Raises :class:`ImportError` where matplotlib is not installed.
        """
        from jupyter_dtrain.view.stored import overlay

        picture = overlay(self.runs)
        words = f"<the metrics of {', '.join(run.label for run in self.runs)}>"
        return None if picture is None else {"image/svg+xml": picture, "text/plain": words}

    def __repr__(self) -> str:
        return f"{self.table['text/plain']}\n{self.differences!r}"

    def _repr_html_(self) -> str:
        table = self.table
        html: str = table.get("text/html") or f"<pre>{escape(table['text/plain'])}</pre>"
        html += self.differences._repr_html_() or ""
        try:
            curves = self.curves
        except ImportError:
            return f"{html}<p>To see the curves, install matplotlib: pip install matplotlib</p>"
        picture = "" if curves is None else curves["image/svg+xml"]
        return html + picture[max(0, picture.find("<svg")) :]


def compare(*runs: StoredRun | Run | str | int) -> Comparison:
    """Compare stored runs, two or more: their metrics in a table, and their curves.

    A run is a :class:`StoredRun`, a :class:`Run` of a session, or a name as in :meth:`Store.run`.

    Raises :class:`BadRequest` for a run that is not there.
    """
    store = Store.open()
    return Comparison([_stored(store, run) for run in runs])


def _stored(store: Store, run: StoredRun | Run | str | int) -> StoredRun:
    match run:
        case StoredRun():
            return run
        case Run():
            return store.run_of(run)
    return store.run(run)
