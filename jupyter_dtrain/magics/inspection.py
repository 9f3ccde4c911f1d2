"""Shift-Tab on a name that only the ranks have: shows what it is there."""

from __future__ import annotations

import html
from typing import Any

from jupyter_dtrain.client.rank_names import describe_names
from jupyter_dtrain.core.errors import DtrainError
from jupyter_dtrain.session import current


class Inspections:
    """Answers for one shell when its own inspector has found nothing."""

    def __init__(self) -> None:
        self._original: Any = None

    def install(self, shell: Any) -> None:
        """Wrap the shell's inspector."""
        self._original = original = shell.object_inspect_mime

        def object_inspect_mime(oname: str, detail_level: int = 0, omit_sections: Any = ()) -> Any:
            try:
                return original(oname, detail_level=detail_level, omit_sections=omit_sections)
            except KeyError:
                words = _describe(oname, source=detail_level > 0)
                if not words:
                    raise
                # ipykernel removes text/html where a client does not want it, and needs it to be there.
                return {"text/plain": words, "text/html": f"<pre>{html.escape(words)}</pre>"}

        shell.object_inspect_mime = object_inspect_mime

    def uninstall(self, shell: Any) -> None:
        """Restore the shell's inspector."""
        shell.object_inspect_mime = self._original


def _describe(name: str, *, source: bool) -> str:
    if not all(part.isidentifier() for part in name.split(".")):
        return ""
    try:
        session = current()
        found = session.names.describe(name, source=source)
        return describe_names(name, found, session.world.size) if found else ""
    except DtrainError:
        return ""
