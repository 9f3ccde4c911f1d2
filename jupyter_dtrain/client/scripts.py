"""The cell that runs a script: checked here, run by :func:`jupyter_dtrain.run_script` in the ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.core.run_names import WIDTH


def script_name(script: str | os.PathLike[str], arguments: Sequence[Any] = ()) -> str:
    """The name of a run of ``script``: its file and arguments, on one line."""
    words = "".join(one if one.isprintable() else " " for one in " ".join([Path(script).name, *map(str, arguments)]))
    return words if len(words) <= WIDTH else f"{words[: WIDTH - 1]}…"


def script_cell(
    script: str | os.PathLike[str], arguments: Sequence[Any] = (), *, module: bool = False, fresh: bool = False
) -> str:
    """The cell that runs ``script`` with ``arguments``, as text, on ranks of this machine.

    ``module``: ``script`` is the name of a module; the ranks look for it. ``fresh``: in a namespace of its own, which
    is dropped afterwards. Raises :class:`BadRequest` for a script that is not there, cannot be read, or is no Python,
    and for what cannot be the name of a module.
    """
    if module:
        name = os.fspath(script)
        if not all(part.isidentifier() for part in name.split(".")):
            raise BadRequest(f"{name!r} cannot be the name of a module, such as package.train; a file needs no -m.")
        return _call(name, arguments, module=True, fresh=fresh)
    path = Path(script).expanduser().absolute()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"The script {path} cannot be read: {error.strerror}.") from None
    try:
        compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise BadRequest(f"{path.name}, line {error.lineno}: {error.msg}. No rank ran it.") from None
    except ValueError as error:
        raise BadRequest(f"{path.name} is not Python: {error}.") from None
    return _call(str(path), arguments, fresh=fresh)


def _call(script: str, arguments: Sequence[Any], **options: bool) -> str:
    given = [f"{name}=True" for name, value in options.items() if value]
    call = ", ".join([*map(repr, [script, *map(str, arguments)]), *given])
    return f"import jupyter_dtrain\njupyter_dtrain.run_script({call})"
