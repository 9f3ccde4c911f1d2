"""Where output goes: the cell of a notebook, a terminal, or a capture of either.

A :class:`Painter` is chosen on the main thread while the cell runs (:func:`painter_for_cell`) and then used from the
view's own thread. Messages carry the cell's own parent header, so they land in that cell even when another one runs
by then. Painters raise what their sink raises (a closed terminal, say): the outbox in front of them
decides what that means.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from .splitter import printable

if TYPE_CHECKING:
    from jupyter_dtrain.core.events import CommMessage, MimeBundle

StreamName = Literal["stdout", "stderr"]


class Painter(Protocol):
    """Somewhere to show text and rich outputs."""

    live: bool
    """Whether :meth:`update` redraws a display at once, so that it is worth showing passing states."""
    paced: bool
    """Whether a server drops output that comes too fast (see :mod:`jupyter_dtrain.view.pace`)."""
    erases: bool
    """Whether :meth:`update` replaces a display of several lines, so that it can be taken back."""

    def stream(self, name: StreamName, text: str) -> None:
        """Show text on one of the standard streams."""

    def display(
        self, data: MimeBundle, metadata: dict[str, Any], display_id: str | None = None, *, moving: bool = False
    ) -> None:
        """Show a rich output. ``moving``: a progress line, which will get many updates until it is settled."""

    def update(self, data: MimeBundle, metadata: dict[str, Any], display_id: str) -> None:
        """Replace the content of an earlier display."""

    def settle(self, display_id: str) -> None:
        """Note that the display has its last content: a painter that cannot redraw may show it now."""


class KernelPainter:
    """Sends IOPub messages of ``kernel`` (an ipykernel) as answers to ``parent``, from any thread.

    ``parent`` is the request message (or header) of the cell, from ``kernel.get_parent("shell")`` while the cell runs.
    """

    live = True
    paced = True
    erases = True

    def __init__(self, kernel: Any, parent: dict[str, Any]) -> None:
        self.kernel = kernel
        self._parent = parent

    def stream(self, name: StreamName, text: str) -> None:
        """Send a ``stream`` message."""
        self._send("stream", {"name": name, "text": printable(text)}, f"stream.{name}")

    def display(
        self,
        data: MimeBundle,
        metadata: dict[str, Any],
        display_id: str | None = None,
        *,
        moving: bool = False,  # noqa: ARG002 - a notebook redraws every display in place
    ) -> None:
        """Send a ``display_data`` message."""
        self._send("display_data", _content(data, metadata, display_id), "display_data")

    def update(self, data: MimeBundle, metadata: dict[str, Any], display_id: str) -> None:
        """Send an ``update_display_data`` message."""
        self._send("update_display_data", _content(data, metadata, display_id), "display_data")

    def settle(self, display_id: str) -> None:
        """Do nothing, since every update was shown at once."""

    def comm(self, message: CommMessage) -> None:
        """Send a message to the browser's half of a widget."""
        content: dict[str, Any] = {"comm_id": message.comm_id, "data": message.data}
        if message.kind == "comm_open":
            content |= {"target_name": message.target, "target_module": None}
        self._send(message.kind, content, f"comm-{message.comm_id}", message.metadata, message.buffers)

    def _send(
        self,
        kind: str,
        content: dict[str, Any],
        topic: str,
        metadata: dict[str, Any] | None = None,
        buffers: list[bytes] | None = None,
    ) -> None:
        # The kernel's socket is a BackgroundSocket: it hands the message to the IOPub thread, which owns the real one.
        kernel = self.kernel
        kernel.session.send(
            kernel.iopub_socket,
            kind,
            content,
            parent=self._parent,
            ident=topic.encode(),
            metadata=metadata,
            buffers=buffers,
        )


class PublisherPainter:
    """Passes rich outputs to an IPython display publisher that keeps them, such as ``%%capture``'s.

    It leaves out passing states: an update reaches the publisher when its display is settled.
    """

    live = False
    paced = False
    erases = False

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._latest: dict[str, tuple[MimeBundle, dict[str, Any]]] = {}

    def stream(self, name: StreamName, text: str) -> None:
        """Write to the process's own stream: publishers take rich outputs only."""
        (sys.stdout if name == "stdout" else sys.stderr).write(text)

    def display(
        self,
        data: MimeBundle,
        metadata: dict[str, Any],
        display_id: str | None = None,
        *,
        moving: bool = False,  # noqa: ARG002 - passing states are left out anyway
    ) -> None:
        """Publish a rich output."""
        content = _content(data, metadata, display_id)
        self._publisher.publish(content["data"], content["metadata"], transient=content["transient"])

    def update(self, data: MimeBundle, metadata: dict[str, Any], display_id: str) -> None:
        """Keep the new content until the display is settled."""
        self._latest[display_id] = (data, metadata)

    def settle(self, display_id: str) -> None:
        """Publish the last content, if it differs from the first."""
        if display_id in self._latest:
            content = _content(*self._latest.pop(display_id), display_id)
            self._publisher.publish(content["data"], content["metadata"], transient=content["transient"], update=True)


class TextPainter:
    """Writes text: to a terminal (``tty``), a file, or a buffer that captures output.

    A display shows as its ``text/plain``, unless ``rich`` is given, which then gets all displays. On a terminal one
    display at a time, the one updated last, stays as a single line below all text and is redrawn there. Elsewhere it
    writes only the first and the last state of a display.
    """

    paced = False
    erases = False

    def __init__(self, stdout: TextIO, stderr: TextIO, *, tty: bool, rich: Painter | None = None) -> None:
        self.live = tty and rich is None
        self._out: dict[str, TextIO] = {"stdout": stdout, "stderr": stderr}
        self._rich = rich
        self._open: str | None = None
        self._line = ""
        self._latest: dict[str, str] = {}

    def stream(self, name: StreamName, text: str) -> None:
        """Write ``text``, above the line that is being redrawn if there is one."""
        if self._open is None:
            self._write(name, text)
            return
        self._write("stdout", "\r\x1b[K")
        self._write(name, text)
        self._write("stdout", _fitting(self._line))

    def display(
        self, data: MimeBundle, metadata: dict[str, Any], display_id: str | None = None, *, moving: bool = False
    ) -> None:
        """Write the display's text, or pass the display to ``rich``."""
        if self._rich is not None:
            self._rich.display(data, metadata, display_id, moving=moving)
            return
        text = plain(data)
        if moving and self.live and display_id is not None and "\n" not in text:
            self._draw(display_id, text)
        elif text:
            self.stream("stdout", text if text.endswith("\n") else text + "\n")

    def update(self, data: MimeBundle, metadata: dict[str, Any], display_id: str) -> None:
        """Redraw the display where possible; otherwise keep its text until it is settled. Empty text erases a line."""
        if self._rich is not None:
            self._rich.update(data, metadata, display_id)
            return
        text = plain(data)
        if self.live and not text and self._open == display_id:
            self._write("stdout", "\r\x1b[K")
            self._open, self._line = None, ""
        elif self.live and text and "\n" not in text:
            self._latest.pop(display_id, None)
            self._draw(display_id, text)
        else:
            self._latest[display_id] = text

    def settle(self, display_id: str) -> None:
        """Leave the display's last state in place."""
        if self._rich is not None:
            self._rich.settle(display_id)
            return
        if self._open == display_id:
            self._end()
        text = self._latest.pop(display_id, "")
        if text:
            self.stream("stdout", text if text.endswith("\n") else text + "\n")

    def _draw(self, display_id: str, text: str) -> None:
        if self._open is not None and self._open != display_id:
            self._end()
        fits = _fitting(text)
        self._write("stdout", "\r\x1b[K" + fits if self._open is not None else fits)
        self._open, self._line = display_id, text

    def _end(self) -> None:
        whole = "" if _fitting(self._line) == self._line else f"\r\x1b[K{self._line}"
        self._write("stdout", f"{whole}\n")
        self._open, self._line = None, ""

    def _write(self, name: str, text: str) -> None:
        out = self._out[name]
        encoding = getattr(out, "encoding", None) or "utf-8"
        out.write(printable(text).encode(encoding, "replace").decode(encoding))
        out.flush()


def _fitting(line: str) -> str:
    """As much of a line that is being redrawn as a row of the terminal takes: no terminal erases the row above."""
    room = shutil.get_terminal_size().columns - 1
    return line if len(line) <= room else f"{line[: room - 1]}…"


def plain(data: MimeBundle) -> str:
    """The text by which a terminal shows ``data``: its ``text/plain``, or else the names of its types."""
    text = data.get("text/plain")
    if isinstance(text, str):
        return text
    return f"<{', '.join(sorted(data))}>" if data else ""


def painter_for_cell() -> Painter:
    """The painter for the cell that runs now. Call it on the thread that runs the cell.

    In a notebook that is a :class:`KernelPainter`. Where code captures text, displays or both (``%%capture``,
    ``contextlib.redirect_stdout``), the captured part goes there. In a terminal and in plain Python it is a
    :class:`TextPainter` on the current standard streams.
    """
    stdout, stderr = sys.stdout, sys.stderr
    stdout.flush()
    stderr.flush()
    kernel = _kernel()
    shell = _shell()
    publisher = getattr(shell, "display_pub", None)
    rich: Painter | None = None
    if publisher is not None and type(publisher).__name__ == "CapturingDisplayPublisher":
        rich = PublisherPainter(publisher)
    if kernel is None:
        return TextPainter(stdout, stderr, tty=_is_terminal(stdout), rich=rich)
    in_cell = KernelPainter(kernel, kernel.get_parent("shell"))
    if type(stdout).__name__ == "OutStream" and type(stdout).__module__.startswith("ipykernel"):
        return in_cell if rich is None else _Divided(in_cell, rich)
    return TextPainter(stdout, stderr, tty=False, rich=rich or in_cell)


class _Divided:
    """Passes text to one painter and displays to another, for ``%%capture --no-stdout``."""

    live = False
    erases = False

    def __init__(self, text: Painter, rich: Painter) -> None:
        self.paced = text.paced
        self.stream = text.stream
        self.display = rich.display
        self.update = rich.update
        self.settle = rich.settle


def _shell() -> Any:
    # A process that runs IPython has imported it; no other process should pay for the import.
    module = sys.modules.get("IPython.core.getipython") or sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def _kernel() -> Any:
    shell = _shell()
    kernel = getattr(shell, "kernel", None)
    return kernel if hasattr(kernel, "iopub_socket") and hasattr(kernel, "get_parent") else None


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def _content(data: MimeBundle, metadata: dict[str, Any], display_id: str | None) -> dict[str, Any]:
    return {
        "data": _printable_in(data),
        "metadata": _printable_in(metadata),
        "transient": {} if display_id is None else {"display_id": display_id},
    }


def _printable_in(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key) if isinstance(key, str) else key: _printable_in(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable_in(item) for item in value]
    return value
