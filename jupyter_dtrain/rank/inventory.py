"""The inventory of a rank's variables: what each holds, its norm and its digest, but never its values.

A rank answers while a cell runs, too, so it runs hardly any user code, and on a thread of its own
(:mod:`.questions`). Beside a cell it reads no values whose memory the cell may free meanwhile: such variables have
neither norm nor digest then.

Under failure: a variable that cannot be read has a type alone. After the time that the question allows, the rank
answers with what it has: further variables have neither norm nor digest. A cell that begins waits while one tensor is
read, but never longer than :data:`PATIENCE`.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
import time
import types
from typing import TYPE_CHECKING, Any, Final

from jupyter_dtrain.core.contents import NamedValue, PartSummary
from jupyter_dtrain.core.dotted_paths import FUNCTIONS, is_plainly, resolve
from jupyter_dtrain.plugins.framework import Part, of_ipython
from jupyter_dtrain.wire.agent_messages import ReadVariables, VariablesRead

from .contents import fingerprint, own_parts, parts_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from .plugins import Plugins

MOST: Final = 200
"""Variables in one answer."""
PATIENCE: Final = 10.0
"""The most seconds that a cell which begins waits for the tensor that is being read."""


class RankInventory:
    """Reads the variables of one rank."""

    def __init__(self, namespace: Mapping[str, Any], hidden: Collection[str], plugins: Plugins) -> None:
        """``hidden``: names of the namespace that are not the user's."""
        self._namespace = namespace
        self._hidden = hidden
        self._plugins = plugins
        self._values = threading.Lock()
        self._yielded = False

    def yield_values(self) -> None:
        """Leave the values to a cell that begins, until :meth:`take_values`. Main thread."""
        self._yielded = self._values.acquire(timeout=PATIENCE)

    def take_values(self) -> None:
        """Read values again: the cell has ended. Main thread; a second call changes nothing."""
        if self._yielded:
            self._yielded = False
            self._values.release()

    @contextlib.contextmanager
    def still(self) -> Iterator[bool]:
        """Whether no cell runs; then none begins before the end of the block, which must be short. Any thread."""
        came = self._values.acquire(blocking=False)
        try:
            yield came
        finally:
            if came:
                self._values.release()

    def read(self, question: ReadVariables) -> VariablesRead:
        """Read the variables that ``question`` names, or all, for as long as it allows. Any thread."""
        deadline = time.monotonic() + question.seconds
        names = question.names or [name for name, value in list(self._namespace.items()) if self._is_data(name, value)]
        found = {}
        for name in names[:MOST]:
            try:
                value = resolve(self._namespace, name)
            except LookupError:
                continue
            found[name] = self._of(name, value, deadline)
        return VariablesRead(found, max(0, len(names) - MOST))

    def _is_data(self, name: str, value: Any) -> bool:
        code = is_plainly(value, types.ModuleType, type, *FUNCTIONS)
        return not code and name not in self._hidden and not name.startswith("_") and not of_ipython(name)

    def _of(self, name: str, value: Any, deadline: float) -> NamedValue:
        kind = type(value)
        plainly = kind.__qualname__
        try:
            parts = parts_of(name, value, self._namespace, self._plugins)
            if len(parts) == 1 and parts[0].name == name:
                (part,) = parts
                facts = self._read(part, deadline)
                form = (facts.shape, facts.dtype, facts.device, facts.placement)
                return NamedValue(
                    facts.type, *form, 0, facts.size, facts.norm, facts.digest, facts.piece, words=part.words()
                )
            own = own_parts(parts)
            everything, pieces, whole = (hashlib.blake2b(digest_size=8) for _ in range(3))
            squares, size, read, placed = 0.0, 0, True, set[str]()
            devices = dict[str, None]()
            for part in own:
                facts = self._read(part, deadline) if read else part.facts()
                read = read and bool(facts.digest)
                squares, size = squares + (facts.norm or 0.0) ** 2, size + facts.size
                placed |= {facts.placement} if facts.placement else set()
                devices[facts.device] = None
                described = repr((facts.name, facts.shape, facts.dtype, facts.digest)).encode()
                everything.update(described)
                if facts.piece:
                    pieces.update(repr((facts.name, facts.piece)).encode())
                else:
                    whole.update(described)
            return NamedValue(
                plainly,
                device=", ".join(one for one in devices if one),
                placement="sharded" if placed else "",
                parts=len(own),
                size=size,
                norm=math.sqrt(squares) if read and size else None,
                digest=everything.hexdigest() if read else "",
                piece=pieces.hexdigest() if placed else "",
                whole=whole.hexdigest() if read and placed else "",
            )
        except Exception:  # noqa: BLE001 — user code may raise anything, and may change what is read here
            return NamedValue(plainly)

    def _read(self, part: Part, deadline: float) -> PartSummary:
        """The facts of a part, with norm and digest where there is time, and where no cell may free the memory."""
        if time.monotonic() > deadline:
            return part.facts()
        if part.steady:
            return fingerprint(part, norm=True)
        with self.still() as still:
            return fingerprint(part, norm=True) if still else part.facts()
