"""Shift-Tab on a name that only the ranks have: shows what it is there."""

from __future__ import annotations

import html
from typing import Any

from jupyter_dtrain.client.rank_names import describe_names
from jupyter_dtrain.core.errors import DtrainError
from jupyter_dtrain.plugins.patches import Patch
from jupyter_dtrain.session import current

INSPECTIONS = Patch(
    "IPython.core.interactiveshell",
    replaces=("InteractiveShell.object_inspect_mime",),
    why="The notebook's kernel does not know the names that only the ranks have.",
    lost="Shift-Tab shows nothing for names that only the ranks have",
)


class Inspections:
    """Answers for one shell when its own inspector has found nothing."""

    def __init__(self) -> None:
        self._original: Any = None

    def install(self, shell: Any) -> None:
        """Wrap the shell's inspector."""

        def install(_: Any) -> None:
            original = shell.object_inspect_mime
            INSPECTIONS.replace(shell, "object_inspect_mime", _inspect)
            self._original = original

        INSPECTIONS.when_imported(install)

    def uninstall(self, shell: Any) -> None:
        """Restore the shell's inspector."""
        if self._original is not None:
            INSPECTIONS.put(shell, "object_inspect_mime", self._original)


def _inspect(original: Any, oname: str, detail_level: int = 0, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(oname, detail_level, *args, **kwargs)
    except KeyError:
        words = _describe(oname, source=detail_level > 0)
        if not words:
            raise
        # ipykernel removes text/html where a client does not want it, and needs it to be there.
        return {"text/plain": words, "text/html": f"<pre>{html.escape(words)}</pre>"}


def _describe(name: str, *, source: bool) -> str:
    if not all(part.isidentifier() for part in name.split(".")):
        return ""
    try:
        session = current()
        found = session.names.describe(name, source=source)
        return describe_names(name, found, session.world.size) if found else ""
    except DtrainError:
        return ""
