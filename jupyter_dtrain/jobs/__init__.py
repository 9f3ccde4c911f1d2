"""From cells to a job: the ``%%distributed`` cells of a notebook as a script, and the files that launch it.

The way of an export::

    notebook file, or this session ─▶ Notebook (cells, world) ─▶ choice (all, a range, a tag) ─▶ needs (local cells)
                                    ─▶ translation, cell by cell ─▶ script ─▶ Job ─▶ target ─▶ files

:mod:`.notebook` has the cells and the world as plain data; who reads them lies elsewhere, as only the magics know the
options of a cell's first line. :mod:`.syntax` turns IPython's syntax into Python, :mod:`.names` finds what a cell reads
and binds, :mod:`.dependencies` decides which cells without ``%%distributed`` a job needs, and finds the installed
versions of packages. :mod:`.script` puts the sections together; the set-up at its beginning is the source of
:mod:`.script_preamble`. :mod:`.exporting` makes one export, and has the table of targets: :mod:`.launchers` has those
that run here and in Slurm, :mod:`.platforms` those that other libraries read; one more module has the files of a
launcher that reads its own. :mod:`.record` is the way back: a job writes its metrics into the store, as a world with
one run.

Everything up to the last step is a pure function. So an export that is refused has written nothing, and one that fails
to write leaves the earlier files as they were. Each refusal is a
:class:`~jupyter_dtrain.core.errors.BadRequest` that names the cells and the fix. Values of ``--env`` never come here:
readers pass on their names alone.
"""

from __future__ import annotations

from .exporting import TARGETS, Exported, export_notebook
from .job import Setting, Target
from .notebook import JobWorld, Notebook, NotebookCell

__all__ = ["TARGETS", "Exported", "JobWorld", "Notebook", "NotebookCell", "Setting", "Target", "export_notebook"]
