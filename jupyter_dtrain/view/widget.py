"""The live widget of a cell: an ipywidget with our bundle as front end, and the requests that it sends.

The view's own thread makes and feeds it. The user's questions (interrupt, stacks, a rank's output, a profile) and
answers to prompts arrive on the thread with which the kernel answers comms: a subshell's, where kernel and front end
have them, so that they work while the cell runs; else the main thread, after the cell, when there is nothing left to
interrupt.

Without the bundle (a checkout installed without Node) or without anywidget, :func:`load` returns None, and cells show
text.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from jupyter_dtrain.core.errors import DtrainError
from jupyter_dtrain.plugins.patches import Patch

STATIC: Final = Path(__file__).parent.parent / "static"
"""Where the build puts the bundle."""

ANSWERS = Patch(
    "ipykernel.comm.comm",
    replaces=("BaseComm._reply_subshell_for",),
    why="ipykernel 7.4 sends the front end's messages to the shell from which a comm sent last, which the cell keeps "
    "busy.",
    lost="the buttons of a running cell do nothing before its end",
)

VIEW: Final = "application/vnd.jupyter.widget-view+json"

OUTPUT_CHARACTERS: Final = 200_000
"""Characters of the end of a rank's output that the widget shows."""

KEPT: Final = 8
"""Widgets of ended runs that stay open: a page that reloads in mid-cell asks for them when the kernel is idle."""

_log = logging.getLogger("jupyter_dtrain")


class Actions(NamedTuple):
    """Actions that a person may request while a cell runs. Called from any thread."""

    interrupt: Callable[[], None]
    stacks: Callable[[], str]
    """Where each rank is, as text. May take 2 s."""
    output: Callable[[int], str]
    """All text of a rank, and the error that ended its cell."""
    over: Callable[[], bool]
    """Whether the run has ended."""
    profile: Callable[[], dict[str, Any]]
    """The next steps of the loop, as JSON of a :class:`~.profiles.PanelProfile`. Takes as long as those steps."""
    answer: Callable[[dict[int, int], str | None], None]
    """Answer prompts, which are numbered by rank; None: the end of the input."""


class WidgetLink:
    """One widget, as its run uses it. Its methods may raise the errors of the kernel's connection."""

    def __init__(self, widget: Any, actions: Actions) -> None:
        self._widget = widget
        self._actions = actions
        # ipykernel 7.4 sends the front end's messages to the shell from which this comm sent last, and that one is
        # busy. Without this method they go to the subshell that the front end chose.
        if hasattr(widget.comm, "_reply_subshell_for"):
            ANSWERS.put(widget.comm, "_reply_subshell_for", None)
        widget.on_msg(self._asked)

    @property
    def view(self) -> dict[str, Any]:
        """The content of a display that shows the widget."""
        return {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}

    def send(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        """Send a message to the front end; without a listener it is lost."""
        self._widget.send(content, buffers=buffers)

    def keep(self, document: bytes) -> None:
        """Set the document from which a later page starts."""
        self._widget.document = document

    def end(self, document: bytes) -> None:
        """End the run: later requests fail."""
        with self._widget.hold_sync():
            self._widget.document = document
            self._widget.live = False
        _ended.append(self._widget)
        while len(_ended) > KEPT:
            _ended.popleft().close()

    def _asked(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, dict):
            return
        with contextlib.suppress(Exception):
            self._widget.send({"type": "heard", "id": content.get("id")})  # the answer itself may take a while
        if content.get("type") == "profile":
            # The other buttons work meanwhile.
            threading.Thread(target=self._reply, args=(content,), name="dtrain-profile", daemon=True).start()
        else:
            self._reply(content)

    def _reply(self, content: dict[str, Any]) -> None:
        answer = {"type": "answer", "id": content.get("id")}
        try:
            answer.update(self._answer(content))
        except DtrainError as error:
            answer["problem"] = str(error)
        except Exception as error:  # noqa: BLE001 — the person gets the error, and the kernel's thread goes on
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
        if kind == "profile":
            return {"profile": self._actions.profile()}
        if kind == "prompt":
            text = content["text"]
            prompts = {int(rank): int(number) for rank, number in content["prompts"].items()}
            self._actions.answer(prompts, None if text is None else str(text))
            return {"text": ""}
        return {"problem": f"This kernel does not know the request {kind!r}."}


_ended: deque[Any] = deque()
_made: list[Any] = []  # the class, or None, after the first look


def load() -> Callable[[Actions, bytes], WidgetLink] | None:
    """A function that makes a widget from a document; None where widgets are impossible. Imports anywidget, once."""
    if not _made:
        _made.append(_widget_class())
    kind = _made[0]
    if kind is None:
        return None

    def make(actions: Actions, document: bytes) -> WidgetLink:
        return WidgetLink(kind(document=document), actions)

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
        """Whether it accepts requests."""

    return RunWidget
