"""The live widget of a cell: an ipywidget whose front end is our bundle, and the questions that it asks.

The view's own thread makes and feeds it. The user's questions (interrupt, stacks, a rank's output) arrive on the
thread with which the kernel answers comms: a subshell's, where kernel and front end have them, so that they work while
the cell runs; else the main thread, after the cell, when there is nothing left to interrupt.

Without the bundle (a checkout that was installed where there is no Node) or without anywidget, :func:`load` gives
None, and cells show text.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

STATIC: Final = Path(__file__).parent.parent / "static"
"""Where the build puts the bundle."""

VIEW: Final = "application/vnd.jupyter.widget-view+json"

OUTPUT_CHARACTERS: Final = 200_000
"""Of a rank's output, its end, that the widget shows."""

KEPT: Final = 8
"""Widgets of ended runs that stay open: a page that was reloaded in mid-cell asks for them when the kernel is idle."""

_log = logging.getLogger("jupyter_dtrain")


class Actions(NamedTuple):
    """What a person may ask for while a cell runs. Called from any thread."""

    interrupt: Callable[[], None]
    stacks: Callable[[], str]
    """Where each rank is, as text. May take 2 s."""
    output: Callable[[int], str]
    """All text of a rank."""
    over: Callable[[], bool]
    """Whether the run has ended."""


class Link:
    """One widget, seen from the run that it shows. Methods may raise what the kernel's connection raises."""

    def __init__(self, widget: Any, actions: Actions) -> None:
        self._widget = widget
        self._actions = actions
        # ipykernel 7.4 sends what the front end says to the shell that this comm sent from last, which is the busy
        # one. Without this method it goes to the subshell that the front end asked for.
        if hasattr(widget.comm, "_reply_subshell_for"):
            widget.comm._reply_subshell_for = None  # noqa: SLF001 — there is no public way
        widget.on_msg(self._asked)

    @property
    def view(self) -> dict[str, Any]:
        """What a display carries to show the widget."""
        return {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}

    def send(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        """Say something to the front end; lost if nobody listens."""
        self._widget.send(content, buffers=buffers)

    def keep(self, document: bytes) -> None:
        """Set what a page that comes later starts from."""
        self._widget.document = document

    def end(self, document: bytes) -> None:
        """The run has ended: nothing more can be asked."""
        with self._widget.hold_sync():
            self._widget.document = document
            self._widget.live = False
        _ended.append(self._widget)
        while len(_ended) > KEPT:
            _ended.popleft().close()

    def _asked(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, dict):
            return
        answer = {"type": "answer", "id": content.get("id")}
        with contextlib.suppress(Exception):
            self._widget.send({"type": "heard", "id": content.get("id")})  # the answer itself may take a while
        try:
            answer.update(self._answer(content))
        except Exception as error:  # noqa: BLE001 — the person is told, and the kernel's thread goes on
            answer["problem"] = f"{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):
            self._widget.send(answer)

    def _answer(self, content: dict[str, Any]) -> dict[str, Any]:
        kind = content.get("type")
        if kind == "output":
            text = self._actions.output(int(content["rank"]))
            cut = max(0, len(text) - OUTPUT_CHARACTERS)
            return {"text": text[cut:], "cut": cut}
        if self._actions.over():
            return {"problem": "The run has ended."}
        if kind == "interrupt":
            self._actions.interrupt()
            return {"text": ""}
        if kind == "stacks":
            return {"text": self._actions.stacks()}
        return {"problem": f"{kind!r} is not known here."}


_ended: deque[Any] = deque()
_made: list[Any] = []  # the class, or None, once it was looked for


def load() -> Callable[[Actions, bytes], Link] | None:
    """What makes a widget that starts from a document; None where there can be none. Imports anywidget, once."""
    if not _made:
        _made.append(_widget_class())
    kind = _made[0]
    if kind is None:
        return None

    def make(actions: Actions, document: bytes) -> Link:
        return Link(kind(document=document), actions)

    return make


def _widget_class() -> Any:
    try:
        script = (STATIC / "widget.js").read_text(encoding="utf-8")
        style = (STATIC / "widget.css").read_text(encoding="utf-8")
        import anywidget
        import traitlets
    except (OSError, ImportError) as error:
        _log.debug("No widgets: %s", error)
        return None

    class RunWidget(anywidget.AnyWidget):  # type: ignore[misc, name-defined, unused-ignore]
        """The front end's half of a run."""

        _esm = script
        _css = style
        document = traitlets.Bytes().tag(sync=True)
        """The run as JSON, at most some 100 kB, about once a second."""
        live = traitlets.Bool(default_value=True).tag(sync=True)
        """Whether it can be asked."""

    return RunWidget
